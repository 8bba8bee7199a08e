"""Plans and listings so small that their events and cycles can be written down by hand.

The chip has round numbers and kernels cost what a formula of one line says; everything between is the real thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast
from unittest import mock

from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.tables import Encoder
from tilegrad.costs.conduct import Act, Conduct, PairCost
from tilegrad.costs.kernel_cost import Span
from tilegrad.costs.own_loops import Ends
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.listing import (
    CORES,
    Begin,
    End,
    Enter,
    EntryListing,
    Event,
    Fetch,
    ListedNest,
    Listing,
    Load,
    Move,
    Part,
    Place,
    Queue,
    Store,
    Wait,
)
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, Range, along
from tilegrad.ir.plan import Address, EntryPlan, MemoryUse, NestPlace, Plan, Staging
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Loop, Schedule, Slot, TileEstimate, Tiling
from tilegrad.ir.types import DType, TensorType
from tilegrad.recipe import Recipe
from tilegrad.sequence import timing
from tilegrad.sequence.sequence import _Sequencing
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import L1, L2, L3, CoreCosts, DmaEngine, DmaTiming, Memory, Target

ENTRY = "step"
NEAR, FAR, KERNELS = Queue(0, "L2-L1"), Queue(0, "L3-L2"), Queue(0, CORES)
NO_ESTIMATE = TileEstimate(0.0, 0.0, 0.0, 0, "")
FREE = Conduct()

MCHAN = DmaEngine(
    "mchan", L1, L2, DmaTiming(10, 1, 3), DmaTiming(10, 2, 3),
    enqueue_cycles=5, queue_depth=2, longest_bytes=128, has_2d=True, duplex=True, overlaps_setup=True,
)  # fmt: skip
HYPER = DmaEngine(
    "hyper", L2, L3, DmaTiming(100, 2), DmaTiming(100, 4),
    enqueue_cycles=20, queue_depth=1, longest_bytes=64, has_2d=False, duplex=False, overlaps_setup=False,
)  # fmt: skip
CHIP = Target(
    "toy",
    "round numbers",
    (Memory(L1, 4096, 8), Memory(L2, 8192, 8, 10), Memory(L3, 8192, 8, None)),
    L2,
    L1,
    (MCHAN, HYPER),
    cores=8,
    fpus=4,
    costs=CoreCosts(),
)


def chip(mchan: Mapping[str, Any] | None = None, hyper: Mapping[str, Any] | None = None, cores: int = 8) -> Target:
    engines = (replace(MCHAN, **(mchan or {})), replace(HYPER, **(hyper or {})))
    return replace(CHIP, engines=engines, cores=cores)


@dataclass
class ToyCosts:
    """A kernel call takes 20 cycles and 10 for each step, and cores load or store once a cycle; beside the core on its
    FPU a step takes `sharing` as long, and where another kernel ran before it takes `cold` more. What ends sums that
    are cut takes `finish` more."""

    target: Target = CHIP
    sharing: float = 1.0
    conduct: Conduct = FREE
    slower: float = 1.0
    cold: float = 0.0
    finish: float = 0.0

    def code_of(self, nest: Nest, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return nest.kernels

    def span(self, nest: Nest, sizes: Mapping[str, int], level: str, cores: int, ends: Ends | None = None) -> Span:
        alone = 10.0 * prod(sizes.values()) * self.slower * (1 if level == L1 else 2)
        alone += self.finish * (ends is not None and ends.last)
        shared = self.sharing * alone
        return Span(shared + 20, alone, shared, shared + 20)

    def cycles(self, nest: Nest, sizes: Mapping[str, int], level: str, cores: int, ends: Ends | None = None) -> float:
        return self.span(nest, sizes, level, cores, ends).cycles

    def cold_cycles(self, kernel: str, level: str) -> float:
        return self.cold


def conduct(
    acts: Mapping[Act, float],
    pairs: Mapping[tuple[Act, Act], float] | None = None,
) -> Conduct:
    """What each act takes, whatever comes before it, but for some pairs."""
    return Conduct({pair: PairCost(cycles) for pair, cycles in (pairs or {}).items()}, acts)


def timed(listing: Listing, costs: ToyCosts | None = None) -> EntryTiming:
    own = costs or ToyCosts()
    with mock.patch.object(timing, "kernel_costs", lambda target: own):
        return time_listing(listing)[ENTRY]


# Nests.


def copy_nest(extent: int = 8, source: str = "X", result: str = "Y", reach: int = 0) -> Nest:
    """y[m] = x[m + reach]."""
    x = Operand("x", source, Access.READ, (extent,), (Index((("m", 1),), reach),))
    return Nest("copy", (Axis("m", extent),), (x, Operand("y", result, Access.WRITE, (extent,), (along("m"),))))


def sum_nest(m: int = 6, k: int = 8, source: str = "X", result: str = "Y") -> Nest:
    """y[m] = sum over k of x[m, k]."""
    axes = (Axis("m", m), Axis("k", k, AxisKind.REDUCTION))
    x = Operand("x", source, Access.READ, (m, k), (along("m"), along("k")))
    return Nest("sum", axes, (x, Operand("y", result, Access.WRITE, (m,), (along("m"),))))


def tiling_of(nest: Nest, tiles: Mapping[str, int], is_double: bool = True, order: Sequence[str] = ()) -> Tiling:
    """Slots one behind the other, as the search lays them."""
    from tilegrad.analysis.footprint import box_shape, moving_axes

    names = order or [axis.name for axis in nest.axes]
    loops = tuple(Loop(name, nest.axis(name).extent, tiles[name]) for name in names if name in tiles)
    sizes = {axis.name: tiles.get(axis.name, axis.extent) for axis in nest.axes}
    slots, at = {}, 0
    for operand in nest.present:
        slot_bytes = align(prod(box_shape(operand, sizes)) * operand.element_bytes, 8)
        slots[operand.name] = Slot(at, slot_bytes, 2 if is_double and moving_axes(operand, loops) else 1)
        at += slot_bytes * slots[operand.name].count
    return Tiling(loops, slots, is_double, at, NO_ESTIMATE)


# Plans: each nest is a launch of its own, values lie in the arena in the order in which they appear.


@dataclass(frozen=True)
class Toy:
    nests: Sequence[tuple[Nest, Tiling | None]]
    target: Target = CHIP
    overlaps: bool = True
    at: Mapping[str, int] = field(default_factory=dict)  # offsets of values that do not lie behind the others
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # table and slots, where not one by one
    staging: tuple[Staging, ...] = ()
    l3_bytes: int = 0

    @property
    def values(self) -> dict[str, tuple[int, ...]]:
        return {o.value: o.shape for nest, _ in self.nests for o in nest.present if o.value is not None}

    def offsets(self) -> dict[str, int]:
        found, behind = dict(self.at), 0
        for value, shape in self.values.items():
            if value not in found:
                found[value] = behind
                behind += align(4 * prod(shape), 8)
        return found

    def listed(self) -> tuple[ListedNest, ...]:
        longest, behind, found = self.target.engine(L2, L1).longest_bytes, 0, []
        for number, (nest, tiling) in enumerate(self.nests):
            table, place = None, None
            if tiling is not None:
                encoder = Encoder(nest, tiling, (), longest)
                table, table_bytes = encoder.words, align(encoder.described_bytes, 8)
                at = self.places.get(number, (behind, behind + table_bytes))
                place = NestPlace(number, 0, at[0], table_bytes, at[1])
                behind = max(behind, at[0] + table_bytes, at[1] + tiling.scratch_bytes)
            found.append(ListedNest(number, 0, nest, tiling, place, table))
        return tuple(found)

    def plan(self) -> Plan:
        offsets, values = self.offsets(), self.values
        types = {value: TensorType(DType.F32, shape) for value, shape in values.items()}
        written = {o.value for nest, _ in self.nests for o in nest.results}
        read = {o.value for nest, _ in self.nests for o in nest.reads}
        inputs = tuple(value for value in values if value not in written)
        outputs = tuple(value for value in values if value in written and value not in read)
        launches = []
        for number, (nest, tiling) in enumerate(self.nests):
            own = tuple(str(o.value) for o in nest.reads), tuple(str(o.value) for o in nest.results)
            launches.append(Launch(Node(f"/n{number}", "Relu", *own), (nest,), (tiling,)))
        graph = Graph("toy", inputs, outputs, tuple(launch.node for launch in launches), types)
        program = Program("toy", Recipe(), "mse", (), {ENTRY: graph}, "", None)
        schedule = Schedule(program, self.target, {ENTRY: EntrySchedule(graph, tuple(launches), types)}, self.overlaps)
        arena = max(offsets[value] + align(types[value].size_bytes, 8) for value in values)
        addresses = {value: Address(L2, "arena", at) for value, at in offsets.items()}
        places = tuple(one.place for one in self.listed() if one.place is not None)
        entry = EntryPlan(addresses, (), {}, arena, 0, staging=self.staging, places=places)
        memory = {name: MemoryUse(self._used(name, arena), 8192, 0) for name in (L1, L2, L3)}
        return Plan(schedule, 8, {}, 0, 0, arena, {ENTRY: entry}, memory)

    def _used(self, memory: str, arena: int) -> int:
        if memory == L2:
            return arena
        if memory == L3:
            return max([self.l3_bytes, *(move.l3_offset + move.size_bytes for move in self.staging)])
        ends = [0]
        for one in self.listed():
            if one.place is not None and one.tiling is not None:
                ends += [one.place.table_offset + one.place.table_bytes]
                ends += [one.place.slots_offset + one.tiling.scratch_bytes]
        return max(ends)

    def listing(self) -> Listing:
        """What the stage makes of it, not yet proved. Kernels here have no argument words."""
        plan = self.plan()
        with mock.patch(
            "tilegrad.sequence.sequence.table_of",
            lambda op, nest, tiling, longest: Encoder(nest, tiling, (), longest).words,
        ):
            return Listing(plan, {ENTRY: _Sequencing(plan, ENTRY).listing()})


def with_events(listing: Listing, events: Sequence[Event], entry: str = ENTRY) -> Listing:
    own = replace(listing.entries[entry], events=tuple(events))
    return replace(listing, entries={entry: own})


# Events by hand.


def rows(size_bytes: int, count: int = 1, stride: int = 0) -> tuple[Part, ...]:
    return (Part(0, 0, size_bytes // count, count, stride),)


def load(transfer: int, size_bytes: int, nest: int = 0, tile: int = 0, count: int = 1) -> Load:
    return Load(NEAR, transfer, nest, tile, "x", (Range(0, 1),), 0, "arena", 0, rows(size_bytes, count, 999))


def store(transfer: int, size_bytes: int, nest: int = 0, tile: int = 0, count: int = 1) -> Store:
    return Store(NEAR, transfer, nest, tile, "y", (Range(0, 1),), 0, "arena", 0, rows(size_bytes, count, 999))


def fetch(transfer: int, nest: int, *sizes: int) -> Fetch:
    return Fetch(NEAR, transfer, nest, tuple(part for size in sizes for part in rows(size)))


def move(transfer: int, size_bytes: int, inward: bool = True) -> Move:
    return Move(FAR, transfer, "t", 0, 0, size_bytes, inward)


def wait(transfer: int, nest: int = 0) -> Wait:
    return Wait(NEAR, transfer, nest)


def wait_far(transfer: int, nest: int = 0) -> Wait:
    return Wait(FAR, transfer, nest)


def begin(size: int = 4, nest: int = 0, tile: int = 0) -> Begin:
    place = Place("L1", 0, (Range(0, 1),))
    return Begin(KERNELS, nest, tile, {"m": Range(0, size)}, (place, place))


def end(nest: int = 0, tile: int = 0) -> End:
    return End(KERNELS, nest, tile)


def by_hand(events: Sequence[Event], target: Target = CHIP, tiles: int = 1, tiled: bool = True) -> Listing:
    """These events, of as many nests as they enter, each a copy in so many tiles of 4."""
    nest = copy_nest(4 * tiles)
    tiling = tiling_of(nest, {"m": 4} if tiles > 1 else {}) if tiled else None
    count = sum(isinstance(event, Enter) for event in events)
    toy = Toy([(nest, tiling)] * count, target)
    # Tables and places only say how many tiles there are, and where operands would be.
    listed = tuple(replace(one, table=None, place=None) for one in toy.listed())
    return Listing(cast(Plan, toy.plan()), {ENTRY: EntryListing(listed, tuple(events))})
