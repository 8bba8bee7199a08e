"""A plan: an address for every buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilegrad.errors import InternalError
from tilegrad.ir.schedule import Schedule
from tilegrad.pictured import Pictured
from tilegrad.sizes import bytes_text

FLASH_REGION = "flash"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a value lies: `offset` bytes into region `region` of memory `memory`."""

    memory: str
    region: str  # "state" outlives calls, "arena" does not; a home in L3 is in region "l3", constants may be in "flash"
    offset: int


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


@dataclass(frozen=True, slots=True)
class Staging:
    """A tensor on its way between L3 and L2: started before launch `start`, waited for before launch `wait`.

    The number of launches stands for the end of the entry. A part of a tensor may be `rows` that are dense in L2 and
    `l3_stride` bytes apart in L3.
    """

    tensor: str
    l2_offset: int
    l3_offset: int
    size_bytes: int
    start: int
    wait: int
    inward: bool
    rows: int = 1
    l3_stride: int = 0


@dataclass(frozen=True, slots=True)
class Stay:
    """Launches `first` to `last` during which a tensor of L3 is at this address of L2."""

    first: int
    last: int
    address: Address


@dataclass(frozen=True, slots=True)
class NestPlace:
    """Where nest `nest` of launch `launch` works in scratchpad, in bytes: its call and table, and its slots.

    Nests of a suite come to scratchpad together, their tables side by side: it is number `suite_index` of its own.
    """

    launch: int
    nest: int
    table_offset: int
    table_bytes: int
    slots_offset: int
    suite_index: int = 0


@dataclass(frozen=True, repr=False)
class EntryPlan:
    """`addresses` are of values that stay put; `stays`, by value, are of those that come and go. `l3_offsets` are of
    tensors that are in L3, all the time or for a while; `parts` says of what a part is that comes and goes."""

    addresses: Mapping[str, Address]
    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    arena_bytes: int
    lower_bound_bytes: int
    stays: Mapping[str, tuple[Stay, ...]] = field(default_factory=dict)
    staging: tuple[Staging, ...] = ()
    places: tuple[NestPlace, ...] = ()
    l3_offsets: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<EntryPlan: {len(self.buffers):,} buffers in {bytes_text(self.arena_bytes)} of arena>"


@dataclass(frozen=True)
class MemoryUse:
    """Of one memory level. `lower_bound_bytes` is the largest sum of live aligned bytes for the chosen order."""

    used_bytes: int
    capacity_bytes: int | None
    lower_bound_bytes: int

    def __str__(self) -> str:
        limit = "" if self.capacity_bytes is None else f" of {bytes_text(self.capacity_bytes)}"
        return bytes_text(self.used_bytes) + limit


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Pictured):
    """`image_bytes` is the leading part of the state region that has initial values (weights.bin); `flash_bytes` is the
    region of what never changes, which is part of the program."""

    schedule: Schedule
    alignment_bytes: int
    state_addresses: Mapping[str, Address]
    state_bytes: int
    image_bytes: int
    arena_bytes: int
    entries: Mapping[str, EntryPlan]
    memory: Mapping[str, MemoryUse]
    l3_image_bytes: int = 0
    flash_bytes: int = 0

    def __repr__(self) -> str:
        memory = ", ".join(f"{name} {use}" for name, use in self.memory.items())
        return f"<Plan of '{self.schedule.program.name}' for {self.schedule.target.name}: {memory}>"

    def is_read_only(self, tensor: str) -> bool:
        """Whether a tensor of the state is a constant of the program."""
        return self.state_addresses[tensor].region == FLASH_REGION

    def input_address(self, entry: str, value: str) -> Address:
        """Where the caller leaves an input."""
        outside = self.entries[entry].addresses.get(value)
        return self.address(entry, value, -1) if outside is None else outside

    def output_address(self, entry: str, value: str) -> Address:
        """Where the caller finds an output."""
        outside = self.entries[entry].addresses.get(value)
        end = len(self.schedule.entries[entry].launches)
        return self.address(entry, value, end) if outside is None else outside

    def address(self, entry: str, value: str, launch: int = 0) -> Address:
        """Where a value is when a launch of an entry runs."""
        plan = self.entries[entry]
        if value in plan.stays:
            found = next((stay.address for stay in plan.stays[value] if stay.first <= launch <= stay.last), None)
            if found is None and value in plan.addresses:
                return plan.addresses[value]
            if found is None:
                raise InternalError(f"'{value}' is not in L2 when launch {launch} of {entry} needs it", stage="memory")
            return found
        address = plan.addresses.get(value)
        return self.state_addresses[value] if address is None else address
