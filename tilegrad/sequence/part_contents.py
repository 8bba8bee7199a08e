"""What the replay knows of parts of tensors: word by word, which of the whole they are."""

from __future__ import annotations

import numpy as np

from tilegrad.errors import InternalError
from tilegrad.ir.listing import SCRATCH, Begin, Event, Listing, Load, Move, Store, describe
from tilegrad.ir.nest import Access, Operand
from tilegrad.ir.plan import Address
from tilegrad.sequence.bytes_of import view_sources
from tilegrad.sequence.contents import Memory, Readers, View, part_base, unit_positions, whose
from tilegrad.sequence.needs import summed_axes
from tilegrad.targets.base import L1, L2, L3

STATE, ARENA, OUTSIDE = "state", "arena", "l3"
_REGION_MEMORY = {STATE: L2, ARENA: L2, OUTSIDE: L3}


class ListingError(InternalError):
    """A listing that would give wrong results."""


class PartReplay:
    """What every part of a replay knows, and the part that is about parts."""

    def __init__(self, listing: Listing, entry: str) -> None:
        plan = listing.plan
        self.plan = plan
        self.entry = entry
        self.parts = plan.entries[entry].parts
        self.nests = listing.entries[entry].nests
        self.events = listing.entries[entry].events
        self.schedule = plan.schedule.entries[entry]
        self.clusters = plan.schedule.target.clusters
        self.alignment = {memory.name: memory.alignment_bytes for memory in plan.schedule.target.memories}
        self.unit = unit = min([4, *(tensor_type.dtype.size_bytes for tensor_type in self.schedule.types.values())])
        sizes = {SCRATCH: plan.memory[L1].used_bytes, STATE: plan.state_bytes, ARENA: plan.arena_bytes}
        sizes[OUTSIDE] = plan.memory[L3].used_bytes if L3 in plan.memory else 0
        self.memories = {name: Memory(name, size, unit) for name, size in sizes.items()}
        self.turn = self.block = -1
        self.event: Event | None = None
        self.running: Begin | None = None
        self.numbers: dict[str, int] = {}
        self.names: list[str] = []
        self.far_homes: dict[str, int] = {}  # of values that were moved to L3
        self.sources = view_sources(self.schedule.launches)
        self.positions: dict[str, View] = {}

    def error(self, message: str, nest: int | None = None) -> ListingError:
        number = self.turn if nest is None else nest
        if self.event is not None:
            number = max(number, 0)  # what comes before the first nest is for it
        node = kernel = None
        if 0 <= number < len(self.nests):
            listed = self.nests[number]
            node, kernel = self.schedule.launches[listed.launch].node.name, f"tg_{listed.nest.kernel}: "
        block = f", block {self.block}" if self.block >= 0 else ""
        where = "" if self.event is None else f" ({describe(self.event)}{block})"
        return ListingError(f"listing of {self.entry}: {kernel or ''}{message}{where}", stage="sequence", node=node)

    def number(self, value: str) -> int:
        """Of a value; a part of one has its number."""
        if value in self.schedule.panels:
            value = self.schedule.panels[value].value
        name = self.sources.get(value, value)
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    def content_number(self, nest: int, operand: Operand) -> int:
        """Of what a nest finds in an operand, or leaves there: a sum that is not complete is not the value yet."""
        own, part = self.nests[nest].nest, self.schedule.launches[self.nests[nest].launch].part
        value = self.number(operand.value or "")
        if part is None or (operand.access is Access.READ and operand.continues is None):
            return value
        done, steps = int(operand.continues is None), 1
        for axis in reversed(summed_axes(own, operand)):
            r = part.ranges[axis.name]
            done += steps * (r.start if operand.continues else r.stop - 1)
            steps *= own.whole_extent(axis.name)
        return value if done == steps else self.number(f"{self.names[value]}, {done:,} of {steps:,} steps of its sum")

    def home(self, address: Address, size_bytes: int, what: str) -> tuple[View, Readers]:
        """Checked against its region and the alignment."""
        if address.region not in _REGION_MEMORY or address.memory != _REGION_MEMORY[address.region]:
            raise self.error(f"{what} is in region '{address.region}' of {address.memory}, which is none")
        if address.offset % self.alignment[address.memory]:
            raise self.error(f"{what} is not aligned to {self.alignment[address.memory]} bytes")
        found = self.memories[address.region].span(address.offset, size_bytes)
        if found is None:
            raise self.error(f"{what} lies beyond its region")
        return found

    def far_contents(self, event: Load | Store, operand: Operand) -> list[View | int]:
        """What is, or will be, at the outer side of a transfer's parts."""
        assert operand.value is not None
        value = self.content_number(event.nest, operand)
        if operand.value not in self.schedule.panels:
            return [value] * len(event.parts)
        home = self.plan.address(self.entry, operand.value, self.nests[event.nest].launch)
        positions = self.positions_of(operand.value)
        found: list[View | int] = []
        for part in event.parts:
            start = (event.far - home.offset + part.far_offset) // self.unit
            shape = (part.rows, part.row_bytes // self.unit)
            steps = (8 * (part.far_stride // self.unit), 8)
            view: View = np.ndarray(shape, np.int64, positions.data, 8 * start, steps)
            found.append(part_base(value) + view)
        return found

    def positions_of(self, value: str) -> View:
        if value not in self.positions:
            panel = self.schedule.panels[value]
            found = unit_positions(panel.shape, panel.box, panel.dtype.size_bytes, self.unit)
            self.positions[value] = np.ascontiguousarray(found)
        return self.positions[value]

    def move_sides(self, event: Move, what: str) -> tuple[tuple[View, Readers], tuple[View, Readers]]:
        """The bytes of L2 and of L3. A tensor begins at an aligned place, a part of one anywhere in it."""
        if event.tensor not in self.parts:
            near = self.home(Address(L2, "arena", event.l2_offset), event.size_bytes, what)
            return near, self.home(Address(L3, "l3", event.l3_offset), event.size_bytes, what)
        sizes, dense = (event.rows, event.row_bytes), (event.row_bytes, 1)
        found = self.memories["arena"].views(event.l2_offset, sizes, dense)
        outside = self.memories["l3"].views(event.l3_offset, sizes, (event.l3_stride, 1))
        if found is None or outside is None:
            raise self.error(f"{what} lies beyond its region")
        if event.row_bytes % 4 or event.l3_offset % 4:
            raise self.error(f"{what} is no whole words, which the engine moves")
        return found, outside

    def moved_part(self, event: Move, source: View, what: str) -> View | int:
        """A part of a tensor is known by its places in the whole, where it was found and where it goes."""
        whole = self.parts[event.tensor]
        first = (event.l3_offset - self.plan.entries[self.entry].l3_offsets[whole]) // self.unit
        rows = np.arange(event.rows, dtype=np.int64) * (event.l3_stride // self.unit)
        places = np.add.outer(rows, np.arange(event.row_bytes // self.unit, dtype=np.int64)) + first
        held = int(source.flat[0])
        if event.inward:
            if held < 0 or (source != held).any() or whose(held) != held:
                raise self.error(f"{what} is not one tensor where it comes from")
            result: View = part_base(held) + places
            return result
        if held < 0 or whose(held) == held or (source != part_base(whose(held)) + places).any():
            raise self.error(f"{what} is not the part of '{whole}' that belongs where it goes")
        return whose(held)

    def expect_whole(self, event: Move) -> None:
        """All of a tensor, from where it begins to where it begins: memories know whose bytes lie where, but not which
        of them."""
        name, plan, size_bytes = event.tensor, self.plan, self.schedule.types[event.tensor].size_bytes
        stays = plan.entries[self.entry].stays.get(name)
        near = {stay.address for stay in stays} if stays else {plan.address(self.entry, name)}
        state = plan.state_addresses.get(name)
        if state is not None and state.region == OUTSIDE:
            self.far_homes[name] = state.offset
        elif not event.inward or name not in self.far_homes:
            self.far_homes[name] = event.l3_offset
        at_home = Address(L2, ARENA, event.l2_offset) in near and event.l3_offset == self.far_homes[name]
        if not at_home or event.size_bytes < size_bytes:
            raise self.error(f"'{name}' is not moved whole, from where it begins to where it begins")
