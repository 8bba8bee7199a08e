"""What a user may ask of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import UserError
from tilegrad.targets.base import Target

BUFFERINGS = ("auto", "single", "double")
HOPS = ("l2", "l3")
"""As `--buffering` calls them: l2 is between L2 and L1, l3 between L3 and L2."""
HOMES = ("auto", "L2", "L3")
HIERARCHY = "siracusa"


@dataclass(frozen=True)
class ScheduleOptions:
    """`is_tiled` False computes whole operands where they live (the honest baseline).

    `fuses_update` moves the optimizer into the backward pass where the recipe allows it; the unfused program gives the
    same bits and is where gradients can be read. None is as the target says (`pipeline.fuses_update`). `fit_bytes` is
    what a program is made to fit into, by computing activations again; None leaves it as it is.
    """

    is_tiled: bool = True
    buffering: str = "auto"
    home: str = "auto"
    fuses_update: bool | None = None
    fit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.home not in HOMES:
            raise UserError(
                f"--home cannot be '{self.home}'", stage="schedule", expected=" or ".join(HOMES), got=self.home
            )
        hop_buffering(self.buffering)

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
        if not target.is_flat:
            self._check_levels(target)
            return
        for what, value in (("home", self.home), ("buffering", self.buffering)):
            if value != "auto":
                raise UserError(
                    f"--{what} does not apply to target '{target.name}', which has one memory",
                    stage="options",
                    expected=f"a chip with L1, L2 and L3, such as {HIERARCHY}",
                    got=f"--{what} {value}",
                )

    def _check_levels(self, target: Target) -> None:
        """What is about L3 is refused where there is none."""
        asked = {"home": self.home == "L3", "buffering": self.buffering not in BUFFERINGS and "l3=" in self.buffering}
        for what, is_far in asked.items():
            if is_far and not target.has_l3:
                raise UserError(
                    f"--{what} does not apply to target '{target.name}', which has no L3",
                    stage="options",
                    expected="auto or L2" if what == "home" else "auto, single or double",
                    got=f"--{what} {getattr(self, what)}",
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
