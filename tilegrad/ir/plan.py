"""A plan: an address for every buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilegrad.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Address:
    """Where a value lies: `offset` bytes into region `region` of memory `memory`.

    `instance` tells apart memories that exist once per cluster; `slice_stride` is the distance between the slices of
    a buffer that has one per block (0: one slice for all).
    """

    memory: str
    region: str  # "state" outlives calls, "arena" does not
    offset: int
    instance: int = 0
    slice_stride: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that one or more values share, from the launch that first writes them to the last that reads them.

    `first` is -1 for what the caller fills before the entry runs; `last` is the number of launches for what the
    caller reads afterwards.
    """

    name: str
    size_bytes: int
    first: int
    last: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class EntryPlan:
    addresses: Mapping[str, Address]
    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    arena_bytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """Of one memory level. `lower_bound_bytes` is the largest sum of live aligned bytes for the chosen order."""

    used_bytes: int
    capacity_bytes: int | None
    lower_bound_bytes: int


@dataclass(frozen=True)
class Plan:
    """`image_bytes` is the leading part of the state region that has initial values (weights.bin)."""

    schedule: Schedule
    alignment_bytes: int
    state_addresses: Mapping[str, Address]
    state_bytes: int
    image_bytes: int
    arena_bytes: int
    entries: Mapping[str, EntryPlan]
    memory: Mapping[str, MemoryUse]

    def address(self, entry: str, value: str) -> Address:
        found = self.entries[entry].addresses.get(value)
        return self.state_addresses[value] if found is None else found
