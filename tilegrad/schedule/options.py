"""What a user may ask of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import UserError
from tilegrad.ir.blocks import Width, parse_width
from tilegrad.ir.pipes import DEPTHS
from tilegrad.targets.base import MOST_BLOCKS, Target

BUFFERINGS = ("auto", "single", "double")
HOPS = ("l2", "l3")
"""As `--buffering` calls them: l2 is between L2 and L1, l3 between L3 and L2."""
HOMES = ("auto", "L2", "L3")
PIPES = ("auto", "off")
HIERARCHY = "siracusa"


def _refused(option: str, value: object, expected: str) -> UserError:
    return UserError(f"--{option} cannot be '{value}'", stage="schedule", expected=expected, got=str(value))


@dataclass(frozen=True)
class ScheduleOptions:
    """`is_tiled` False computes whole operands where they live (the honest baseline).

    `fuses_update` moves the optimizer into the backward pass where the recipe allows it; the unfused program gives the
    same bits and is where gradients can be read. None is as the target says (`pipeline.fuses_update`). `fit_bytes` is
    what a program is made to fit into, by computing activations again; None leaves it as it is.
    `blocks` is over how many blocks nests are launched: auto, a number, or an expression of a number n that is set at
    run time, `most_blocks` at most (None: as many as the target has clusters). `pipes` is which neighbours on different
    engines of a block run at once: auto, off, or pairs of nodes by name.
    """

    is_tiled: bool = True
    buffering: str = "auto"
    home: str = "auto"
    fuses_update: bool | None = None
    fit_bytes: int | None = None
    blocks: str = "auto"
    most_blocks: int | None = None
    pipes: str | tuple[tuple[str, str] | tuple[str, str, int], ...] = "auto"

    def __post_init__(self) -> None:
        self._check_pipe_names()
        self._check_blocks()
        if self.home not in HOMES:
            raise _refused("home", self.home, " or ".join(HOMES))
        hop_buffering(self.buffering)

    def _check_pipe_names(self) -> None:
        if isinstance(self.pipes, str) and self.pipes not in PIPES:
            raise _refused("pipes", self.pipes, " or ".join(PIPES))
        for one in () if isinstance(self.pipes, str) else self.pipes:
            names, depth = one[:2], one[2] if len(one) > 2 else DEPTHS[0]
            if len(one) not in (2, 3) or not all(isinstance(name, str) for name in names) or depth not in DEPTHS:
                depths = ", ".join(map(str, DEPTHS))
                raise UserError(
                    "a pipe cannot be asked for like this",
                    stage="schedule",
                    expected=f"the names of two nodes, and if you like a number of slots: {depths}",
                    got=repr(one),
                )

    def _check_blocks(self) -> None:
        width = parse_width(self.blocks)
        if self.blocks != "auto" and (width is None or width.limit < 1):
            numbers = f"auto, 1 to {MOST_BLOCKS}, or of a number n that is set at run time n, n/2, min(n, 3)"
            raise _refused("blocks", self.blocks, numbers)
        most = MOST_BLOCKS if self.most_blocks is None else self.most_blocks
        if not 1 <= most <= MOST_BLOCKS:
            raise _refused("most-blocks", most, f"1 to {MOST_BLOCKS}")
        if width is not None and not width.divisor and width.limit > most:
            raise _refused("blocks", self.blocks, f"1 to {most}")
        if width is not None and width.divisor > most:
            raise UserError(
                f"--blocks {self.blocks} is no block for any n up to {most}",
                stage="schedule",
                expected=f"--most-blocks {width.divisor} or more",
                got=str(most),
            )
        if self.most_blocks is not None and (width is None or not width.divisor):
            raise UserError(
                "--most-blocks is for a width that is set at run time",
                stage="schedule",
                expected="--blocks n, n/2 or min(n, 3) with it",
                got=f"--blocks {self.blocks}",
            )

    def width(self, target: Target) -> tuple[Width | None, int]:
        """The width that was asked for, if any was, and what the number n of an expression is at most."""
        found = parse_width(self.blocks)
        if found is None or not found.divisor:
            return found, 0
        most = max(target.clusters, found.divisor) if self.most_blocks is None else self.most_blocks
        return Width(min(found.limit, most // found.divisor), found.divisor), most

    @property
    def l2_buffering(self) -> str:
        """Between L2 and L1."""
        return hop_buffering(self.buffering)["l2"]

    @property
    def l3_buffering(self) -> str:
        """Between L3 and L2."""
        return hop_buffering(self.buffering)["l3"]

    def check(self, target: Target) -> None:
        """An option that would change nothing is refused, not ignored. (Untiled is what a flat memory always is.)"""
        has_pipes = bool(target.compute_engines) and self.is_tiled
        engines = "a chip whose blocks have engines, and programs in tiles"
        self._expect_use("pipes", target, has_pipes or self.pipes == "auto", engines)
        if target.is_flat:
            levels = f"a chip with L1, L2 and L3, such as {HIERARCHY}"
            for option in ("home", "buffering", "blocks"):
                self._expect_use(option, target, getattr(self, option) == "auto", levels, ", which has one memory")
            return
        no_l3 = ", which has no L3"
        names_l3 = "l3=" in self.buffering
        self._expect_use("home", target, target.has_l3 or self.home != "L3", "auto or L2", no_l3)
        self._expect_use("buffering", target, target.has_l3 or not names_l3, "auto, single or double", no_l3)
        if self.blocks != "auto" and not self.is_tiled:
            raise UserError(
                "--blocks is for programs in tiles", stage="options", expected="--tiling on", got="--tiling off"
            )

    def _expect_use(self, option: str, target: Target, is_used: bool, expected: str, why: str = "") -> None:
        if not is_used:
            raise UserError(
                f"--{option} does not apply to target '{target.name}'{why}",
                stage="options",
                expected=expected,
                got=f"--{option} {getattr(self, option)}",
            )


def fit_bytes_of(target: Target) -> int:
    """What a program is to fit into."""
    capacity = target.memory(target.home).capacity_bytes
    if capacity is None:
        raise UserError(
            f"--fit asks for a limit, and target '{target.name}' has none", stage="options", hint="add --ram 256K"
        )
    return capacity


def hop_buffering(text: str) -> dict[str, str]:
    """`double` is for both hops; `l2=single,l3=double` names them, and one that is not named is auto."""
    if text in BUFFERINGS:
        return dict.fromkeys(HOPS, text)
    found: dict[str, str] = {}
    for part in text.split(","):
        hop, equals, way = (word.strip() for word in part.partition("="))
        if not equals or hop not in HOPS or way not in BUFFERINGS or hop in found:
            raise UserError(
                f"--buffering cannot be '{text}'",
                stage="schedule",
                expected=f"{' or '.join(BUFFERINGS)}, or of each hop, as l2=single,l3=double",
                got=part or text,
            )
        found[hop] = way
    return {hop: found.get(hop, "auto") for hop in HOPS}
