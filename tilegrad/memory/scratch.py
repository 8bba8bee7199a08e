"""Where nests work in scratchpad, and what of them overlaps with their neighbours.

Nests take turns at the bottom and the top of scratchpad, so that the next one's table and first operands can come while
a nest still computes, and its last results can leave while the next one does. Whether they may is a question of bytes:
in scratchpad, and in L2, where an operand must not be fetched before what writes it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilegrad.ir.nest import Access, Nest, Operand
from tilegrad.ir.plan import EntryPlan, NestPlace, Plan
from tilegrad.ir.schedule import Tiling
from tilegrad.memory.lifetimes import align, temporaries
from tilegrad.scheduling.tables import argument_fields, described_bytes, table_words

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

    def operands(self, access: Access) -> list[Operand]:
        return [o for o in self.nest.operands if o.value is not None and o.access is access]


def overlaps(a: Iterable[Span], b: Iterable[Span]) -> bool:
    others = list(b)
    return any(r == s and start < last and first < stop for r, start, stop in a for s, first, last in others)


class TableMaker:
    """Makes each kind's table once."""

    def __init__(self, longest_bytes: int) -> None:
        self.longest_bytes = longest_bytes
        self.known: dict[object, tuple[int, ...]] = {}

    def table(
        self, op: str, nest: Nest, tiling: Tiling | None, element_bytes: Mapping[str, int]
    ) -> tuple[int, ...]:
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
    limit = min(capacity, max(map(_wanted, nests.values()), default=0))
    entries = {}
    for name, own in nests.items():
        entries[name] = replace(plan.entries[name], places=_Placing(plan, name, own, limit).places())
    return replace(plan, entries=entries), limit


def _wanted(nests: Sequence[TiledNest]) -> int:
    """What two neighbours take together at most."""
    sizes = [nest.size_bytes for nest in nests]
    return max((a + b for a, b in pairwise([*sizes, 0])), default=0)


class _Placing:
    def __init__(self, plan: Plan, entry: str, nests: Sequence[TiledNest], limit: int) -> None:
        self.plan = plan
        self.entry = entry
        self.entry_plan: EntryPlan = plan.entries[entry]
        self.nests = nests
        self.limit = limit

    def places(self) -> tuple[NestPlace, ...]:
        plain = [self._place(i) for i in range(len(self.nests))]
        result: list[NestPlace] = []
        for i, place in enumerate(plain):
            late = i > 0 and overlaps([self._table_span(place)], self._all_scratch(i - 1, plain))
            result.append(replace(place, is_fetched_late=late))
        return tuple(result)

    def _place(self, i: int) -> NestPlace:
        """Even ones at the bottom, odd ones at the top, each with its table at the outer end."""
        nest = self.nests[i]
        table, slots = (0, nest.table_bytes)
        if i % 2:
            table = self.limit - nest.table_bytes
            slots = table - nest.tiling.scratch_bytes
        return NestPlace(nest.launch, nest.number, nest.table, table, nest.table_bytes, slots)

    def _table_span(self, place: NestPlace) -> Span:
        return ("L1", place.table_offset, place.table_offset + place.table_bytes)

    def _all_scratch(self, i: int, places: Sequence[NestPlace]) -> list[Span]:
        place, nest = places[i], self.nests[i]
        slots = ("L1", place.slots_offset, place.slots_offset + nest.tiling.scratch_bytes)
        return [self._table_span(place), slots]
