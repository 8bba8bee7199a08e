"""Listing to timed listing: when each event begins and ends, on its queue, and what stands still why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.costs.clock import Channel, Clock, Interval, Reason, Stall, merged, overlap_cycles
from tilegrad.costs.conduct import Act
from tilegrad.costs.kernel_cost import KernelCosts, Span
from tilegrad.ir.listing import Begin, End, Enter, Event, Fetch, Listing, Load, Move, Queue, Store, Wait
from tilegrad.sequence.acts import acts_of


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

    @property
    def stalled(self) -> float:
        """Share of the cycles in which no core computes."""
        return 1.0 - self.compute_cycles / self.cycles if self.cycles else 0.0


def time_listing(listing: Listing) -> dict[str, EntryTiming]:
    """Timing of each entry, from nothing but the listing."""
    costs = KernelCosts(listing.plan.schedule.target)
    return {entry: _Timing(listing, entry, costs).run() for entry in listing.entries}


class _Timing:
    """Plays an entry's events on the clock."""

    def __init__(self, listing: Listing, entry: str, costs: KernelCosts) -> None:
        self.entry = entry
        self.listing = listing
        self.own = listing.entries[entry]
        self.listed = self.own.nests
        self.target = listing.plan.schedule.target
        self.clock = Clock(self.target, costs)
        self.costs = costs
        self.done: dict[tuple[Queue, int], float] = {}
        self.reasons: dict[tuple[Queue, int], Reason] = {}
        self.timed: list[TimedEvent] = []
        self.nests: list[NestTiming] = []
        self.nest: int | None = None
        self.span = Span(0.0, 0.0, 0.0)  # of the kernel call under way
        self.kernel = ""  # the one whose code ran last
        self.nest_start = self.compute_before = self.stalled_before = 0.0

    def run(self) -> EntryTiming:
        handlers = {Enter: self.enter, Begin: self.begin, End: self.end, Wait: self.wait, Move: self.move}
        handlers |= {Fetch: self.fetch, Load: self.box, Store: self.box}
        clock = self.clock
        for event, act in acts_of(self.own, self.entry):
            before = clock.now
            clock.act(act)
            handlers[type(event)](event, act, before)  # type: ignore[operator]
        if self.timed:
            clock.act(Act.STOP)
            clock.spend(self.costs.conduct.call)
        self._end_nest()
        near = (Reason.LOAD, Reason.STORE, Reason.TABLE, Reason.QUEUE)
        return EntryTiming(
            clock.now,
            clock.compute_cycles,
            clock.conduct_cycles,
            sum(clock.stall_cycles[reason] for reason in near),
            clock.stall_cycles[Reason.MOVE],
            sum(isinstance(event, Begin) for event in self.own.events),
            {engine.engine.hop: self._hop(engine.channels) for engine in (clock.near, clock.far) if engine},
            tuple(self.nests),
            tuple(self.timed),
        )

    def _note(self, event: Event, start: float, end: float, stall: Stall | None = None) -> None:
        self.timed.append(TimedEvent(event, start, end, stall))

    def enter(self, event: Enter, act: Act, before: float) -> None:
        del act
        self._end_nest()
        self.nest = event.nest
        self._note(event, before, self.clock.now)

    def begin(self, event: Begin, act: Act, before: float) -> None:
        del act, before
        listed = self.listed[event.nest]
        level = self.target.home if listed.tiling is None else self.target.compute
        sizes = {axis: tile_range.size for axis, tile_range in event.ranges.items()}
        self.span = self.costs.span(listed.nest, sizes, level, self.target.cores)
        if listed.nest.kernel != self.kernel:
            self.span = self.span.later(self.costs.cold_cycles(listed.nest.kernel, level))
            self.kernel = listed.nest.kernel
        self.clock.begin(self.span.cycles)
        self._note(event, self.clock.now, self.clock.now)

    def end(self, event: End, act: Act, before: float) -> None:
        del act, before
        self.clock.end(self.span)
        self._note(event, *self.clock.computing[-1])

    def fetch(self, event: Fetch, act: Act, before: float) -> None:
        del act, before
        self._transfer(event, True, Reason.TABLE)

    def box(self, event: Load | Store, act: Act, before: float) -> None:
        del act, before
        tiling = self.listed[event.nest].tiling
        if self.clock.forked is None and tiling is not None and tiling.asks_ahead and event.tile:
            self.clock.computes_until = self.clock.now + self.span.cycles  # the next tile begins while this moves
        self._transfer(event, event.inward, Reason.LOAD if event.inward else Reason.STORE)

    def _transfer(self, event: Fetch | Load | Store, inward: bool, reason: Reason) -> None:
        key = (event.queue, event.transfer)
        span: Interval | None = None
        act = self.clock.latest
        for part in event.parts:
            if span is not None:
                self.clock.act(Act.PART)
            start, arrived = self.clock.command(self.clock.near, inward, part.size_bytes, part.rows)
            span = (start, arrived) if span is None else (span[0], arrived)
            self.done[key] = max(self.done.get(key, 0.0), arrived)
        self.clock.latest = act
        self.reasons[key] = reason
        assert span is not None
        self._note(event, *span)

    def move(self, event: Move, act: Act, before: float) -> None:
        del before
        engine = self.clock.far
        assert engine is not None
        span = None
        for _ in range(event.rows):
            left = event.row_bytes
            while left > 0 or span is None:
                size_bytes = min(left, engine.engine.longest_bytes)
                begin, arrived = self.clock.command(engine, event.inward, size_bytes)
                span = (begin, arrived) if span is None else (span[0], arrived)
                left -= size_bytes
        assert span is not None
        self.done[event.queue, event.transfer] = span[1]
        self.reasons[event.queue, event.transfer] = Reason.MOVE
        self.clock.spend(self.costs.conduct.waits.get(act, 0.0))
        self._note(event, *span)

    def wait(self, event: Wait, act: Act, before: float) -> None:
        key = (event.queue, event.transfer)
        stall = self.clock.wait(act, self.done[key], self.reasons[key])
        self._note(event, before, self.clock.now, stall)

    def _end_nest(self) -> None:
        clock = self.clock
        stalled = sum(cycles for reason, cycles in clock.stall_cycles.items() if reason is not Reason.MOVE)
        if self.nest is not None:
            listed = self.listed[self.nest]
            node = self.listing.launch_of(self.entry, self.nest).node.name
            cycles, compute = clock.now - self.nest_start, clock.compute_cycles - self.compute_before
            waited, nest = stalled - self.stalled_before, listed.nest
            self.nests.append(NestTiming(node, nest.kernel, listed.tile_count, cycles, compute, waited, nest.macs))
        self.nest_start, self.compute_before, self.stalled_before = clock.now, clock.compute_cycles, stalled

    def _hop(self, channels: Sequence[Channel]) -> HopTiming:
        busy = merged([interval for channel in channels for interval in channel.busy])
        return HopTiming(
            int(sum(channel.size_bytes for channel in channels)),
            sum(stop - start for start, stop in busy),
            overlap_cycles(busy, merged(self.clock.computing)),
        )
