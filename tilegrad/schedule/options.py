"""What a user may ask of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import UserError

BUFFERINGS = ("auto", "single", "double")
HOMES = ("auto", "L2", "L3")


@dataclass(frozen=True)
class ScheduleOptions:
    """`is_tiled` False computes whole operands where they live (the honest baseline).

    `fuses_update` moves the optimizer into the backward pass where the recipe allows it; the unfused program gives the
    same bits and is where gradients can be read.
    """

    is_tiled: bool = True
    buffering: str = "auto"
    home: str = "auto"
    fuses_update: bool = False

    def __post_init__(self) -> None:
        for what, value, choices in (("buffering", self.buffering, BUFFERINGS), ("home", self.home, HOMES)):
            if value not in choices:
                raise UserError(
                    f"--{what} cannot be '{value}'", stage="schedule", expected=" or ".join(choices), got=value
                )
