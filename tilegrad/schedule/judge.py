"""What a tiling costs, and what one nest waits for behind another: by playing both on the clock.

Tiles are played with the average of what they move and compute, until one takes as long as the one before; the rest
take as long as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

from tilegrad.analysis.footprint import Level, box_shape, inner_loops, load_count, transfer_levels, units_of
from tilegrad.costs.clock import Clock, Reason, SharedMemory
from tilegrad.costs.conduct import Act
from tilegrad.costs.kernel_cost import KernelCosts, Span
from tilegrad.costs.own_loops import WHOLE, Ends
from tilegrad.ir.blocks import share as own_share
from tilegrad.ir.nest import Access, AxisKind, Nest, along
from tilegrad.ir.schedule import Loop, TileEstimate
from tilegrad.schedule.candidates import Candidate
from tilegrad.targets.base import Target

MOST_PLAYED = 4  # tiles until all are alike
LEAST_AHEAD = 3  # tiles of a nest that can request one before another begins
MOST_UNITS = 64  # of which each is looked at


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Of one operand: how often its box is moved, and what one box is, on average."""

    inward: bool
    loads: int
    size_bytes: float
    parts: int
    rows: int

    def moved(self, share: float) -> _Moved:
        rows = 1 + round(share * self.parts * (self.rows - 1))
        return self.inward, share, share * (self.parts - 1), share * self.size_bytes, rows


_Moved = tuple[bool, float, float, float, int]
"""A share of a box on its way: whether inward, the share, that of further parts, its bytes and rows."""


@dataclass(frozen=True, slots=True)
class Play:
    """All that playing a nest depends on. What is moved at first and at last, and on average before each next tile."""

    kernels: tuple[str, ...]  # with the form of their loops
    count: int
    compute_cycles: float
    busy_cycles: float  # of the engine
    span: Span
    is_double: bool
    load_act: Act  # of the first box of a step
    is_large: bool  # double, with results that take several commands: these leave right behind their tile
    reads: Sequence[_Moved]
    results: Sequence[_Moved]
    next_reads: Sequence[_Moved]
    next_results: Sequence[_Moved]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What blocks of a launch bring before those of the one before have met, and in how many cycles."""

    operands: frozenset[str] = frozenset()
    cycles: float = 0.0


NOTHING_AHEAD = Ahead()
Shapes = tuple[tuple[int, int], ...]


class _Kind(NamedTuple):
    """Tiles of one size along a loop that begin or end the sums along it alike."""

    axis: str
    size: int
    times: int
    ends: Ends = WHOLE


def _kinds_of(loop: Loop, is_sum: bool) -> list[_Kind]:
    """Full tiles and a ragged one; along a sum, the first and the last are others than those between."""
    full, rest = divmod(loop.extent, loop.tile)
    if not is_sum or full + (rest > 0) < 2:
        kinds = [_Kind(loop.axis, loop.tile, full), _Kind(loop.axis, rest, int(rest > 0))]
    else:
        kinds = [
            _Kind(loop.axis, loop.tile, 1, Ends(True, False)),
            _Kind(loop.axis, loop.tile, full - 1 - (rest == 0), Ends(False, False)),
            _Kind(loop.axis, rest or loop.tile, 1, Ends(False, True)),
        ]
    return [kind for kind in kinds if kind.times]


class Judge:
    def __init__(self, target: Target, costs: KernelCosts) -> None:
        self.target = target
        self.costs = costs
        self.clock = Clock(target, costs)
        self.levels: dict[object, list[tuple[Level, ...]]] = {}  # of each operand's boxes, by nest and axes cut
        self.known: dict[object, float] = {}  # waits that were played, by the shape of what is moved

    def _fresh(self) -> Clock:
        self.clock.restart()
        return self.clock

    def estimate(
        self, nest: Nest, candidate: Candidate, compute_cycles: float, overlaps: bool, shown: float
    ) -> TileEstimate:
        """`overlaps`: neighbours hide a part of its first loads and last stores, and `shown` is the other part."""
        traffic = self._traffic(nest, candidate)
        play = self._to_play(nest, candidate, traffic, compute_cycles, candidate.tile_count)
        total, first, last = self._play(play)
        asks_ahead = False
        if play.is_double and play.count >= LEAST_AHEAD and not play.is_large:
            ahead = self._play(play, asks_ahead=True)
            asks_ahead = ahead[0] < total
            total, first, last = min((total, first, last), ahead)
        steady = total - first - last
        hides = overlaps and (play.is_double or play.count == 1)
        cycles = steady + (first + last) * shown if hides else total
        reason = "double buffered" if play.is_double else "single buffered"
        costs = (cycles, play.compute_cycles, play.busy_cycles, candidate.traffic_bytes)
        return TileEstimate(*costs, reason, steady, asks_ahead)

    def bytes_per_cycle(self, blocks: int) -> float:
        """What an engine moves in one direction, where so many are at work."""
        engine, memory = self.target.engine(self.target.home, self.target.compute), self.target.memory(self.target.home)
        own = 1.0 / engine.inward.cycles_per_byte
        return own if memory.bytes_per_cycle is None else min(own, memory.bytes_per_cycle / blocks)

    def estimate_over(self, nest: Nest, candidate: Candidate, blocks: int, ahead: Ahead) -> TileEstimate:
        """Of a launch over blocks: that of the block with most tiles, while all others do the same. Nobody hides its
        last stores, nor first loads but those that come `ahead`; its table comes first, and all meet at the end."""
        units, tiles = units_of(nest, candidate.loops)
        engine = self.target.compute_engine(nest.counts_macs)
        clusters = min(self.target.clusters * (1 if engine is None else engine.lanes), units)
        own = -(-units // clusters) * tiles
        share = own / candidate.tile_count
        traffic = [replace(one, loads=max(1, round(one.loads * share))) for one in self._traffic(nest, candidate)]
        compute = self._busiest_cycles(nest, candidate, units, clusters)
        memory = self.target.memory(self.target.home)
        if memory.bytes_per_cycle is not None:
            self.clock.near.shared = SharedMemory(memory.bytes_per_cycle, clusters)
        play = self._to_play(nest, candidate, traffic, compute, own)
        reads = [(one, operand.name) for one, operand in zip(traffic, nest.present, strict=True) if one.inward]
        early = [one for one, name in reads if name in ahead.operands]
        has_time = sum(one.size_bytes for one in early) <= ahead.cycles * self.bytes_per_cycle(clusters)
        if has_time and all(one.parts == 1 for one in early):  # else whoever asks may wait for the engine's queue
            play = replace(play, reads=[one.moved(1.0) for one, name in reads if name not in ahead.operands])
        total, _, _ = self._play(play)
        self.clock.near.shared = None
        total += 2 * self.target.signal_cycles + self.clock.near.engine.inward.setup_cycles
        reason = f"over blocks, {'double' if candidate.is_double else 'single'} buffered"
        busy = sum(one.loads * one.size_bytes for one in traffic) / self.bytes_per_cycle(blocks)
        return TileEstimate(total, compute, busy, candidate.traffic_bytes, reason, total)

    def _traffic(self, nest: Nest, candidate: Candidate) -> list[_Traffic]:
        found = []
        cut = nest.kind, tuple([loop.axis for loop in candidate.loops])
        levels = self.levels.get(cut)
        if levels is None:
            levels = self.levels[cut] = [transfer_levels(one, nest, candidate.loops) for one in nest.present]
        for operand, moved, own in zip(nest.present, candidate.moved_bytes, levels, strict=True):
            loads = load_count(operand, candidate.loops)
            box = box_shape(operand, candidate.sizes)
            counts = [level.size(box) for level in own]
            rows = counts[1] if len(counts) > 1 else 1
            inward = operand.access is Access.READ
            found.append(_Traffic(inward, loads, moved / loads, prod(counts[2:]), rows))
        return found

    def compute_cycles(self, nest: Nest, candidate: Candidate, given: Mapping[str, int] | None = None) -> float:
        """Over all tiles: full and ragged ones along each loop, but for those along which sizes are `given`."""
        fixed = given or {}
        sums = {axis.name for axis in nest.axes if axis.kind is AxisKind.REDUCTION}
        kinds = [_kinds_of(loop, loop.axis in sums) for loop in candidate.loops if loop.axis not in fixed]
        total = 0.0
        for choice in product(*kinds):
            sizes, times, is_first, is_last = {**candidate.sizes, **fixed}, 1, True, True
            for axis, size, often, ends in choice:
                sizes[axis] = size
                times *= often
                is_first, is_last = is_first and ends.first, is_last and ends.last
            place = self.target.compute, self.target.cores, Ends(is_first, is_last)
            total += times * self.costs.cycles(nest, sizes, *place)
        return total

    def _busiest_cycles(self, nest: Nest, candidate: Candidate, units: int, blocks: int) -> float:
        """Of the block whose units take longest. Of many, the last ones along a loop make no difference."""
        split = candidate.loops[: len(candidate.loops) - inner_loops(nest, candidate.loops)]
        if units > MOST_UNITS or all(loop.extent % loop.tile == 0 for loop in split):
            return -(-units // blocks) / units * self.compute_cycles(nest, candidate)
        cycles: dict[tuple[int, ...], float] = {}
        every = []
        for places in product(*(range(loop.count) for loop in split)):
            ends = zip(places, split, strict=True)
            sizes = tuple(min(loop.tile, loop.extent - place * loop.tile) for place, loop in ends)
            if sizes not in cycles:
                given = {loop.axis: size for loop, size in zip(split, sizes, strict=True)}
                cycles[sizes] = self.compute_cycles(nest, candidate, given)
            every.append(cycles[sizes])
        return max(sum(every[slice(*own_share(units, block, blocks))]) for block in range(blocks))

    def _move(self, clock: Clock, box: _Moved, act: Act) -> float:
        """A share of a box; when it has arrived."""
        inward, share, further, size_bytes, rows = box
        clock.act(act, share)
        if further > 0:
            clock.act(Act.PART, further)
            clock.latest = act
            clock.spend(further * clock.near.engine.enqueue_cycles)
        return clock.command(clock.near, inward, size_bytes, rows)[1]

    def _load(self, clock: Clock, play: Play) -> list[float]:
        """What the next tile reads, on average; when it has arrived."""
        boxes = enumerate(play.next_reads)
        return [self._move(clock, box, Act.NEXT_LOAD if k else play.load_act) for k, box in boxes]

    def _to_play(
        self, nest: Nest, candidate: Candidate, traffic: Sequence[_Traffic], compute: float, count: int
    ) -> Play:
        """`count` tiles that `compute` so many cycles."""
        reads, results = [one for one in traffic if one.inward], [one for one in traffic if not one.inward]
        inner = 1.0 / max(count - 1, 1)  # of what is moved between tiles, the share of one step
        engine, busy = self.clock.near.engine, 0.0
        for one in traffic:
            timing = engine.inward if one.inward else engine.outward
            rows = (one.rows - 1) * one.parts * timing.cycles_per_extra_row
            busy += one.loads * (one.size_bytes * timing.cycles_per_byte + rows)
        whole = self.costs.span(nest, candidate.sizes, self.target.compute, self.target.cores)
        return Play(
            self.costs.code_of(nest, candidate.sizes),
            count,
            compute,
            busy,
            whole.times(compute / count / whole.cycles if whole.cycles else 1.0),  # the average
            candidate.is_double,
            Act.SIMPLE_LOAD if self._is_simple(nest, candidate) else Act.OTHER_LOAD,
            candidate.is_double and any(one.parts > 1 for one in results),
            [one.moved(1.0) for one in reads],
            [one.moved(1.0) for one in results],
            [one.moved(inner * (one.loads - 1)) for one in reads if one.loads > 1],
            [one.moved(inner * (one.loads - 1)) for one in results if candidate.is_double or one.loads > 1],
        )

    def _play(self, play: Play, asks_ahead: bool = False) -> tuple[float, float, float]:
        """Cycles of all tiles, of the first loads, and of the last stores."""
        clock, is_double, count, span = self._fresh(), play.is_double, play.count, play.span
        clock.latest = Act.WAIT_STORE
        clock.act(Act.ENTER)
        loaded = [self._move(clock, box, Act.FIRST_LOAD) for box in play.reads]
        clock.act(Act.WAIT_LOAD)
        clock.stall_until(max(loaded, default=0.0), Reason.LOAD)
        first = before = latest = computed = clock.now
        leaving, coming = list[float](), list[float]()
        played, accesses_per_cycle = min(count, MOST_PLAYED), span.accesses_per_cycle
        for tile in range(played):
            clock.act(Act.BEGIN if tile else Act.BEGIN_FIRST)
            cold = clock.cold_cycles(play.kernels, self.target.compute)
            clock.begin(span.cycles, accesses_per_cycle)
            if not tile:
                clock.act(Act.FETCH)  # the next nest's table
                clock.act(Act.PART)
            stored, loaded = list[float](), list[float]()
            if is_double and tile + 1 < count and not (asks_ahead and tile):
                stored = [self._move(clock, box, Act.STORE) for box in play.next_results if tile and not play.is_large]
                loaded = self._load(clock, play)
            clock.act(Act.END)
            clock.end(span.later(cold) if cold else span)
            computed = clock.now
            if asks_ahead and tile + 2 < count:
                self._settle(clock, leaving, Act.WAIT_STORE, Reason.STORE)
                clock.computes_until = clock.now + span.cycles  # the next tile begins while this moves
                leaving = [self._move(clock, box, Act.STORE) for box in play.next_results]
                coming, loaded = loaded or coming, self._load(clock, play)
                self._settle(clock, coming, Act.WAIT_LOAD, Reason.LOAD)
                coming = loaded
            elif tile + 1 < count:
                loaded = loaded or coming
                if play.is_large:
                    self._settle(clock, leaving, Act.WAIT_STORE, Reason.STORE)
                if not is_double or play.is_large:
                    leaving = stored = [self._move(clock, box, Act.STORE) for box in play.next_results]
                if not play.is_large:
                    self._settle(clock, stored, Act.WAIT_STORE, Reason.STORE)
                if not is_double:
                    loaded = self._load(clock, play)
                self._settle(clock, loaded, Act.WAIT_LOAD, Reason.LOAD)
            before, latest = latest, clock.now
        # Nothing is moved behind the last tile but its results.
        repeated = (count - played) * (latest - before) - (latest - computed)
        left = [self._move(clock, box, Act.STORE) for box in play.results]
        clock.stall_until(max(left, default=0.0), Reason.STORE)
        return clock.now + repeated, first, clock.now - latest

    def _settle(self, clock: Clock, ends: Sequence[float], act: Act, reason: Reason) -> None:
        if ends:
            clock.act(act)
            clock.stall_until(max(ends), reason)

    def exposed(self, compute: float, hidden: Shapes, stores: Shapes = (), waiting: Shapes = ()) -> float:
        """Cycles between two nests: `hidden` is loaded while the last tile of the first computes. If the second reads
        what that one `stores`, it waits for it, then for what is `waiting`."""
        key = (compute, hidden, stores, waiting)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._exposed(*key)
        return found

    def _exposed(self, compute: float, hidden: Shapes, stores: Shapes, waiting: Shapes) -> float:
        clock = self._fresh()
        clock.begin(compute)
        arrived = [self._box(clock, box, Act.FIRST_LOAD) for box in hidden]
        clock.now = 0.0  # that the conductor is late is counted with the nest
        clock.end(Span(compute, 0.0, 0.0))
        clock.latest = Act.END
        if stores:
            self._settle(clock, [self._box(clock, box, Act.STORE) for box in stores], Act.WAIT_STORE, Reason.STORE)
        arrived += [self._box(clock, box, Act.FIRST_LOAD) for box in waiting]
        clock.stall_until(max(arrived, default=0.0), Reason.LOAD)
        return clock.now - compute

    def _box(self, clock: Clock, shape: tuple[int, int], act: Act) -> float:
        rows, row_bytes = shape
        return self._move(clock, (act is not Act.STORE, 1.0, 0.0, rows * row_bytes, rows), act)

    def _is_simple(self, nest: Nest, candidate: Candidate) -> bool:
        """Whether most steps are simple ones in the table that the candidate would get, nearly."""
        if not candidate.is_double or not candidate.loops:
            return False
        axis = candidate.loops[-1].axis
        moved = [index for o in nest.operands for index in o.index or () if index.coefficient(axis)]
        return all(index == along(axis) for index in moved)
