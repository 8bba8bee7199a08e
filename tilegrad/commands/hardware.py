"""Options about the chip: how much memory and how many cores a program may use, and how it is scheduled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tilegrad.errors import UserError
from tilegrad.schedule.options import BUFFERINGS, HOMES, PIPES, ScheduleOptions, fit_bytes_of
from tilegrad.sizes import parse_size
from tilegrad.targets.base import FLASH, L1, L2, L3, RAM, Target

_PANEL = "Chip and schedule"

Tiling = Annotated[
    str,
    typer.Option(
        "--tiling",
        metavar="on|off",
        help="off: every operator computes whole operands in L2, the baseline.",
        rich_help_panel=_PANEL,
    ),
]
Buffering = Annotated[
    str,
    typer.Option(
        "--buffering",
        metavar="|".join(BUFFERINGS),
        help="double: a tile's transfers overlap the computation of the one before. auto: per operator, by cost. "
        "Each hop by itself: l2=single,l3=double (l2 is L2-L1, l3 is L3-L2).",
        rich_help_panel=_PANEL,
    ),
]
Home = Annotated[
    str,
    typer.Option(
        "--home",
        metavar="|".join(HOMES),
        help="Where tensors live. auto: in L2, and what does not fit in L3.",
        rich_help_panel=_PANEL,
    ),
]


def _size(option: str, of: str) -> Any:
    """An option that is a number of bytes."""
    return typer.Option(option, metavar="SIZE", help=f"{of}. Default: all.", rich_help_panel=_PANEL, show_default=False)


L1Size = Annotated[str | None, _size("--l1", "L1 for tiles, as 64K")]
L2Size = Annotated[str | None, _size("--l2", "L2 for tensors, as 1M")]
L3Size = Annotated[str | None, _size("--l3", "L3 for tensors, as 32M")]
RamSize = Annotated[
    str | None,
    _size(
        "--ram", "RAM, as 256K. Without --device: of a microcontroller (train: of the host, with --flash of a board)"
    ),
]
FlashSize = Annotated[str | None, _size("--flash", "Flash for what never changes, as 1M")]
FitRam = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Fit into RAM (all, or --ram): compute again as few activations as it takes. The bits stay. "
        "inspect ranks what else would help. With L3: compute again what is cheaper than to fetch.",
        rich_help_panel=_PANEL,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        "--cores", metavar="N", help="Cores that compute. Default: all.", rich_help_panel=_PANEL, show_default=False
    ),
]


Blocks = Annotated[
    str,
    typer.Option(
        "--blocks",
        metavar="N|auto",
        help="Over how many blocks operators are launched, spread over the chip's clusters. auto: per operator, by "
        "cost. n, n/2, min(n, 3): of a number that tg_set_blocks sets at run time.",
        rich_help_panel=_PANEL,
    ),
]
MostBlocks = Annotated[
    int | None,
    typer.Option(
        "--most-blocks",
        metavar="N",
        help="What n is at most. Default: as many as the chip has clusters.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


PipesOption = Annotated[
    str,
    typer.Option(
        "--pipes",
        metavar="|".join(PIPES),
        help="Operators on different engines of a block that run at once, joined by a pipe. auto: by cost.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class BudgetOptions:
    """How much of the chip a program may use, and where its tensors live."""

    home: Home = "auto"
    l1: L1Size = None
    l2: L2Size = None
    l3: L3Size = None
    cores: Cores = None
    ram: RamSize = None
    flash: FlashSize = None

    def chip(self, target: Target) -> Target:
        """The chip with the budgets that were asked for."""
        budgets = ((L1, self.l1), (L2, self.l2), (L3, self.l3), (RAM, self.ram), (FLASH, self.flash))
        for name, text in budgets:
            option = f"--{name.lower()}"
            if text is not None:
                target = target.with_capacity(name, parse_size(option, text))
        return target if self.cores is None else target.with_cores(self.cores)

    def schedule(self, target: Target) -> ScheduleOptions:
        """What was asked of the scheduler, checked before anything is imported."""
        return self._checked(ScheduleOptions(home=self.home), target)

    @staticmethod
    def _checked(schedule: ScheduleOptions, target: Target) -> ScheduleOptions:
        schedule.check(target)
        return schedule


@dataclass(frozen=True)
class ChipOptions(BudgetOptions):
    """The budgets, and how the program is scheduled."""

    tiling: Tiling = "on"
    buffering: Buffering = "auto"
    fit: FitRam = False
    blocks: Blocks = "auto"
    most_blocks: MostBlocks = None
    pipes: PipesOption = "auto"

    def schedule(self, target: Target) -> ScheduleOptions:
        if self.tiling not in ("on", "off"):
            raise UserError(
                f"--tiling cannot be '{self.tiling}'", stage="schedule", expected="on or off", got=self.tiling
            )
        fit_bytes = fit_bytes_of(target) if self.fit else None
        options = ScheduleOptions(
            self.tiling == "on",
            self.buffering,
            self.home,
            fit_bytes=fit_bytes,
            blocks=self.blocks,
            most_blocks=self.most_blocks,
            pipes=self.pipes,
        )
        return self._checked(options, target)
