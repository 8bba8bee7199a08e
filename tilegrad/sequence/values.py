"""What every part of a replay knows: which units of which values lie where, and how to say what is wrong."""

from __future__ import annotations

import numpy as np

from tilegrad.errors import InternalError
from tilegrad.ir.listing import SCRATCH, Begin, Box, Event, Listing, Move, describe
from tilegrad.ir.nest import Access, Operand, Range, row_major_strides
from tilegrad.ir.plan import Address
from tilegrad.passes.views import roots_of_views
from tilegrad.sequence.contents import NOTHING, UNDER_WAY, Memory, Readers, View, contents_of, first_unit, whose
from tilegrad.sequence.needs import box_text, summed_axes
from tilegrad.targets.base import L1, L2, L3

STATE, ARENA, OUTSIDE = "state", "arena", "l3"
_REGION_MEMORY = {STATE: L2, ARENA: L2, OUTSIDE: L3}


class ListingError(InternalError):
    """A listing that would give wrong results."""


class ValueReplay:
    """An entry, its memories, and the values in them."""

    def __init__(self, listing: Listing, entry: str) -> None:
        plan = listing.plan
        self.plan = plan
        self.entry = entry
        self.parts = plan.entries[entry].parts
        self.nests = listing.entries[entry].nests
        self.events = listing.entries[entry].events
        self.schedule = plan.schedule.entries[entry]
        self.alignment = {memory.name: memory.alignment_bytes for memory in plan.schedule.target.memories}
        self.unit = min([4, *(tensor_type.dtype.size_bytes for tensor_type in self.schedule.types.values())])
        sizes = {SCRATCH: plan.memory[L1].used_bytes, STATE: plan.state_bytes, ARENA: plan.arena_bytes}
        sizes[OUTSIDE] = plan.memory[L3].used_bytes if L3 in plan.memory else 0
        self.memories = {name: Memory(size_bytes, self.unit) for name, size_bytes in sizes.items()}
        self.turn = self.block = -1
        self.event: Event | None = None
        self.running: Begin | None = None
        self.numbers: dict[str, int] = {}
        self.names: list[str] = []
        self.sources = roots_of_views(self.schedule.graph)

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

    def contents(self, nest: int, operand: Operand, box: Box) -> View:
        """What a dense box of an operand has, by the places of its units in the whole tensor."""
        value, shape = self.content_number(nest, operand), operand.shape
        panel = self.schedule.panels.get(operand.value or "")
        if panel is not None:
            shape = panel.shape
            box = tuple(Range(of.start + r.start, of.start + r.stop) for of, r in zip(panel.box, box, strict=True))
        return contents_of(value, shape, box, operand.element_bytes // self.unit)

    def whole(self, name: str, size_bytes: int) -> View:
        """All of a tensor, or of something else that has a name."""
        found: View = first_unit(self.number(name)) + np.arange(size_bytes // self.unit, dtype=np.int64)
        return found

    def home(self, address: Address, size_bytes: int, what: str) -> View:
        """Checked against its region and the alignment."""
        if address.region not in _REGION_MEMORY or address.memory != _REGION_MEMORY[address.region]:
            raise self.error(f"{what} is in region '{address.region}' of {address.memory}, which is none")
        if address.offset % self.alignment[address.memory]:
            raise self.error(f"{what} is not aligned to {self.alignment[address.memory]} bytes")
        found = self.memories[address.region].span(address.offset, size_bytes)
        if found is None:
            raise self.error(f"{what} lies beyond its region")
        return found[0]

    def sides(self, event: Move, what: str) -> tuple[tuple[View, Readers], tuple[View, Readers]]:
        """The bytes of L2 and of L3. A tensor begins at an aligned place, a part of one anywhere in it."""
        sizes = (event.rows, event.row_bytes)
        near = self.memories[ARENA].views(event.l2_offset, sizes, (event.row_bytes, 1))
        far = self.memories[OUTSIDE].views(event.l3_offset, sizes, (event.l3_stride, 1))
        if near is None or far is None:
            raise self.error(f"{what} lies beyond its region")
        if event.tensor in self.parts:
            if event.row_bytes % 4 or event.l3_offset % 4:
                raise self.error(f"{what} is no whole words, which the engine moves")
        elif event.l2_offset % self.alignment[L2] or event.l3_offset % self.alignment[L3]:
            raise self.error(f"{what} is not aligned")
        return near, far

    def expect_writable(self, content: View, readers: Readers, what: str) -> None:
        if (content == UNDER_WAY).any():
            raise self.error(f"{what} is brought to where something else is on its way")
        if readers.any():
            raise self.error(f"{what} is brought to what is still being read")

    def home_of(self, nest: int, operand: Operand, box: Box) -> tuple[str, int]:
        """Where a box begins in its tensor: region and offset."""
        assert operand.value is not None
        home = self.plan.address(self.entry, operand.value, self.nests[nest].launch)
        start = sum(r.start * stride for r, stride in zip(box, row_major_strides(operand.shape), strict=True))
        return home.region, home.offset + operand.element_bytes * start

    def expect_at_home(self, nest: int, operand: Operand, box: Box, region: str, offset: int) -> None:
        home, wanted = self.home_of(nest, operand, box)
        if (region, offset) != (home, wanted):
            where = f"{box_text(box)} of '{operand.name}' is at {home}+{wanted}"
            raise self.error(f"{where}, not at {region}+{offset}", nest)

    def at_home(self, nest: int, operand: Operand, box: Box) -> tuple[View, Readers] | None:
        """A box of a tensor where that lives; None if it passes the end of its region."""
        (region, offset), size = self.home_of(nest, operand, box), operand.element_bytes
        strides = (*(stride * size for stride in row_major_strides(operand.shape)), 1)
        return self.memories[region].views(offset, (*(r.size for r in box), size), strides)

    def expect_contents(self, content: View, wanted: View, what: str) -> None:
        is_there = content == wanted.reshape(content.shape)
        if is_there.all():
            return
        other = int(content[~is_there].flat[0])
        name = self.names[whose(int(wanted.flat[0]))]
        if other == UNDER_WAY:
            raise self.error(f"{what} reads '{name}' before it has arrived")
        found = "nothing" if other == NOTHING else f"'{self.names[whose(other)]}'"
        if found == f"'{name}'":
            found = f"another part of {found}"
        raise self.error(f"{what} finds {found} where '{name}' should be")
