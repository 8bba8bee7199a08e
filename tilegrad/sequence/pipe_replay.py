"""What the replay knows of pipes: that no slot is written before it is free or read before it is ready, whatever the
order in which the two sides come to it, that what comes out is what went in, and that nobody waits for ever.

Counts decide: who has awaited a count may rely on all that happened before it was told, and on nothing else. So each
side is judged alone, in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilegrad.ir.listing import Await, Box, Event, Load, Signal, Store, box_size
from tilegrad.ir.nest import Operand
from tilegrad.ir.pipes import Pipe
from tilegrad.ir.schedule import Panel, Rows
from tilegrad.ir.workspaces import fault
from tilegrad.sequence.part_contents import PartReplay


@dataclass
class _Ring:
    """A pipe of one block: boxes that went in and that came out, how many of these transfers are known to be done, what
    was told, and what the other side has awaited."""

    pushed: list[tuple[int, int, Rows]] = field(default_factory=list)  # where, how long, which elements
    popped: int = 0
    stored: int = 0
    loaded: int = 0
    told: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    awaited: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})


class PipeReplay(PartReplay):
    """The part of a replay that is about pipes."""

    def prepare_pipes(self) -> None:
        self.rings: dict[tuple[int, int], _Ring] = {}
        self.steps: dict[int, list[tuple[tuple[int, int], Signal | Await]]] = {}  # by worker
        self.members = 1
        buffers = {buffer.name: buffer.size_bytes for buffer in self.plan.entries[self.entry].buffers}
        for pipe in self.schedule.pipes:
            home = self.plan.address(self.entry, pipe.value, pipe.producer)
            wrong = fault(pipe.workspace, home.offset, buffers[pipe.value])
            if wrong is not None:
                nest = next(i for i, listed in enumerate(self.nests) if listed.launch == pipe.producer)
                raise self.error(f"the workspace of pipe {pipe.number} ('{pipe.value}'): {wrong}", nest)

    def ring(self, event: Event) -> tuple[Pipe, _Ring]:
        assert isinstance(event, Load | Store | Signal | Await) and event.pipe is not None
        if not 0 <= event.pipe < len(self.schedule.pipes):
            raise self.error(f"there is no pipe {event.pipe}", event.nest)
        key = (event.pipe, event.queue.block // self.members)
        return self.schedule.pipes[event.pipe], self.rings.setdefault(key, _Ring())

    def expect_slot(self, event: Load | Store, operand: Operand, home: int, size_bytes: int) -> None:
        """A box is dense, and in a slot of its block's slice."""
        pipe, _ = self.ring(event)
        if operand.value != pipe.value or pipe.value is None:
            raise self.error(f"'{event.operand}' is not what pipe {pipe.number} carries", event.nest)
        sizes = [(part.near_offset, part.far_offset, part.row_bytes, part.rows) for part in event.parts]
        if sizes != [(0, 0, size_bytes, 1)] or size_bytes > pipe.slot_bytes:
            raise self.error(f"'{event.operand}' does not pass pipe {pipe.number} as one dense box", event.nest)
        block, whose = event.queue.block // self.members, pipe.workspace
        start = home + whose.offset(block)
        if not start <= event.far <= start + whose.slice_bytes - size_bytes:
            raise self.error(f"'{event.operand}' leaves the slice of block {block} of pipe {pipe.number}", event.nest)

    def push(self, event: Store, rows: Rows) -> None:
        pipe, ring = self.ring(event)
        if event.count != len(ring.pushed):
            raise self.error(f"box {event.count} goes into pipe {pipe.number} as number {len(ring.pushed)}", event.nest)
        stop = event.far + rows.size_bytes
        for number in range(ring.awaited[False], len(ring.pushed)):
            start, size_bytes, _ = ring.pushed[number]
            if start < stop and event.far < start + size_bytes:
                raise self.error(
                    f"box {event.count} of pipe {pipe.number} comes to where box {number} may not have been read",
                    event.nest,
                )
        ring.pushed.append((event.far, rows.size_bytes, rows))

    def pop(self, event: Load, rows: Rows) -> None:
        pipe, ring = self.ring(event)
        if event.count != ring.popped:
            raise self.error(f"box {event.count} leaves pipe {pipe.number} as number {ring.popped}", event.nest)
        if event.count >= ring.awaited[True]:
            raise self.error(f"box {event.count} of pipe {pipe.number} is read before it is ready", event.nest)
        if event.count >= len(ring.pushed):
            raise self.error(f"box {event.count} never goes into pipe {pipe.number}", event.nest)
        if ring.pushed[event.count] != (event.far, rows.size_bytes, rows):
            raise self.error(f"box {event.count} of pipe {pipe.number} is not what went in, or elsewhere", event.nest)
        ring.popped += 1

    def settled(self, event: Event) -> None:
        """A transfer has been waited for."""
        if isinstance(event, Load | Store) and event.pipe is not None:
            _, ring = self.ring(event)
            if event.inward:
                ring.loaded = max(ring.loaded, event.count + 1)
            else:
                ring.stored = max(ring.stored, event.count + 1)

    def signal(self, event: Signal) -> None:
        pipe, ring = self.ring(event)
        done = ring.stored if event.ready else ring.loaded
        if not ring.told[event.ready] < event.count <= done:
            what = "ready" if event.ready else "free"
            raise self.error(f"pipe {pipe.number} is told {event.count} {what}, and {done} are", event.nest)
        ring.told[event.ready] = event.count
        self._step(event)

    def awaits(self, event: Await) -> None:
        _, ring = self.ring(event)
        ring.awaited[event.ready] = max(ring.awaited[event.ready], event.count)
        self._step(event)

    def _step(self, event: Signal | Await) -> None:
        assert isinstance(event.pipe, int)
        key = (event.pipe, event.queue.block // self.members)
        self.steps.setdefault(event.queue.block, []).append((key, event))

    def end_pipes(self) -> None:
        """Nothing stays in a pipe, and both sides come to their ends: since counts only grow, any order shows it."""
        for (number, block), ring in self.rings.items():
            if ring.popped != len(ring.pushed):
                left = len(ring.pushed) - ring.popped
                raise self.error(f"{left} boxes of block {block} stay in pipe {number}")
        counts: dict[tuple[tuple[int, int], bool], int] = {}
        at = dict.fromkeys(self.steps, 0)
        moved = True
        while moved:
            moved = False
            for worker, steps in self.steps.items():
                while at[worker] < len(steps):
                    key, event = steps[at[worker]]
                    if isinstance(event, Await) and counts.get((key, event.ready), 0) < event.count:
                        break
                    if isinstance(event, Signal):
                        counts[key, event.ready] = event.count
                    at[worker] += 1
                    moved = True
        for worker, steps in self.steps.items():
            if at[worker] < len(steps):
                key, event = steps[at[worker]]
                ready, free = (counts.get((key, way), 0) for way in (True, False))
                told = f"awaits {event.count}, {ready} are ready and {free} free"
                raise self.error(f"pipe {event.pipe} is wedged: block {key[1]} {told}", event.nest)
        self.rings, self.steps = {}, {}


def elements(operand: Operand, box: Box) -> Rows:
    """Which elements of its tensor a box has, in their order."""
    return Panel(operand.value or "", operand.shape, box, operand.dtype).rows


def dense_bytes(operand: Operand, box: Box) -> int:
    return box_size(box) * operand.element_bytes
