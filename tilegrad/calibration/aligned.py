"""A listing beside what really happened: each event with the cycles at which the conductor came to it and went on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilegrad.calibration.observed import TraceEvent
from tilegrad.costs.conduct import Act
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Begin, End, Enter, EntryListing, Event, Fetch, Load, Move, Queue, Store, Wait
from tilegrad.sequence.acts import acts_of


@dataclass(frozen=True, slots=True)
class Happened:
    """`came` and `went` are cycles of the conductor; of a transfer in parts, `parts` are when each was started, and
    `ends` when each was done.

    Of a kernel call's end, `computed` is when the last core was done; of a transfer to or from scratchpad, and of a
    wait for one, `arrived` is when all of it was.
    """

    event: Event
    act: Act
    came: int
    went: int
    parts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    computed: int = 0
    arrived: int = 0


class _Reader:
    """What the conductor did, one thing after the other."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self.core = events[0].core
        self.dispatches = any(event.kind == "f" for event in events)
        # Where work is dispatched, workers are done while the conductor does other things.
        passes = "" if self.dispatches else "p"
        own = (event for event in events if event.core == self.core or event.kind in passes)
        self.events = [event for event in own if event.kind in "bdEfjlLpsSwW"]
        self.passes = iter([event.cycle for event in events if event.kind == "p"])
        self.at = 0
        done = [event for event in events if event.kind == "D"]
        self.dma_ends = {way: iter([event.cycle for event in done if event.a == way]) for way in (0, 1)}
        self.arrivals = iter(_arrivals(events, self.core if not self.dispatches else -1))

    def take(self, kinds: str) -> TraceEvent:
        while self.at < len(self.events):
            event = self.events[self.at]
            self.at += 1
            if event.kind in kinds:
                return event
        raise InternalError(f"the trace ends where one of '{kinds}' should be")


def _arrivals(events: Sequence[TraceEvent], conductor: int) -> Iterator[int]:
    """When the last worker came to a barrier, for each that all passed."""
    latest = 0
    for event in events:
        if event.kind == "b" and event.core != conductor:
            latest = event.cycle
        elif event.kind == "p":
            yield latest


def align_trace(listing: EntryListing, events: Sequence[TraceEvent]) -> list[Happened]:
    """All events of an entry; the trace has them in the same order."""
    reader = _Reader(events)
    arrived: dict[tuple[Queue, int], int] = {}
    return [_happened(reader, event, act, arrived) for event, act in acts_of(listing)]


def _happened(reader: _Reader, event: Event, act: Act, arrived: dict[tuple[Queue, int], int]) -> Happened:
    if isinstance(event, Fetch | Load | Store):
        cycles = tuple(reader.take("d").cycle for _ in event.parts)
        inward = int(not isinstance(event, Store))
        ends = tuple(next(reader.dma_ends[inward]) for _ in event.parts)
        key = event.queue, event.transfer
        arrived[key] = max(arrived.get(key, 0), *ends)
        return Happened(event, act, cycles[0], cycles[-1], cycles, ends, arrived=max(ends))
    if isinstance(event, Wait):
        kind = "l" if act is Act.WAIT_MOVE else "w"
        came, went = reader.take(kind).cycle, reader.take(kind.upper()).cycle
        return Happened(event, act, came, went, arrived=arrived.get((event.queue, event.transfer), 0))
    if isinstance(event, Move):
        calls = [(reader.take("s").cycle, reader.take("S").cycle) for _ in range(event.rows)]
        return Happened(event, act, calls[0][0], calls[-1][1])
    if isinstance(event, Enter):
        came = reader.take("E").cycle
        return Happened(event, act, came, came)
    if isinstance(event, Begin):
        if reader.dispatches:
            came = went = reader.take("f").cycle
        else:
            came, went = reader.take("b").cycle, reader.take("p").cycle
            next(reader.arrivals)
        return Happened(event, act, came, went)
    assert isinstance(event, End)
    came = reader.take("j").cycle
    passed = next(reader.passes) if reader.dispatches else reader.take("p").cycle
    return Happened(event, act, came, max(came, passed), computed=next(reader.arrivals))
