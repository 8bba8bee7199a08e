"""What a user may ask of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import UserError
from tilegrad.targets.base import Target

BUFFERINGS = ("auto", "single", "double")
HOMES = ("auto", "L2", "L3")
HIERARCHY = "siracusa"


@dataclass(frozen=True)
class ScheduleOptions:
    """`is_tiled` False computes whole operands where they live (the honest baseline).

    `fuses_update` moves the optimizer into the backward pass where the recipe allows it; the unfused program gives the
    same bits and is where gradients can be read. None is as the target says (`pipeline.fuses_update`).
    """

    is_tiled: bool = True
    buffering: str = "auto"
    home: str = "auto"
    fuses_update: bool | None = None

    def __post_init__(self) -> None:
        for what, value, choices in (("buffering", self.buffering, BUFFERINGS), ("home", self.home, HOMES)):
            if value not in choices:
                raise UserError(
                    f"--{what} cannot be '{value}'", stage="schedule", expected=" or ".join(choices), got=value
                )

    @property
    def l3_buffering(self) -> str:
        return "single" if self.buffering == "single" else "double"

    def check(self, target: Target) -> None:
        """An option that would change nothing is refused, not ignored. (Untiled is what a flat memory always is.)"""
        if not target.is_flat:
            return
        for what, value in (("home", self.home), ("buffering", self.buffering)):
            if value != "auto":
                raise UserError(
                    f"--{what} does not apply to target '{target.name}', which has one memory",
                    stage="options",
                    expected=f"a chip with L1, L2 and L3, such as {HIERARCHY}",
                    got=f"--{what} {value}",
                )
