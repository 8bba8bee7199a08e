"""Listing to timed listing: when each event begins and ends, on its queue, and what stands still why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.analysis.tables import simple_steps
from tilegrad.costs.clock import Channel, Clock, Interval, Reason, Stall, merged, overlap_cycles
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Begin, End, Enter, Event, Fetch, Listing, Load, Move, Queue, Store, Wait
from tilegrad.sequence.calls import entry_calls

_TABLE, _LOAD, _STORE, _FURTHER_PART = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)  # ends of CONDUCT_TRIPS
_NOTHING_MORE = (0, 0, 0, 0)


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
        self.listed = listing.entries[entry].nests
        self.events = listing.entries[entry].events
        self.target = listing.plan.schedule.target
        self.clock = Clock(self.target, costs)
        self.costs = costs
        self.at_once = [call.at_once for call in entry_calls(listing.entries[entry]).nests]
        self.done: dict[tuple[Queue, int], float] = {}
        self.reasons: dict[tuple[Queue, int], Reason] = {}
        self.timed: list[TimedEvent] = []
        self.nests: list[NestTiming] = []
        self.nest: int | None = None
        self.begun: Begin | None = None
        self.nest_start = self.compute_before = self.stalled_before = 0.0
        self.simple_steps = 0
        self.operands = 0

    def run(self) -> EntryTiming:
        handlers = {Enter: self.enter, Begin: self.begin, End: self.end, Wait: self.wait, Move: self.move}
        handlers |= {Fetch: self.fetch, Load: self.box, Store: self.box}
        for event in self.events:
            handlers[type(event)](event)  # type: ignore[operator]
        self._end_nest()
        clock = self.clock
        near = (Reason.LOAD, Reason.STORE, Reason.TABLE, Reason.QUEUE)
        return EntryTiming(
            clock.now,
            clock.compute_cycles,
            clock.conduct_cycles,
            sum(clock.stall_cycles[reason] for reason in near),
            clock.stall_cycles[Reason.MOVE],
            sum(isinstance(event, Begin) for event in self.events),
            {engine.engine.hop: self._hop(engine.channels) for engine in (clock.near, clock.far)},
            tuple(self.nests),
            tuple(self.timed),
        )

    def _note(self, event: Event, start: float, end: float, stall: Stall | None = None) -> None:
        self.timed.append(TimedEvent(event, start, end, stall))

    def enter(self, event: Enter) -> None:
        self._end_nest()
        self.nest = event.nest
        listed = self.listed[event.nest]
        self.operands = len(listed.nest.operands)
        self.simple_steps = 0 if listed.table is None else simple_steps(listed.table)
        before = self.clock.now
        if listed.tiling is not None:
            self.clock.enter(self.operands, self.at_once[event.nest])
        self._note(event, before, self.clock.now)

    def _step(self, after: int) -> None:
        self.clock.step(self.operands, is_simple=bool((after + 1) % (self.simple_steps + 1)))

    def begin(self, event: Begin) -> None:
        """From tile to tile, each step is conducted in part between kernel calls, in part meanwhile."""
        listed = self.listed[event.nest]
        if event.tile:
            self._step(event.tile - 1)
        self.clock.begin()
        self.begun = event
        self._note(event, self.clock.now, self.clock.now)
        if listed.tiling is None:
            return
        if not event.tile:
            self.clock.enter(self.operands, self.at_once[event.nest])
        if event.tile + 1 < listed.tile_count:
            self._step(event.tile)

    def end(self, event: End) -> None:
        assert self.begun is not None
        listed = self.listed[event.nest]
        level = self.target.home if listed.tiling is None else self.target.compute
        sizes = {axis: tile_range.size for axis, tile_range in self.begun.ranges.items()}
        came = self.clock.now
        start, end = self.clock.end(self.costs.span(listed.nest, sizes, level, self.target.cores))
        self._note(event, max(came, start), end)

    def fetch(self, event: Fetch) -> None:
        trips = (_TABLE, *[_NOTHING_MORE] * (len(event.parts) - 1))
        self._transfer(event, True, trips, Reason.TABLE)

    def box(self, event: Load | Store) -> None:
        first = _LOAD if event.inward else _STORE
        trips = (first, *[_FURTHER_PART] * (len(event.parts) - 1))
        self._transfer(event, event.inward, trips, Reason.LOAD if event.inward else Reason.STORE)

    def _transfer(
        self, event: Fetch | Load | Store, inward: bool, trips: Sequence[tuple[int, ...]], reason: Reason
    ) -> None:
        key = (event.queue, event.transfer)
        span: Interval | None = None
        for part, conducted in zip(event.parts, trips, strict=True):
            self.clock.conduct(0, 0, 0, 0, 0, 0, *conducted)
            start, arrived = self.clock.command(self.clock.near, inward, part.size_bytes, part.rows)
            span = (start, arrived) if span is None else (span[0], arrived)
            self.done[key] = max(self.done.get(key, 0.0), arrived)
        self.reasons[key] = reason
        assert span is not None
        self._note(event, *span)

    def move(self, event: Move) -> None:
        engine = self.clock.far
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
        self._note(event, *span)

    def wait(self, event: Wait) -> None:
        key = (event.queue, event.transfer)
        if key not in self.done:
            raise InternalError(f"{self.entry} waits for transfer {event.transfer}, which never started")
        before = self.clock.now
        stall = self.clock.stall_until(self.done[key], self.reasons[key])
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
