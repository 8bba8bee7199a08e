"""The timed listing as slices on tracks: what the page, the trace and the plots draw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilegrad.ir.listing import CORES, End, Fetch, Load, Move, Queue, Store, Wait
from tilegrad.report.picture.listed import Listed
from tilegrad.sequence.timing import EntryTiming, TimedEvent

CONDUCTOR = "conductor"
"""The track of what the conductor stood still for while no core computed, or waited for meanwhile."""


_ENGINE = re.compile(r"(block \d+ )?(?!block)\w+ (\d+ )?")
_TRACK = re.compile(
    rf"(?:block (?P<block>\d+)(?: |$))?(?P<engine>.*?) ?(?P<what>{CORES}|{CONDUCTOR}|\w+-\w+ (?:in|out))?"
)


@dataclass(frozen=True, slots=True)
class Slice:
    """`start` and `end` in cycles of the entry. `nest` and `tile` are -1 where there is none; `what` is a kernel, a
    tensor or the reason of a wait."""

    track: str
    start: float
    end: float
    kind: str
    what: str
    nest: int
    tile: int
    size_bytes: int = 0


def _who(compiled: Listed, entry: str, queue: Queue, nest: int) -> str:
    """A block by its number, and where blocks have engines, which one of them, or which of its lanes, it is. Those of
    one block are numbered one behind the other."""
    listed = compiled.listing.entries[entry].nests[nest] if nest >= 0 else None
    engine = None if listed is None else compiled.plan.schedule.target.compute_engine(listed.nest.counts_macs)
    if listed is None or engine is None:
        return "" if queue.block == 0 else f"block {queue.block} "
    block, worker = listed.block_of(queue.block)
    lane = listed.lanes[worker - listed.member][1]
    return ("" if block == 0 else f"block {block} ") + engine.name + (f" {lane} " if lane else " ")


def track_of(compiled: Listed, entry: str, timed: TimedEvent) -> str | None:
    """Where an event is drawn; None for what takes no time of its own."""
    event = timed.event
    if isinstance(event, Move):
        return f"{event.queue.engine} {'in' if event.inward else 'out'}"
    if not isinstance(event, End | Fetch | Load | Store | Wait):
        return None
    who = _who(compiled, entry, event.queue, event.nest)
    if isinstance(event, End):
        return who.rstrip() if _ENGINE.fullmatch(who) else f"{who}{CORES}"
    if isinstance(event, Wait):
        return f"{who}{CONDUCTOR}" if timed.stall is not None else None
    return f"{who}{event.queue.engine} {'out' if isinstance(event, Store) else 'in'}"


def slices(compiled: Listed, entry: str, timing: EntryTiming) -> Iterator[Slice]:
    """In the order of the listing; waits for nothing are left out."""
    nests = compiled.listing.entries[entry].nests
    for timed in timing.events:
        track, event = track_of(compiled, entry, timed), timed.event
        if track is None:
            continue
        span = timed.start, timed.end
        if isinstance(event, End):
            yield Slice(track, *span, "compute", nests[event.nest].nest.title, event.nest, event.tile)
        elif isinstance(event, Fetch):
            size = sum(part.size_bytes for part in event.parts)
            yield Slice(track, *span, "table", "call and table", event.nest, -1, size)
        elif isinstance(event, Load | Store):
            size = sum(part.size_bytes for part in event.parts)
            kind = "load" if isinstance(event, Load) else "store"
            yield Slice(track, *span, kind, value_of(compiled, entry, event), event.nest, event.tile, size)
        elif isinstance(event, Move):
            yield Slice(track, *span, "fetch" if event.inward else "evict", event.tensor, -1, -1, event.size_bytes)
        elif isinstance(event, Wait) and timed.stall is not None:
            yield Slice(track, *span, "wait", timed.stall.reason.value, event.nest, -1)


def value_of(compiled: Listed, entry: str, event: Load | Store) -> str:
    """The tensor behind an operand's name."""
    nest = compiled.listing.entries[entry].nests[event.nest].nest
    found = next((operand.value for operand in nest.operands if operand.name == event.operand), None)
    return found or event.operand


def track_order(tracks: set[str]) -> list[str]:
    """Of each block and each of its engines, what computes first, then transfers to its scratchpad, then those that lie
    farther away; what waits comes last."""

    def rank(track: str) -> tuple[int, str, int, str]:
        found = _TRACK.fullmatch(track)
        assert found is not None
        what = found["what"] or CORES
        order = 0 if what == CORES else 3 if what == CONDUCTOR else 1 if "L1" in what else 2
        return int(found["block"] or 0), found["engine"], order, what

    return sorted(tracks, key=rank)


def timeline_json(compiled: Listed, timings: Mapping[str, EntryTiming]) -> dict[str, Any]:
    """By entry: names once, slices as columns of numbers, since there may be a hundred thousand of them."""
    found: dict[str, Any] = {}
    for entry, timing in timings.items():
        launches = compiled.plan.schedule.entries[entry].launches
        drawn = list(slices(compiled, entry, timing))
        if not drawn:
            continue
        tracks = track_order({one.track for one in drawn})
        kinds = sorted({one.kind for one in drawn})
        names = sorted({one.what for one in drawn})
        track_at, kind_at, name_at = ({one: i for i, one in enumerate(every)} for every in (tracks, kinds, names))
        found[entry] = {
            "cycles": timing.cycles,
            "tracks": tracks,
            "kinds": kinds,
            "names": names,
            "nests": [launches[listed.launch].node.name for listed in compiled.listing.entries[entry].nests],
            "track": [track_at[one.track] for one in drawn],
            "start": [round(one.start, 1) for one in drawn],
            "end": [round(one.end, 1) for one in drawn],
            "kind": [kind_at[one.kind] for one in drawn],
            "name": [name_at[one.what] for one in drawn],
            "nest": [one.nest for one in drawn],
            "tile": [one.tile for one in drawn],
            "bytes": [one.size_bytes for one in drawn],
        }
    return found
