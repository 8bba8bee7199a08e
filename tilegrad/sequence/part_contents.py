"""What the replay knows of parts of tensors: word by word, which of the whole they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from tilegrad.errors import InternalError
from tilegrad.ir.listing import ListedNest, Load, Move, Store
from tilegrad.ir.nest import Operand
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.schedule import EntrySchedule
from tilegrad.sequence.contents import Memory, Readers, View, part_base, unit_positions, whose
from tilegrad.targets.base import L2, L3

STATE, ARENA, OUTSIDE = "state", "arena", "l3"


class PartReplay:
    """The part of a replay that is about parts."""

    plan: Plan
    entry: str
    unit: int
    nests: tuple[ListedNest, ...]
    schedule: EntrySchedule
    memories: dict[str, Memory]
    parts: Mapping[str, str]
    positions: dict[str, View]
    far_homes: dict[str, int]

    @abstractmethod
    def number(self, value: str) -> int: ...

    @abstractmethod
    def content_number(self, nest: int, operand: Operand) -> int: ...

    @abstractmethod
    def error(self, message: str, nest: int | None = None) -> InternalError: ...

    @abstractmethod
    def home(self, address: Address, size_bytes: int, what: str) -> tuple[View, Readers]: ...

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
