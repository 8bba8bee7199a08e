"""What the replay knows of launches over blocks: whose scratchpad it is, and that no two are in each other's way.

Blocks are judged by their units, the least that a block takes: what is right for these is right for every width.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilegrad.analysis.footprint import units_of
from tilegrad.ir.listing import SCRATCH, Barrier, Enter, Event, Fetch, Listing, Load, Queue, Store, launch_before
from tilegrad.sequence.contents import Memory, Readers, View
from tilegrad.sequence.pipe_replay import PipeReplay


class LaunchReplay(PipeReplay):
    """The part of a replay that is about launches. `launched` is the nest whose blocks have not met yet, or -1.

    Of each region, `claims` say which unit of a launch writes, as content, and which reads: units have numbers, of
    which those below `first` are of another launch, and `many` are several units.
    """

    under_way: Mapping[tuple[Queue, int], object]

    def __init__(self, listing: Listing, entry: str) -> None:
        super().__init__(listing, entry)
        self.launched = -1
        self.first, self.base, self.many, self.tiles_per_unit = 1, 1, 0, 1
        self.slices: dict[tuple[int, int, int], int] = {}  # whose a ring of a block is
        self.seen: set[int] = set()
        # What blocks bring of the next launch: operands, transfers, and where that is, by block.
        self.asked: list[Load] = []
        self.ahead: set[tuple[Queue, int]] = set()
        self.kept: dict[int, list[tuple[int, int]]] = {}
        has_launches = any(listed.blocks for listed in self.nests)
        outer = {name: memory for name, memory in self.memories.items() if has_launches and name != SCRATCH}
        self.claims = {name: Memory(memory.size_bytes, self.unit) for name, memory in outer.items()}
        self.scratchpads = {0: self.memories[SCRATCH]}

    def begin_launch(self, event: Enter) -> None:
        """If the nest whose turn it is has blocks."""
        listed = self.nests[event.nest]
        is_joined = self.launched >= 0 and self.nests[self.launched].joins and listed.member > 0
        if self.launched >= 0 and not is_joined:
            raise self.error(f"the blocks of nest {self.launched} have not met at a barrier", self.launched)
        if not listed.blocks:
            return
        assert listed.tiling is not None
        if is_joined:
            self.end_block()
        self.launched, self.block, self.members = event.nest, -1, listed.members
        units, self.tiles_per_unit = units_of(listed.nest, listed.tiling.loops)
        self.base = self.many + 1
        if not is_joined:
            self.first, self.seen, self.slices = self.base, set(), {}
        self.many = self.base + units
        asked, self.asked = self.asked, []
        for load in asked:  # a unit of this launch reads that
            self.claim(load)

    def turn_to(self, event: Event) -> None:
        """Whose event it is. A block begins with a scratchpad that holds nothing but what it has brought ahead."""
        if isinstance(event, Enter | Barrier):
            return
        block = event.queue.block
        if self.launched < 0:
            if block:
                raise self.error(f"block {block} does something outside of a launch")
            return
        if block == self.block:
            return
        if not 0 <= block < self.nests[self.launched].blocks or block in self.seen:
            raise self.error(f"block {block} is none of the launch, or comes twice")
        self.end_block()
        self.ahead = {key for key in self.ahead if key[0].block != block}
        self.seen.add(block)
        self.block = block
        cluster, size_bytes = block % self.plan.schedule.target.clusters, self.scratchpads[0].size_bytes
        if cluster not in self.scratchpads:
            self.scratchpads[cluster] = Memory(size_bytes, self.unit)
        self.memories[SCRATCH] = self.scratchpads[cluster]
        self.memories[SCRATCH].clear(self.kept.pop(block, ()))

    def is_ahead(self, event: Fetch | Load | Store) -> bool:
        """Whether it is of the next launch."""
        if self.launched < 0 or not isinstance(event, Fetch | Load) or self.nests[event.nest].ahead is None:
            return False
        return launch_before(self.nests, event.nest) == self.launched

    def bring_ahead(self, event: Fetch | Load, offset: int, size_bytes: int) -> None:
        """If it is of the next launch, it stays over the barrier."""
        if self.is_ahead(event):
            self.kept.setdefault(self.block, []).append((offset, offset + size_bytes))
            self.ahead.add((event.queue, event.transfer))

    def end_block(self) -> None:
        """The entry's conductor, too, before a launch: nothing is under way to a scratchpad that is cleared."""
        what = f"block {self.block} ends" if self.block >= 0 else "a launch begins"
        if self.running is not None:
            raise self.error(f"{what} while a kernel runs")
        for key in self.under_way.keys() - self.ahead:
            if key[0].block == max(self.block, 0) and key[0].engine.endswith("-L1"):
                raise self.error(f"{what} while a transfer is under way")

    def barrier(self, event: Barrier) -> None:
        if event.nest != self.launched or event.blocks != self.nests[event.nest].blocks:
            raise self.error("a barrier of no launch", event.nest)
        if self.nests[event.nest].joins:
            raise self.error("a barrier before all nests that pipes join have begun", event.nest)
        self.end_block()
        self.end_pipes()
        self.launched = self.block = -1
        self.memories[SCRATCH] = self.scratchpads[0]
        self.memories[SCRATCH].clear(self.kept.get(0, ()))

    def _owner(self, event: Load | Store) -> int:
        """A unit of the launch, or a ring of a block, which both of its sides use."""
        if event.pipe is None:
            return self.base + event.tile // self.tiles_per_unit
        key = self._key(event, event)
        if key not in self.slices:
            self.many += 1
            self.slices[key] = self.many - 1
        return self.slices[key]

    def claim(self, event: Load | Store) -> None:
        """What a unit moves to L2 or from there is its own as long as the launch lasts, or nobody's who writes. What is
        asked for of the next launch nobody writes."""
        is_ahead = self.is_ahead(event)
        if self.launched < 0 or not (is_ahead or event.nest == self.launched):
            return
        if isinstance(event, Load) and is_ahead:
            self.asked.append(event)
        own = self.many if is_ahead else self._owner(event)
        for part in event.parts:
            found = self.claims[event.region].part(event.far, part)
            assert found is not None
            writers, readers = found
            is_read = int(readers.max()) >= self.first
            suspects: list[View | Readers] = [writers] if int(writers.max()) >= self.first else []
            suspects += [readers] if is_read and not event.inward else []
            wrong = [(one >= self.first) & (one != own) for one in suspects]
            if any(one.any() for one in wrong):
                row, column = (int(at[0]) for at in np.nonzero(np.logical_or.reduce(wrong)))
                other = int(max(writers[row, column], readers[row, column]) - self.base) * self.tiles_per_unit
                what = "reads what another block may write" if event.inward else "writes what another block may use"
                is_one = 0 <= other < self.nests[event.nest].tile_count
                tiles = f"tiles {event.tile} and {other}" if is_one else "several tiles"
                raise self.error(f"'{event.operand}' {what}: {tiles} share bytes of {event.region}", event.nest)
            if not event.inward:
                writers[...] = own
            else:
                readers[...] = np.where((readers >= self.first) & (readers != own), self.many, own) if is_read else own
