"""Where nests work in scratchpad, and what of them overlaps with their neighbours.

A nest lies apart from the one before it, and from the one before that if there is room: so its table and first operands
can come while the nest before still computes, and the results of the one before that can still leave. Whether they may
is a question of bytes: in scratchpad, and in L2, where no operand may be fetched before what writes it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import add

from tilegrad.analysis.footprint import is_held_whole, nth_tile
from tilegrad.analysis.lifetimes import align, temporaries
from tilegrad.analysis.overlap import Bytes, box_bytes, meet, one_run
from tilegrad.analysis.tables import argument_fields, described_bytes, table_words
from tilegrad.ir.nest import Access, Nest, Operand, Tile
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.ir.schedule import Tiling
from tilegrad.place.scratch_offsets import nest_offsets
from tilegrad.schedule.chain import SETTLED_BYTES

Span = tuple[str, int, int]  # region, first byte, behind the last one


@dataclass(frozen=True)
class TiledNest:
    """A nest of an entry with what is asked of it here."""

    launch: int
    number: int
    nest: Nest
    tiling: Tiling
    element_bytes: Mapping[str, int]
    table: tuple[int, ...]
    table_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.table_bytes + self.tiling.scratch_bytes

    def size_of(self, operand: Operand) -> int:
        return prod(operand.shape) * self.element_bytes[operand.name]

    def operands(self, access: Access) -> list[Operand]:
        return [o for o in self.nest.operands if o.value is not None and o.access is access]

    def tile(self, number: int) -> Tile | None:
        """One of the tiles, the last for -1; None where there are not as many."""
        return nth_tile(self.nest, self.tiling.loops, number)


def overlaps(a: Iterable[Span], b: Iterable[Span]) -> bool:
    others = list(b)
    return any(r == s and start < last and first < stop for r, start, stop in a for s, first, last in others)


class TableMaker:
    """Makes each kind's table once."""

    def __init__(self, longest_bytes: int) -> None:
        self.longest_bytes = longest_bytes
        self.known: dict[object, tuple[int, ...]] = {}

    def table(self, op: str, nest: Nest, tiling: Tiling | None, element_bytes: Mapping[str, int]) -> tuple[int, ...]:
        fields = argument_fields(op, nest.kernel)
        operands = tuple((o.name, o.value is None, o.access, o.shape, o.index) for o in nest.operands)
        constants = tuple(sorted(nest.constants.items()))
        sizes = tuple(element_bytes.items())
        key = (nest.kernel, fields, nest.axes, operands, constants, sizes, id(tiling))
        if key not in self.known:
            self.known[key] = table_words(nest, tiling, fields, element_bytes, self.longest_bytes)
        return self.known[key]


def tiled_nests(plan: Plan, entry: str, maker: TableMaker) -> list[TiledNest]:
    schedule = plan.schedule.entries[entry]
    scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(schedule.graph).items()}
    types = {**scratch, **schedule.graph.types}
    alignment = plan.schedule.target.memory(plan.schedule.target.compute).alignment_bytes
    found = []
    for number, launch in enumerate(schedule.launches):
        for k, (nest, tiling) in enumerate(zip(launch.nests, launch.tilings, strict=True)):
            assert tiling is not None
            sizes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
            table = maker.table(launch.node.op, nest, tiling, sizes)
            table_bytes = align(described_bytes(table, len(nest.operands)), alignment)
            found.append(TiledNest(number, k, nest, tiling, sizes, table, table_bytes))
    return found


def place_nests(plan: Plan) -> tuple[Plan, int]:
    """The plan with a place for each nest in tiles, and the bytes of scratchpad they need."""
    target = plan.schedule.target
    capacity = target.memory(target.compute).capacity_bytes
    assert capacity is not None
    maker = TableMaker(target.engine(target.home, target.compute).longest_bytes)
    nests = {entry: tiled_nests(plan, entry, maker) for entry in plan.entries}
    entries = {}
    used = 0
    for name, own in nests.items():
        sizes = [nest.size_bytes for nest in own]
        offsets = nest_offsets(sizes, capacity)
        plain = [_place(nest, first, capacity) for nest, first in zip(own, offsets, strict=True)]
        entries[name] = replace(plan.entries[name], places=_Placing(plan, name, own, plain).places())
        used = max([used, *map(add, offsets, sizes)])
    return replace(plan, entries=entries), used


class _Placing:
    """One entry. Spans of L1 are in region "L1", those of L2 in the regions of their addresses."""

    def __init__(self, plan: Plan, entry: str, nests: Sequence[TiledNest], plain: list[NestPlace]) -> None:
        self.plan = plan
        self.entry = entry
        self.nests = nests
        self.launch_count = len(plan.schedule.entries[entry].launches)
        self.moves = plan.entries[entry].staging
        self.plain = plain
        self.done: list[NestPlace] = []

    def places(self) -> tuple[NestPlace, ...]:
        for i in range(len(self.nests)):
            late = i > 0 and overlaps([_table_span(self.plain[i])], self._all_scratch(i - 1))
            self.plain[i] = replace(self.plain[i], is_fetched_late=late)
        if not self.plan.schedule.overlaps:
            return tuple(self.plain)
        for i in range(len(self.nests)):
            early, settles = self._early(i), self._settles(i)
            if settles:
                self.done[i - 1] = replace(self.done[i - 1], settles=True)
            elif self._may_still_store(i):
                early = self._early(i, *self._on_their_way(i - 2))
            taken = self._taken(i)
            self.done.append(replace(self.plain[i], early=early, taken=taken, leaves=self._leaves(i)))
            at_once = self._begins_at_once(i)
            self.done[i] = replace(self.done[i], at_once=at_once, taken=taken if at_once else {})
            self.done[i] = replace(self.done[i], drains=self._drains(i))
        return tuple(self.done)

    def _may_still_store(self, i: int) -> bool:
        """Whether results of the nest two before may be on their way when this one's operands are requested."""
        return i > 0 and self.nests[i - 1].tiling.tile_count == 1 and not self.done[i - 1].drains

    def _settles(self, i: int) -> bool:
        """Whether it helps this nest to wait for them then, and does not take long."""
        if not self._may_still_store(i):
            return False
        leaving, arriving = self._on_their_way(i - 2)
        return _size(leaving) <= SETTLED_BYTES and self._early(i, leaving, arriving) != self._early(i)

    def _all_scratch(self, i: int) -> list[Span]:
        start = self.plain[i].slots_offset
        return [_table_span(self.plain[i]), ("L1", start, start + self.nests[i].tiling.scratch_bytes)]

    def _slot_spans(self, i: int, operands: Iterable[Operand], first_only: bool = False) -> list[Span]:
        start, slots = self.plain[i].slots_offset, self.nests[i].tiling.slots
        found = []
        for operand in operands:
            slot = slots[operand.name]
            first = start + slot.offset_bytes
            found.append(("L1", first, first + (1 if first_only else slot.count) * slot.slot_bytes))
        return found

    def _homes(self, i: int, operands: Iterable[Operand], tile: Tile | None) -> list[Bytes]:
        """Of the boxes that a tile touches, where they live."""
        if tile is None:
            return []
        nest = self.nests[i]
        found = []
        for operand in operands:
            assert operand.value is not None
            address = self.plan.address(self.entry, operand.value, nest.launch)
            size = nest.element_bytes[operand.name]
            found.append(box_bytes(operand, tile, address.region, address.offset, size))
        return [one for one in found if one is not None]

    def _on_their_way(self, i: int) -> tuple[list[Span], list[Bytes]]:
        """What nest `i` may still be storing when it ends: from scratchpad, to L2."""
        if i < 0 or not self.done[i].leaves:
            return [], []
        results = self.nests[i].operands(Access.WRITE)
        return self._slot_spans(i, results), self._homes(i, results, self.nests[i].tile(-1))

    def _early(self, i: int, leaving: Sequence[Span] = (), arriving: Sequence[Bytes] = ()) -> tuple[str, ...]:
        """Operands that need nothing that is not there before the last tile of the nest before, and have room; beside
        what may be on its way."""
        if i == 0 or self.plain[i].is_fetched_late:
            return ()
        before = self.nests[i - 1]
        results = before.operands(Access.WRITE)
        scratch = [*self._all_scratch(i - 1), *self._taken_spans(i - 1), *leaving]
        homes = [home for step in (-1, -2) for home in self._homes(i - 1, results, before.tile(step))]
        homes += [*arriving, *self._arriving_from_l3(before.launch, self.nests[i].launch)]
        return tuple(
            operand.name
            for operand in self.nests[i].operands(Access.READ)
            if not overlaps(self._slot_spans(i, [operand], first_only=True), scratch)
            and not meet(self._homes(i, [operand], self.nests[i].tile(0)), homes)
        )

    def _taken(self, i: int) -> dict[str, int]:
        """Operands that are whole in scratchpad when the nest before ends, as this nest needs them all the time."""
        if i == 0:
            return {}
        made = {}
        for operand in self.nests[i - 1].operands(Access.WRITE):
            whole = self._whole_home(i - 1, operand)
            if whole is not None:
                ((_, first, _),) = self._slot_spans(i - 1, [operand])
                made[whole] = first
        found = {operand.name: self._whole_home(i, operand) for operand in self.nests[i].operands(Access.READ)}
        return {name: made[whole] for name, whole in found.items() if whole in made}

    def _whole_home(self, i: int, operand: Operand) -> Span | None:
        """Where a tensor lives, if one slot of the nest holds all of it, for all of its tiles."""
        nest = self.nests[i]
        assert operand.value is not None
        if not is_held_whole(operand, nest.nest, nest.tiling.loops):
            return None
        address = self.plan.address(self.entry, operand.value, nest.launch)
        return address.region, address.offset, address.offset + nest.size_of(operand)

    def _taken_spans(self, i: int) -> list[Span]:
        nest, taken = self.nests[i], self.done[i].taken
        reads = [operand for operand in nest.operands(Access.READ) if operand.name in taken]
        return [("L1", taken[o.name], taken[o.name] + nest.size_of(o)) for o in reads]

    def _begins_at_once(self, i: int) -> bool:
        """Whether nothing is left to do between the nest before and this one."""
        place = self.done[i]
        if i == 0 or place.is_fetched_late or not self.done[i - 1].leaves:
            return False
        reads = {operand.name for operand in self.nests[i].operands(Access.READ)}
        launches = range(self.nests[i - 1].launch + 1, self.nests[i].launch + 1)
        has_moves = any(move.start in launches or move.wait in launches for move in self.moves)
        if has_moves or reads - {*place.early, *place.taken}:
            return False
        following = [_table_span(self.plain[i + 1])] if i + 1 < len(self.nests) else []
        is_apart = not overlaps(self._all_scratch(i), [_table_span(self.plain[i - 1])])
        return is_apart and not overlaps(self._taken_spans(i), following) and not self._drains(i)

    def _arriving_from_l3(self, after: int, launch: int) -> list[Bytes]:
        return [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for move in self.moves
            if move.inward and after < move.wait <= launch
        ]

    def _leaves(self, i: int) -> bool:
        """Unless L3 takes the results, or fills their place where nobody needs them, or scratchpad has no room."""
        following = self.nests[i + 1].launch if i + 1 < len(self.nests) else self.launch_count
        results = self._homes(i, self.nests[i].operands(Access.WRITE), self.nests[i].tile(-1))
        taken = [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for move in self.moves
            if self.nests[i].launch < move.start <= following
        ]
        is_next_late = i + 1 < len(self.nests) and self.plain[i + 1].is_fetched_late
        return not is_next_late and not meet(results, taken)

    def _drains(self, i: int) -> bool:
        """Whether something of nest `i`, up to its first tile, meets what the nest before still stores."""
        leaving, arriving = self._on_their_way(i - 1)
        if not leaving:
            return False
        nest = self.nests[i]
        reads = [operand for operand in nest.operands(Access.READ) if operand.name not in self.done[i].taken]
        loads = self._homes(i, [o for o in reads if o.name not in self.done[i].early], nest.tile(0))
        if nest.tiling.is_double:
            loads += self._homes(i, reads, nest.tile(1))
        scratch = self._all_scratch(i)
        if i + 1 < len(self.nests):
            scratch.append(_table_span(self.plain[i + 1]))
        return meet(loads, arriving) or overlaps(scratch, leaving)


def _size(spans: Iterable[Span]) -> int:
    return sum(stop - first for _, first, stop in spans)


def _place(nest: TiledNest, first: int, capacity: int) -> NestPlace:
    """At either end of scratchpad the table is at the outside, where the nest before does not reach."""
    is_on_top = 0 < first == capacity - nest.size_bytes
    table, slots = (first + nest.tiling.scratch_bytes, first) if is_on_top else (first, first + nest.table_bytes)
    return NestPlace(nest.launch, nest.number, nest.table, table, nest.table_bytes, slots)


def _table_span(place: NestPlace) -> Span:
    return ("L1", place.table_offset, place.table_offset + place.table_bytes)
