"""Listing to timed listing: when each event begins and ends, on its queue, and what stands still why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilegrad.costs.clock import Channel, Clock, Interval, Reason, SharedMemory, Stall, merged, overlap_cycles
from tilegrad.costs.conduct import Act
from tilegrad.costs.kernel_cost import KernelCosts, Span, kernel_costs
from tilegrad.costs.own_loops import ends_of
from tilegrad.ir.listing import (
    Await,
    Barrier,
    Begin,
    End,
    Enter,
    Event,
    Fetch,
    Listing,
    Load,
    Move,
    Queue,
    Signal,
    Store,
    Transfer,
    Wait,
)
from tilegrad.sequence.acts import acts_of

_REASONS = {Fetch: Reason.TABLE, Load: Reason.LOAD, Store: Reason.STORE, Move: Reason.MOVE}
_State = tuple[float, float, Mapping[Reason, float]]  # of a clock: computed, conducted, stood still


def _block_of(event: Event) -> int:
    return 0 if isinstance(event, Enter | Barrier) else event.queue.block


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """`start` and `end` in cycles from the beginning of the entry. A transfer's are those of its bytes on the move, a
    kernel call's those between its `Begin` and its `End`; `stall` is what the conductor stood still for."""

    event: Event
    start: float
    end: float
    stall: Stall | None = None


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
class Roofline:
    """Of an entry's launches over blocks: what their busiest blocks compute, what the memory that all blocks share
    takes to move all bytes, and what they take at least, each the longer of the two; `bound_launches` of all `launches`
    wait for memory even then."""

    clusters: int
    memory: str
    bytes_per_cycle: float
    launches: int = 0
    bound_launches: int = 0
    cycles: float = 0.0
    compute_cycles: float = 0.0
    memory_cycles: float = 0.0
    least_cycles: float = 0.0

    def beside(self, cycles: float, compute_cycles: float, moving: float) -> Roofline:
        """With one more launch, in which the memory moves bytes for so many cycles."""
        return replace(
            self,
            launches=self.launches + 1,
            bound_launches=self.bound_launches + (moving > compute_cycles),
            cycles=self.cycles + cycles,
            compute_cycles=self.compute_cycles + compute_cycles,
            memory_cycles=self.memory_cycles + moving,
            least_cycles=self.least_cycles + max(moving, compute_cycles),
        )


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
    events: tuple[TimedEvent, ...] = ()
    roofline: Roofline | None = None


def time_listing(listing: Listing, costs: KernelCosts | None = None) -> dict[str, EntryTiming]:
    """Timing of each entry, from nothing but the listing. An update finds the code of the step before it in the
    instruction cache; before other entries, samples are made, and nothing of theirs is left."""
    costs = costs or kernel_costs(listing.plan.schedule.target)
    timings = {entry: _Timing(listing, entry, costs) for entry in listing.entries}
    if {"step", "update"} <= set(timings):
        timings["update"].clock.code = timings["step"].clock.code
    found = {entry: timings[entry].run() for entry in sorted(timings, key=lambda entry: entry == "update")}
    return {entry: found[entry] for entry in listing.entries}


NO_SPAN = Span(0.0, 0.0, 0.0)


@dataclass
class _Cluster:
    """A cluster while its events are played: its clock, and the kernel call under way."""

    clock: Clock
    span: Span = NO_SPAN


class _Timing:
    """Plays an entry's events on the clock, those of a launch on one for each cluster."""

    def __init__(self, listing: Listing, entry: str, costs: KernelCosts) -> None:
        self.entry = entry
        self.listing = listing
        self.own = listing.entries[entry]
        self.listed = self.own.nests
        self.target = listing.plan.schedule.target
        blocks = max((listed.blocks for listed in self.listed), default=0)
        members = max((listed.members for listed in self.listed), default=1)
        count = min(max(self.target.scratchpads, self.target.clusters * members), max(blocks, 1))
        self.clusters = [_Cluster(Clock(self.target, costs)) for _ in range(count)]
        self.nears = [cluster.clock.near for cluster in self.clusters]
        self.cluster = self.clusters[0]
        memory = self.target.memory(self.target.home)
        self.shared = None if memory.bytes_per_cycle is None else SharedMemory(memory.bytes_per_cycle)
        self.roofline: Roofline | None = None
        if memory.bytes_per_cycle is not None:
            self.roofline = Roofline(self.target.clusters, memory.name, memory.bytes_per_cycle)
        self.costs = costs
        self.done: dict[tuple[Queue, int], tuple[float, Reason]] = {}  # when, and what for others wait until then
        self.timed: list[TimedEvent] = []
        self.nests: list[NestTiming] = []
        self.nest: int | None = None
        self.told: dict[tuple[int, int, int, bool], list[tuple[int, float]]] = {}
        self.computing: dict[tuple[int, tuple[str, int]], float] = {}  # until when, by block and lane of an engine
        self.nest_start = self.compute_before = self.stalled_before = self.before = 0.0
        self.handlers: dict[type, Callable[..., None]] = {
            Enter: self.enter, Begin: self.begin, End: self.end, Wait: self.wait, Signal: self.signal,
            Await: self.awaits, Move: self.move, **dict.fromkeys((Fetch, Load, Store), self.transfer),
        }  # fmt: skip

    @property
    def clock(self) -> Clock:
        return self.cluster.clock

    def run(self) -> EntryTiming:
        acts = acts_of(self.own, self.entry)
        for event, act in acts:
            self._play(event, act)
            if isinstance(event, Enter) and self.listed[event.nest].blocks:
                self._launch(event.nest, acts)
        clock = self.clock
        if self.timed:
            clock.act(Act.STOP)
            clock.spend(self.costs.conduct.calls.get(self.entry, 0.0))
        self._end_nest()
        near = (Reason.LOAD, Reason.STORE, Reason.TABLE, Reason.QUEUE, Reason.PIPE, Reason.ENGINE)
        clocks = [cluster.clock for cluster in self.clusters]
        engines = [self.nears, [one.far for one in clocks if one.far is not None]]
        return EntryTiming(
            clock.now,
            clock.compute_cycles,
            clock.conduct_cycles,
            sum(clock.stall_cycles[reason] for reason in near),
            clock.stall_cycles[Reason.MOVE],
            sum(isinstance(event, Begin) for event in self.own.events),
            {own[0].engine.hop: self._hop([c for one in own for c in one.channels]) for own in engines if own},
            tuple(self.nests),
            tuple(self.timed),
            self.roofline if self.roofline is not None and self.roofline.launches else None,
        )

    def _play(self, event: Event, act: Act) -> None:
        self.before = self.clock.now
        self.clock.act(act)
        self.handlers[type(event)](event)

    def _launch(self, nest: int, acts: Iterator[tuple[Event, Act]]) -> None:
        """Blocks run side by side, those of one cluster one after the other; whoever is behind goes on, so that what
        they ask of shared memory comes in the order of time. The conductor goes on when the last has told it so: where
        the time went is told of that one."""
        main = self.clock
        events: list[list[tuple[Event, Act]]] = [[] for _ in self.clusters]
        joined = list[tuple[Enter, Act]]()
        for event, act in acts:
            if isinstance(event, Barrier):
                break
            if isinstance(event, Enter):  # of a nest that runs beside it
                joined.append((event, act))
                nest = event.nest
                continue
            events[self._place_of(nest, event.queue.block)].append((event, act))
        before_it, self.timed = self.timed, []
        main.spend(self.target.signal_cycles)
        began, states = main.now, []
        if self.shared is not None:
            self.shared.forget(began)
        for cluster, own in zip(self.clusters, events, strict=True):
            clock = cluster.clock
            states.append((clock.compute_cycles, clock.conduct_cycles, dict(clock.stall_cycles)))
            clock.now, clock.latest, clock.near.shared = began, Act.ENTER, self.shared
            own.reverse()
        while any(events):
            able = (i for i, own in enumerate(events) if own and self._is_able(own[-1][0]))
            number = min(able, key=lambda i: self.clusters[i].clock.now)
            self.cluster = self.clusters[number]
            self._play(*events[number].pop())
        last = max(range(len(self.clusters)), key=lambda i: self.clusters[i].clock.now)
        computed = [one.clock.compute_cycles - before[0] for one, before in zip(self.clusters, states, strict=True)]
        self._account(main, states[0], self.clusters[last].clock, states[last])
        for cluster in self.clusters:
            cluster.clock.near.shared = None
        self.cluster = self.clusters[0]
        self.timed = [*before_it, *sorted(self.timed, key=lambda one: _block_of(one.event))]
        main.spend(self.target.signal_cycles)
        if self.roofline is not None and self.shared is not None:
            moving = overlap_cycles(self.shared.busy, [(began, main.now)])
            self.roofline = self.roofline.beside(main.now - began, max(computed), moving)
        self.told.clear()
        self.computing.clear()
        for event, act in joined:
            self._play(event, act)
        self.timed.append(TimedEvent(Barrier(nest, self.listed[nest].blocks), began, main.now))

    def _is_able(self, event: Event) -> bool:
        """Whether a block can go on with this: not while it awaits what nobody has told."""
        return not isinstance(event, Await) or self._when_told(event) is not None

    def _when_told(self, event: Await) -> float | None:
        told = self.told.get(self._count_of(event), [(0, 0.0)])
        return next((time for count, time in told if count >= event.count), None)

    def _count_of(self, event: Signal | Await) -> tuple[int, int, int, bool]:
        return event.pipe, self.listed[event.nest].block_of(event.queue.block)[0], event.ring, event.ready

    def signal(self, event: Signal) -> None:
        told = self.clock.now + self.target.signal_cycles
        self.told.setdefault(self._count_of(event), []).append((event.count, told))
        self._note(event, self.before, self.clock.now)

    def awaits(self, event: Await) -> None:
        told = self._when_told(event)
        assert told is not None
        self._note(event, self.before, max(told, self.clock.now), self.clock.stall_until(told, Reason.PIPE))

    def _place_of(self, nest: int, block: int) -> int:
        """Which of the clusters runs a block. Lanes of one block lie side by side, and share its DMA engine."""
        lanes = self.listed[nest].members
        number, lane = self.listed[nest].block_of(block)
        place = number % self.target.clusters * lanes + lane
        self.clusters[place].clock.near = self.nears[place - lane]
        return place

    def _account(self, main: Clock, state: _State, last: Clock, before: _State) -> None:
        """The entry's conductor has spent what the block that was last has."""
        compute, conduct, stalls = state
        now = last.compute_cycles, last.conduct_cycles, dict(last.stall_cycles)
        main.compute_cycles = compute + now[0] - before[0]
        main.conduct_cycles = conduct + now[1] - before[1]
        main.stall_cycles = {reason: cycles + now[2][reason] - before[2][reason] for reason, cycles in stalls.items()}
        main.now, main.latest = last.now, Act.WAIT_STORE

    def _note(self, event: Event, start: float, end: float, stall: Stall | None = None) -> None:
        self.timed.append(TimedEvent(event, start, end, stall))

    def enter(self, event: Enter) -> None:
        self._end_nest()
        self.nest = event.nest
        self._note(event, self.before, self.clock.now)

    def begin(self, event: Begin) -> None:
        listed = self.listed[event.nest]
        level = self.target.home if listed.tiling is None else self.target.compute
        sizes = {axis: tile_range.size for axis, tile_range in event.ranges.items()}
        cluster = self.cluster
        span = self.costs.span(listed.nest, sizes, level, self.target.cores, ends_of(listed.nest, event.ranges))
        cluster.span = span.later(self.clock.cold_cycles(self.costs.code_of(listed.nest, sizes), level))
        if listed.is_joined:  # another one of them may be on the same lane
            number, worker = listed.block_of(event.queue.block)
            own = number % self.target.clusters, listed.lanes[worker - listed.member]
            self.clock.stall_until(self.computing.get(own, 0.0), Reason.ENGINE)
            self.computing[own] = self.clock.now + cluster.span.cycles
        self.clock.begin(cluster.span.cycles, cluster.span.accesses_per_cycle)
        self._note(event, self.clock.now, self.clock.now)

    def end(self, event: End) -> None:
        self.clock.end(self.cluster.span)
        self._note(event, *self.clock.computing[-1])

    def transfer(self, event: Fetch | Load | Store) -> None:
        tiling, clock = self.listed[event.nest].tiling, self.clock
        is_further = not isinstance(event, Fetch) and event.tile > 0
        if is_further and clock.forked is None and tiling is not None and tiling.asks_ahead:
            # The next tile begins while this moves.
            clock.computes_until = clock.now + self.cluster.span.cycles
        spans: list[Interval] = []
        act = clock.latest
        for part in event.parts:
            if spans:
                clock.act(Act.PART)
            spans.append(clock.command(clock.near, not isinstance(event, Store), part.size_bytes, part.rows))
        clock.latest = act
        self._started(event, spans)

    def move(self, event: Move) -> None:
        engine = self.clock.far
        assert engine is not None
        most, row_bytes = engine.engine.longest_bytes, event.row_bytes
        pieces = [min(most, row_bytes - done) for done in range(0, row_bytes, most)] * event.rows
        spans = [self.clock.command(engine, event.inward, size_bytes) for size_bytes in pieces or [0]]
        self.clock.spend(self.costs.conduct.move_cycles)
        self._started(event, spans)

    def _started(self, event: Transfer, spans: Sequence[Interval]) -> None:
        key = (event.queue, event.transfer)
        before, _ = self.done.get(key, (0.0, None))
        self.done[key] = max(before, spans[-1][1]), _REASONS[type(event)]
        self._note(event, spans[0][0], spans[-1][1])

    def wait(self, event: Wait) -> None:
        stall = self.clock.stall_until(*self.done[event.queue, event.transfer])
        self._note(event, self.before, self.clock.now, stall)

    def _end_nest(self) -> None:
        clock = self.clock
        stalled = sum(cycles for reason, cycles in clock.stall_cycles.items() if reason is not Reason.MOVE)
        if self.nest is not None:
            listed = self.listed[self.nest]
            node = self.listing.launch_of(self.entry, self.nest).node.name
            cycles, compute = clock.now - self.nest_start, clock.compute_cycles - self.compute_before
            waited, nest = stalled - self.stalled_before, listed.nest
            self.nests.append(NestTiming(node, nest.title, listed.tile_count, cycles, compute, waited, nest.macs))
        self.nest_start, self.compute_before, self.stalled_before = clock.now, clock.compute_cycles, stalled

    def _hop(self, channels: Sequence[Channel]) -> HopTiming:
        busy = merged([interval for channel in channels for interval in channel.busy])
        return HopTiming(
            int(sum(channel.size_bytes for channel in channels)),
            sum(stop - start for start, stop in busy),
            overlap_cycles(busy, merged([one for cluster in self.clusters for one in cluster.clock.computing])),
        )
