"""What the replay knows of pipes: that no slot is written before it is free or read before it is ready, whatever the
order in which the two sides come to it, that what comes out is what went in, and that nobody waits for ever.

Counts decide: who has awaited a count may rely on all that happened before it was told, and on nothing else. So each
side is judged alone, in its own order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from tilegrad.ir.listing import RING, Await, Begin, Box, Event, Listing, Load, Place, Signal, Store, ring_offset
from tilegrad.ir.nest import Access, Nest, Operand
from tilegrad.ir.pipes import Pipe
from tilegrad.ir.schedule import Panel, Rows
from tilegrad.ir.workspaces import fault
from tilegrad.sequence.needs import dense_bytes, summed_axes
from tilegrad.sequence.values import ValueReplay


def _counts() -> dict[bool, int]:
    return {True: 0, False: 0}


@dataclass
class _Ring:
    """Of one block: boxes that went in and that came out. By whether they are of boxes that are ready or of slots that
    are free: how many of these transfers are known to be done, what was told, and what the other side has awaited. In
    L1, `making` is the box that is made, to these steps of sums."""

    pushed: list[tuple[int, Rows]] = field(default_factory=list)  # where, and which elements
    popped: int = 0
    done: dict[bool, int] = field(default_factory=_counts)
    told: dict[bool, int] = field(default_factory=_counts)
    awaited: dict[bool, int] = field(default_factory=_counts)
    making: tuple[tuple[int, Rows], tuple[int, ...]] | None = None


_Key = tuple[int, int, int]  # pipe, block and ring
_Piped = Load | Store | Signal | Await


class PipeReplay(ValueReplay):
    """The part of a replay that is about pipes."""

    def __init__(self, listing: Listing, entry: str) -> None:
        super().__init__(listing, entry)
        self.rings: dict[_Key, _Ring] = {}
        self.steps: dict[int, deque[tuple[_Key, Signal | Await]]] = defaultdict(deque)  # by worker
        self.members = 1
        self.ring_spans: dict[int, list[tuple[int, int]]] = {}  # in scratchpad, by nest
        buffers = {buffer.name: buffer.size_bytes for buffer in self.plan.entries[self.entry].buffers}
        for pipe in self.schedule.pipes:
            nest = [i for i, listed in enumerate(self.nests) if listed.launch == pipe.producer][-1]
            if pipe.is_near:
                start = ring_offset(pipe, self.nests)
                stop = start + pipe.lanes // pipe.near_lanes * pipe.ring_bytes
                self.ring_spans.setdefault(nest, []).append((start, stop))
                continue
            home = self.plan.address(self.entry, pipe.value, pipe.producer)
            wrong = fault(pipe.workspace, home.offset, buffers[pipe.value])
            if wrong is not None:
                raise self.error(f"the workspace of pipe {pipe.number} ('{pipe.value}'): {wrong}", nest)

    def ring(self, where: _Piped | Place, event: _Piped | Begin) -> tuple[Pipe, _Ring]:
        """That an event, or a place of a kernel call, says."""
        if where.pipe is None or not 0 <= where.pipe < len(self.schedule.pipes):
            raise self.error(f"there is no pipe {where.pipe}", event.nest)
        pipe = self.schedule.pipes[where.pipe]
        if not 0 <= where.ring < pipe.lanes:
            raise self.error(f"pipe {where.pipe} has no ring {where.ring}", event.nest)
        return pipe, self.rings.setdefault(self._key(where, event), _Ring())

    def _key(self, where: _Piped | Place, event: _Piped | Begin) -> _Key:
        return where.pipe or 0, event.queue.block // self.members, where.ring

    def expect_no_ring(self, offset: int, size_bytes: int, what: str) -> None:
        for start, stop in self.ring_spans.get(self.turn, ()):
            if offset < stop and start < offset + size_bytes:
                raise self.error(f"{what} comes to where a ring is")

    def expect_slot(self, event: Load | Store, operand: Operand) -> None:
        """A box is dense, and in a slot of its block's slice."""
        (pipe, _), size_bytes = self.ring(event, event), dense_bytes(operand, event.box)
        if operand.value != pipe.value:
            raise self.error(f"'{event.operand}' is not what pipe {pipe.number} carries", event.nest)
        sizes = [(part.near_offset, part.far_offset, part.row_bytes, part.rows) for part in event.parts]
        if sizes != [(0, 0, size_bytes, 1)] or size_bytes > pipe.slot_bytes:
            raise self.error(f"'{event.operand}' does not pass pipe {pipe.number} as one dense box", event.nest)
        block, whose = event.queue.block // self.members, pipe.workspace
        home = self.plan.address(self.entry, pipe.value, self.nests[event.nest].launch)
        start = home.offset + whose.offset(block, event.ring)
        if not start <= event.far <= start + whose.slice_bytes - size_bytes:
            raise self.error(f"'{event.operand}' leaves the slice of block {block} of pipe {pipe.number}", event.nest)

    def _expect_free(self, pipe: Pipe, ring: _Ring, count: int, at: int, rows: Rows, nest: int) -> None:
        if count != len(ring.pushed):
            raise self.error(f"box {count} goes into pipe {pipe.number} as number {len(ring.pushed)}", nest)
        for number in range(ring.awaited[False], len(ring.pushed)):
            start, other = ring.pushed[number]
            if start < at + rows.size_bytes and at < start + other.size_bytes:
                where = f"box {count} of pipe {pipe.number} comes to where box {number} may not have been read"
                raise self.error(where, nest)

    def _expect_ready(self, pipe: Pipe, ring: _Ring, count: int, at: int, rows: Rows, nest: int) -> None:
        if count != ring.popped:
            raise self.error(f"box {count} leaves pipe {pipe.number} as number {ring.popped}", nest)
        if count >= ring.awaited[True]:
            raise self.error(f"box {count} of pipe {pipe.number} is read before it is ready", nest)
        if count >= len(ring.pushed):
            raise self.error(f"box {count} never goes into pipe {pipe.number}", nest)
        if ring.pushed[count] != (at, rows):
            raise self.error(f"box {count} of pipe {pipe.number} is not what went in, or elsewhere", nest)

    def push(self, event: Store, rows: Rows) -> None:
        pipe, ring = self.ring(event, event)
        self._expect_free(pipe, ring, event.count, event.far, rows, event.nest)
        ring.pushed.append((event.far, rows))

    def pop(self, event: Load, rows: Rows) -> None:
        pipe, ring = self.ring(event, event)
        self._expect_ready(pipe, ring, event.count, event.far, rows, event.nest)
        ring.popped += 1

    # Rings in L1: kernels make boxes there, and read them.

    def begin_in_ring(self, event: Begin, nest: Nest, operand: Operand, place: Place) -> None:
        pipe, ring = self.ring(place, event)
        if place.region != RING or not pipe.is_near or operand.value != pipe.value:
            raise self.error(f"'{operand.name}' is not what pipe {pipe.number} has in L1", event.nest)
        rows = elements(operand, place.box)
        if operand.access is Access.READ:
            self._expect_ready(pipe, ring, place.count, place.offset, rows, event.nest)
            return
        spans = self.ring_spans.get(event.nest, [])
        is_inside = any(start <= place.offset and place.offset + rows.size_bytes <= stop for start, stop in spans)
        if not is_inside or rows.size_bytes > pipe.slot_bytes or place.offset % pipe.alignment_bytes:
            raise self.error(f"'{operand.name}' is not in a slot of pipe {pipe.number}", event.nest)
        first = tuple(event.ranges[axis.name].start for axis in summed_axes(nest, operand))
        own = (place.offset, rows)
        if any(first) and (ring.making is None or ring.making[0] != own or not ring.making[1] < first):
            raise self.error(f"'{operand.name}' does not find the sum to continue in pipe {pipe.number}", event.nest)
        if ring.making is not None and not any(first):
            raise self.error(f"'{operand.name}' is made where a box of pipe {pipe.number} is not complete", event.nest)
        self._expect_free(pipe, ring, place.count, place.offset, rows, event.nest)
        ring.making = own, first

    def end_in_ring(self, event: Begin, nest: Nest, operand: Operand, place: Place) -> None:
        _, ring = self.ring(place, event)
        if operand.access is Access.READ:
            ring.popped += 1
            ring.done[False] = ring.popped
        elif all(event.ranges[axis.name].stop == axis.extent for axis in summed_axes(nest, operand)):
            assert ring.making is not None
            ring.pushed.append(ring.making[0])
            ring.making, ring.done[True] = None, len(ring.pushed)

    def settled(self, event: Event) -> None:
        """A transfer has been waited for."""
        if isinstance(event, Load | Store) and event.pipe is not None:
            _, ring = self.ring(event, event)
            ring.done[not event.inward] = max(ring.done[not event.inward], event.count + 1)

    def signal(self, event: Signal) -> None:
        pipe, ring = self.ring(event, event)
        done = ring.done[event.ready]
        if not ring.told[event.ready] < event.count <= done:
            what = "ready" if event.ready else "free"
            raise self.error(f"pipe {pipe.number} is told {event.count} {what}, and {done} are", event.nest)
        ring.told[event.ready] = event.count
        self._step(event)

    def awaits(self, event: Await) -> None:
        _, ring = self.ring(event, event)
        ring.awaited[event.ready] = max(ring.awaited[event.ready], event.count)
        self._step(event)

    def _step(self, event: Signal | Await) -> None:
        self.steps[event.queue.block].append((self._key(event, event), event))

    def end_pipes(self) -> None:
        """Nothing stays in a pipe, and both sides come to their ends: since counts only grow, any order shows it."""
        for (number, block, _), ring in self.rings.items():
            if ring.popped != len(ring.pushed):
                left = len(ring.pushed) - ring.popped
                raise self.error(f"{left} boxes of block {block} stay in pipe {number}")
        counts: dict[tuple[_Key, bool], int] = defaultdict(int)
        moved = True
        while moved:
            moved = False
            for steps in self.steps.values():
                while steps:
                    key, event = steps[0]
                    if isinstance(event, Await) and counts[key, event.ready] < event.count:
                        break
                    if isinstance(event, Signal):
                        counts[key, event.ready] = event.count
                    steps.popleft()
                    moved = True
        for (key, event), *_ in filter(None, self.steps.values()):
            told = f"awaits {event.count}, {counts[key, True]} are ready and {counts[key, False]} free"
            raise self.error(f"pipe {event.pipe} is wedged: block {key[1]} {told}", event.nest)
        self.rings.clear()
        self.steps.clear()


def elements(operand: Operand, box: Box) -> Rows:
    """Which elements of its tensor a box has, in their order."""
    return Panel(operand.value or "", operand.shape, box, operand.dtype).rows
