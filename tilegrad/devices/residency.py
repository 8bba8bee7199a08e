"""How many bytes crossed between the host and the device; where data lives is `ir/residency.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilegrad.ir.residency import DEVICE, HOST, Place, Residency

__all__ = ["DEVICE", "HOST", "Place", "Residency", "Transfer", "Transfers"]


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
