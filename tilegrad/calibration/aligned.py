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
    """What the conductor did, one thing after the other; and beside it, when transfers and kernel calls were done."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self.own = iter([event for event in events if event.core == events[0].core])
        done = [event for event in events if event.kind == "D"]
        self.dma_ends = {way: iter([event.cycle for event in done if event.a == way]) for way in (0, 1)}
        self.barriers = _barriers(events)

    def take(self, kind: str) -> int:
        """When one of this kind came next."""
        for event in self.own:
            if event.kind == kind:
                return event.cycle
        raise InternalError(f"the trace ends where one of '{kind}' should be")


def _barriers(events: Sequence[TraceEvent]) -> Iterator[tuple[int, int]]:
    """When the last core came to a barrier, and when all passed it."""
    latest = 0
    for event in events:
        if event.kind == "b":
            latest = event.cycle
        elif event.kind == "p":
            yield latest, event.cycle


def align_trace(listing: EntryListing, events: Sequence[TraceEvent]) -> list[Happened]:
    """All events of an entry; the trace has them in the same order."""
    reader = _Reader(events)
    arrived: dict[tuple[Queue, int], int] = {}
    return [_happened(reader, event, act, arrived) for event, act in acts_of(listing)]


def _happened(reader: _Reader, event: Event, act: Act, arrived: dict[tuple[Queue, int], int]) -> Happened:
    if isinstance(event, Fetch | Load | Store):
        cycles = tuple(reader.take("d") for _ in event.parts)
        inward = int(not isinstance(event, Store))
        ends = tuple(next(reader.dma_ends[inward]) for _ in event.parts)
        key = event.queue, event.transfer
        arrived[key] = max(arrived.get(key, 0), *ends)
        return Happened(event, act, cycles[0], cycles[-1], cycles, ends, arrived=max(ends))
    if isinstance(event, Wait):
        kind = "l" if act is Act.WAIT_MOVE else "w"
        came, went = reader.take(kind), reader.take(kind.upper())
        return Happened(event, act, came, went, arrived=arrived.get((event.queue, event.transfer), 0))
    if isinstance(event, Move):
        calls = [(reader.take("s"), reader.take("S")) for _ in range(event.rows)]
        return Happened(event, act, calls[0][0], calls[-1][1])
    if isinstance(event, Enter | Begin):
        came = reader.take("E" if isinstance(event, Enter) else "f")
        return Happened(event, act, came, came)
    assert isinstance(event, End)
    came, (computed, passed) = reader.take("j"), next(reader.barriers)
    return Happened(event, act, came, max(came, passed), computed=computed)
