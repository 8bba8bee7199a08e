"""Where a program's data lives, and how many bytes crossed between the host and the device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

from tilegrad.errors import UserError

Place = Literal["host", "device"]
HOST: Final = "host"
DEVICE: Final = "device"


@dataclass(frozen=True)
class Residency:
    """Parameters, gradients and optimizer state are placed once, when a program is loaded, and then stay.

    What moves beside them is chosen here. `inputs` on the host are sent with every call; on the device they are
    placed once and used by every call after that. `outputs` on the host come back with every call; on the device they
    stay until they are asked for. `gradients` on the host are copied there after every step; on the device they are
    read when they are asked for.
    """

    inputs: Place = HOST
    outputs: Place = HOST
    gradients: Place = DEVICE

    def __post_init__(self) -> None:
        for field in fields(self):
            place = getattr(self, field.name)
            if place not in (HOST, DEVICE):
                raise UserError(
                    f"{field.name} cannot be placed there", stage="load", expected=f"{HOST} or {DEVICE}", got=str(place)
                )


@dataclass(frozen=True)
class Transfer:
    """Bytes that crossed, by what they were. State is parameters, gradients, optimizer state and statistics."""

    input_bytes: int = 0
    output_bytes: int = 0
    state_to_device_bytes: int = 0
    state_from_device_bytes: int = 0

    @property
    def to_device_bytes(self) -> int:
        return self.input_bytes + self.state_to_device_bytes

    @property
    def from_device_bytes(self) -> int:
        return self.output_bytes + self.state_from_device_bytes

    def __add__(self, other: Transfer) -> Transfer:
        return Transfer(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Transfer)))


@dataclass
class Transfers:
    """`loaded` is what loading placed; `last` counts from the start of the latest call on; `total` is everything."""

    loaded: Transfer
    last: Transfer = Transfer()
    total: Transfer = Transfer()

    def __post_init__(self) -> None:
        self.total = self.total + self.loaded

    def begin_call(self) -> None:
        self.last = Transfer()

    def add(self, moved: Transfer) -> None:
        self.last = self.last + moved
        self.total = self.total + moved
