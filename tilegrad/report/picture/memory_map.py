"""Time and address: which bytes of each level hold what, when.

Time is in estimated cycles where the target has a clock, else in launches. A buffer's operator is the one that writes
it first; state is there from the beginning to the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad.ir.plan import EntryPlan, Staging
from tilegrad.report.picture.listed import Listed
from tilegrad.sequence.timing import EntryTiming
from tilegrad.targets.base import L1, L3

MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes `offset` to `offset + size_bytes` of a level hold tensors from `start` to `stop`."""

    level: str
    kind: str  # "state", "arena", "scratch", "table" or "spilled"
    name: str
    operator: str
    offset: int
    size_bytes: int
    start: float
    stop: float
    first: int
    last: int


class _Times:
    """When each launch of an entry begins and ends."""

    def __init__(self, compiled: Listed, entry: str, timing: EntryTiming | None) -> None:
        count = len(compiled.plan.schedule.entries[entry].launches)
        self.unit = "launches" if timing is None or not timing.cycles else "cycles"
        self.starts = [float(i) for i in range(count + 1)]
        if self.unit == "cycles" and timing is not None:
            self.starts = _launch_starts(compiled, entry, timing, count)
        self.end = self.starts[-1]

    def span(self, first: int, last: int) -> tuple[float, float]:
        count = len(self.starts) - 1
        return self.starts[min(max(first, 0), count)], self.starts[min(max(last + 1, 0), count)]


def _launch_starts(compiled: Listed, entry: str, timing: EntryTiming, count: int) -> list[float]:
    """Launches without nests begin where the next one does."""
    starts: list[float | None] = [None] * (count + 1)
    starts[count] = timing.cycles
    now = 0.0
    for listed, nest in zip(compiled.listing.entries[entry].nests, timing.nests, strict=True):
        if starts[listed.launch] is None:
            starts[listed.launch] = now
        now += nest.cycles
    following = timing.cycles
    for i in range(count, -1, -1):
        found = starts[i]
        following = following if found is None else found
        starts[i] = following
    return [0.0 if start is None else start for start in starts]


def held(compiled: Listed, entry: str, timing: EntryTiming | None) -> Iterator[Held]:
    """Everything that an entry's memories hold while it runs."""
    plan = compiled.plan
    times = _Times(compiled, entry, timing)
    for tensor in plan.schedule.program.state:
        address = plan.state_addresses[tensor.name]
        base = 0 if address.region != "arena" else plan.state_bytes
        size = tensor.type.size_bytes
        launches = len(plan.schedule.entries[entry].launches)
        name = f"{tensor.name} ({tensor.role.value})"
        yield Held(address.memory, "state", name, "", base + address.offset, size, 0.0, times.end, -1, launches)
    yield from _arena(compiled, entry, times)
    yield from _spilled(plan.entries[entry], times)
    yield from _scratch(compiled, entry, times)


def _arena(compiled: Listed, entry: str, times: _Times) -> Iterator[Held]:
    plan, own = compiled.plan, compiled.plan.entries[entry]
    home = plan.schedule.target.home
    writers = _writers(compiled, entry)
    for buffer in own.buffers:
        names = buffer.members or (buffer.name.partition("@")[0],)
        start, stop = times.span(buffer.first, buffer.last)
        operator = next((writers[name] for name in names if name in writers), "given by the caller")
        offset = plan.state_bytes + own.offsets[buffer.name]
        yield Held(
            home, "arena", _listed(names), operator, offset, buffer.size_bytes, start, stop, buffer.first, buffer.last
        )


def _writers(compiled: Listed, entry: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for launch in compiled.plan.schedule.entries[entry].launches:
        for name in filter(None, launch.node.outputs):
            found.setdefault(name, f"{launch.node.op} {launch.node.name}")
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _spilled(own: EntryPlan, times: _Times) -> Iterator[Held]:
    """In L3, from a tensor's first way out to its last way in."""
    found: dict[tuple[str, int], list[Staging]] = {}
    for move in own.staging:
        found.setdefault((move.tensor, move.l3_offset), []).append(move)
    for (tensor, offset), moves in found.items():
        out = [move.start for move in moves if not move.inward]
        if not out:
            continue  # state that is only read is there all the time
        first, last = min(out), max(move.wait for move in moves)
        start, stop = times.span(first, last)
        size = max(move.size_bytes for move in moves)
        yield Held(L3, "spilled", tensor, "moved by L3-L2", offset, size, start, stop, first, last)


def _scratch(compiled: Listed, entry: str, times: _Times) -> Iterator[Held]:
    launches = compiled.plan.schedule.entries[entry].launches
    if not compiled.listing.entries:
        return
    for listed in compiled.listing.entries[entry].nests:
        place, tiling = listed.place, listed.tiling
        if place is None or tiling is None:
            continue
        span = times.span(listed.launch, listed.launch)
        node = launches[listed.launch].node
        who = f"{node.op} {node.name}"
        where = listed.launch, listed.launch
        yield Held(L1, "table", "call and table", who, place.table_offset, place.table_bytes, *span, *where)
        for operand in listed.nest.present:
            slot = tiling.slots[operand.name]
            for k in range(slot.count):
                offset = place.slots_offset + slot.offset_bytes + k * slot.slot_bytes
                name = f"{operand.value} ({operand.name}, slot {k + 1} of {slot.count})"
                yield Held(L1, "scratch", name, who, offset, slot.slot_bytes, *span, *where)


def live_bytes(buffers: Sequence[Held], ends: float) -> list[tuple[float, int]]:
    """How many bytes are held, whenever that changes: (time, bytes)."""
    changes: dict[float, int] = {}
    for one in buffers:
        changes[one.start] = changes.get(one.start, 0) + one.size_bytes
        changes[one.stop] = changes.get(one.stop, 0) - one.size_bytes
    found, live = [], 0
    for time in sorted(changes):
        live += changes[time]
        found.append((time, live))
    position = bisect_left(found, (ends, -1))
    return found[: position + 1]


def _columns(one: Held) -> list[Any]:
    when = round(one.start, 1), round(one.stop, 1), one.first, one.last
    return [one.kind, one.name, one.operator, one.offset, one.size_bytes, *when]


def memory_json(compiled: Listed, timings: Mapping[str, EntryTiming]) -> dict[str, Any]:
    """By entry and level."""
    found: dict[str, Any] = {}
    for entry in compiled.plan.entries:
        times = _Times(compiled, entry, timings.get(entry))
        every = list(held(compiled, entry, timings.get(entry)))
        levels = {}
        for level, use in compiled.plan.memory.items():
            own = [one for one in every if one.level == level and one.size_bytes]
            if own:
                levels[level] = {
                    "used": use.used_bytes,
                    "capacity": use.capacity_bytes,
                    "lower_bound": use.lower_bound_bytes,
                    "buffers": [_columns(one) for one in own],
                    "live": [[round(time, 1), size] for time, size in live_bytes(own, times.end)],
                }
        if levels:
            found[entry] = {"unit": times.unit, "end": times.end, "levels": levels}
    return found
