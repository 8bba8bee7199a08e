"""Cycles of an entry, from the trace of what it did and what each thing costs.

The simulator's trace has every transfer, wait and kernel call in order. Here they are given time: one core conducts,
and joins the others in a kernel call when it has; DMA engines work beside them, and a wait lasts until its transfer is
done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path

from tilegrad.analysis.footprint import tiles
from tilegrad.analysis.tables import simple_steps
from tilegrad.costs.kernel_cost import TABLE_PARTS, KernelCosts, nest_trips
from tilegrad.errors import InternalError
from tilegrad.ir.nest import Nest, Tile, whole
from tilegrad.ir.plan import Plan
from tilegrad.sequence.events import Start
from tilegrad.sequence.scratch_events import Fetch, OfNest, entry_events
from tilegrad.targets.base import L2, L3

Interval = tuple[float, float]


@dataclass(frozen=True)
class HopTiming:
    """One pair of memories: bytes moved, cycles an engine worked, and how many of those cores computed meanwhile."""

    size_bytes: int
    busy_cycles: float
    hidden_cycles: float


@dataclass(frozen=True)
class NestTiming:
    """One nest of one launch."""

    node: str
    kernel: str
    tile_count: int
    cycles: float
    compute_cycles: float
    waiting_cycles: float
    macs: int


@dataclass(frozen=True)
class EntryTiming:
    """Estimated cycles of one call of an entry, and where they went: cores compute, or one conducts while no other
    computes, or all wait."""

    cycles: float
    compute_cycles: float
    conduct_cycles: float
    dma_wait_cycles: float
    l3_wait_cycles: float
    tile_count: int
    hops: dict[str, HopTiming]
    nests: tuple[NestTiming, ...]

    @property
    def stalled(self) -> float:
        """Share of the cycles in which no core computes."""
        return 1.0 - self.compute_cycles / self.cycles if self.cycles else 0.0


@dataclass
class _Channel:
    """One direction of an engine: transfers one after the other."""

    free: float = 0.0
    busy: list[Interval] = field(default_factory=list)
    size_bytes: int = 0

    def take(self, now: float, cycles: float, size_bytes: int) -> float:
        start = max(now, self.free)
        self.free = start + cycles
        self.busy.append((start, self.free))
        self.size_bytes += size_bytes
        return self.free


@dataclass(frozen=True)
class _Call:
    launch: int
    node: str
    nest: Nest
    tile: Tile
    level: str
    is_last: bool = True
    simple_steps: int = 0  # in a row, from tile to tile
    at_once: bool = False


def _calls(plan: Plan, entry: str) -> Iterator[_Call]:
    """Every kernel call of an entry, in order."""
    places = {(place.launch, place.nest): place for place in plan.entries[entry].places}
    target = plan.schedule.target
    for number, launch in enumerate(plan.schedule.entries[entry].launches):
        tilings = launch.tilings or (None,) * len(launch.nests)
        for k, (nest, tiling) in enumerate(zip(launch.nests, tilings, strict=True)):
            if tiling is None:
                yield _Call(number, launch.node.name, nest, whole(nest), target.home)
                continue
            place = places[number, k]
            ways = simple_steps(place.table), place.at_once
            every = tiles(nest, tiling.loops)
            for i, (tile, _) in enumerate(every):
                yield _Call(number, launch.node.name, nest, tile, target.compute, i + 1 == len(every), *ways)


_TABLE, _LOAD, _STORE, _FURTHER_PART = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)  # ends of CONDUCT_TRIPS
_NOTHING_MORE = (0, 0, 0, 0)


def _part_trips(plan: Plan, entry: str) -> Iterator[tuple[int, ...]]:
    """For each part that is moved, in order."""
    for event in entry_events(plan, entry) if plan.entries[entry].places else ():
        if isinstance(event, Fetch):
            yield _TABLE
            yield from [_NOTHING_MORE] * (TABLE_PARTS - 1)
        elif isinstance(event, OfNest) and isinstance(event.event, Start):
            yield _LOAD if event.event.inward else _STORE
            yield from [_FURTHER_PART] * (len(event.event.parts) - 1)


def read_trace(path: Path) -> dict[str, list[list[str]]]:
    """The events of the first call of each entry."""
    entries: dict[str, list[list[str]]] = {}
    events: list[list[str]] | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[0] == "B":
            events = entries.setdefault(words[1], [])
        elif words[0] == "E":
            events = None
        elif events is not None:
            events.append(words)
    return entries


class _Clock:
    def __init__(self, plan: Plan, entry: str, costs: KernelCosts) -> None:
        self.target = plan.schedule.target
        self.costs = costs
        self.calls = list(_calls(plan, entry))
        self.part_trips = list(_part_trips(plan, entry))
        self.added = 0
        self.engine = self.target.engine(self.target.home, self.target.compute)
        self.l3_engine = self.target.engine(L3, L2)
        self.now = self.compute = self.conduct = self.dma_wait = self.l3_wait = 0.0
        self.computing: list[Interval] = []
        self.channels = {True: _Channel(), False: _Channel()}
        if not self.engine.duplex:
            self.channels[False] = self.channels[True]
        self.l3_channel = _Channel()
        self.inward: dict[str, bool] = {}
        self.done: dict[str, float] = {}
        self.l3_done: dict[str, float] = {}
        self.position = 0
        self.forked: float | None = None  # when the kernel call under way began
        self.nests: list[NestTiming] = []
        self.nest_start = 0.0
        self.nest_compute = self.nest_wait = 0.0
        self.nest_tiles = 0

    def run(self, events: Sequence[Sequence[str]]) -> EntryTiming:
        handlers = {"o": self.open, "a": self.add, "w": self.wait, "k": self.fork, "j": self.join}
        handlers |= {"s": self.start_l3, "v": self.wait_l3, "n": self.enter}
        for kind, *words in events:
            handlers[kind](words)
        if self.position != len(self.calls):
            raise InternalError(f"the trace has {self.position} kernel calls, the schedule {len(self.calls)}")
        self._end_nest()
        hops = {self.engine.hop: self._hop(*{id(c): c for c in self.channels.values()}.values())}
        hops[self.l3_engine.hop] = self._hop(self.l3_channel)
        return EntryTiming(
            self.now,
            self.compute,
            self.conduct,
            self.dma_wait,
            self.l3_wait,
            len(self.calls),
            hops,
            tuple(self.nests),
        )

    def _conduct(self, *trips: float) -> None:
        """The conducting core works, in the order of CONDUCT_TRIPS."""
        conduct = self.costs.conduct
        self._spend(sum(map(mul, conduct.between if self.forked is None else conduct.meanwhile, trips)))

    def _spend(self, cycles: float) -> None:
        self.now += cycles
        self.conduct += cycles if self.forked is None else 0.0

    def enter(self, words: Sequence[str]) -> None:
        """A nest begins. Where it runs on operands in L2 its first call follows, and there is nothing to conduct."""
        self._end_nest()
        if self.position < len(self.calls) and self.calls[self.position].level == self.target.compute:
            call = self.calls[self.position]
            self._conduct(*nest_trips(len(call.nest.operands), call.at_once))

    def open(self, words: Sequence[str]) -> None:
        self.inward[words[0]] = words[1] == "1"
        self.done[words[0]] = self.now

    def add(self, words: Sequence[str]) -> None:
        request, row_bytes, rows = words[0], int(words[1]), int(words[2])
        inward = self.inward[request]
        timing = self.engine.inward if inward else self.engine.outward
        busy = row_bytes * rows * timing.cycles_per_byte + (rows - 1) * timing.cycles_per_extra_row
        self._conduct(0, 0, 0, 0, 0, 0, *self.part_trips[self.added])
        self.added += 1
        self._spend(self.engine.enqueue_cycles)
        free = self.channels[inward].take(self.now, busy, row_bytes * rows)
        self.done[request] = max(self.done[request], free + timing.setup_cycles)

    def wait(self, words: Sequence[str]) -> None:
        stall = max(0.0, self.done[words[0]] - self.now)
        self.now += stall
        if self.forked is None:
            self.dma_wait += stall
            self.nest_wait += stall

    def start_l3(self, words: Sequence[str]) -> None:
        request, inward, size_bytes = words[0], words[1] == "1", int(words[2])
        timing = self.l3_engine.inward if inward else self.l3_engine.outward
        self._spend(self.l3_engine.enqueue_cycles)
        pieces = -(-size_bytes // self.l3_engine.longest_bytes)
        busy = pieces * timing.setup_cycles + size_bytes * timing.cycles_per_byte
        self.l3_done[request] = self.l3_channel.take(self.now, busy, size_bytes)

    def wait_l3(self, words: Sequence[str]) -> None:
        stall = max(0.0, self.l3_done[words[0]] - self.now)
        self.l3_wait += stall
        self.now += stall

    def _step(self, after: int, call: _Call) -> None:
        """From one tile to the next: each step is conducted in part between kernel calls, in part meanwhile."""
        if (after + 1) % (call.simple_steps + 1):
            self._conduct(0, 0, 0, 1)
        else:
            self._conduct(0, 0, 0, 0, 1, len(call.nest.operands))

    def fork(self, words: Sequence[str]) -> None:
        call = self.calls[self.position]
        if self.nest_tiles:
            self._step(self.nest_tiles - 1, call)
        self.forked = self.now
        if call.level != self.target.compute:
            return
        if not self.nest_tiles:
            self._conduct(*nest_trips(len(call.nest.operands), call.at_once))
        if not call.is_last:
            self._step(self.nest_tiles, call)

    def join(self, words: Sequence[str]) -> None:
        assert self.forked is not None
        call = self.calls[self.position]
        self.position += 1
        sizes = {axis: tile_range.size for axis, tile_range in call.tile.items()}
        delay = self.now - self.forked
        span = self.costs.span(call.nest, sizes, call.level, self.target.cores)
        start, self.now = self.forked, self.forked + span.ending(delay)
        if self.target.cores == 1:  # nobody computes while it conducts
            self.conduct += delay
            start += delay
        self.computing.append((start, self.now))
        self.compute += self.now - start
        self.nest_compute += self.now - start
        self.nest_tiles += 1
        self.forked = None

    def _end_nest(self) -> None:
        if self.nest_tiles:
            call = self.calls[self.position - 1]
            self.nests.append(
                NestTiming(
                    call.node,
                    call.nest.kernel,
                    self.nest_tiles,
                    self.now - self.nest_start,
                    self.nest_compute,
                    self.nest_wait,
                    call.nest.macs,
                )
            )
        self.nest_start, self.nest_compute, self.nest_wait, self.nest_tiles = self.now, 0.0, 0.0, 0

    def _hop(self, *channels: _Channel) -> HopTiming:
        busy = _merged([interval for channel in channels for interval in channel.busy])
        return HopTiming(
            sum(channel.size_bytes for channel in channels),
            sum(stop - start for start, stop in busy),
            _overlap(busy, _merged(self.computing)),
        )


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for start, stop in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], stop))
        else:
            result.append((start, stop))
    return result


def _overlap(a: Sequence[Interval], b: Sequence[Interval]) -> float:
    total = 0.0
    i = k = 0
    while i < len(a) and k < len(b):
        total += max(0.0, min(a[i][1], b[k][1]) - max(a[i][0], b[k][0]))
        if a[i][1] < b[k][1]:
            i += 1
        else:
            k += 1
    return total


def time_entries(plan: Plan, trace: Path) -> dict[str, EntryTiming]:
    """Timing of each entry that was called at least once."""
    costs = KernelCosts(plan.schedule.target)
    return {entry: _Clock(plan, entry, costs).run(events) for entry, events in read_trace(trace).items()}
