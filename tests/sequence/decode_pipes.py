"""What words say of nests that pipes join: tg_pipe.h, and the parts of tg_tile.c that only programs with pipes have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tests.sequence.decode import NEXT_TILE, RESULTS, Address, following_of
from tests.sequence.decode_launch import Block, Conductor, Launch, call_at, width_of
from tests.sequence.emitted_words import U32, DecodeError, Nest, Pipe, Program

ALL = U32 - 1


@dataclass(frozen=True)
class Member:
    """One of a block's lanes that run at once: `lane` of those that take the nest's tiles in turn."""

    launch: Launch
    lane: int
    lanes: int


@dataclass
class Piped:
    """An operand that passes through a pipe: how many boxes were moved, and how many of these the other side knows."""

    pipe: Pipe
    is_result: bool
    operand: int
    moved: int = 0
    told: int = 0


class PipedConductor(Conductor):
    def __init__(self, program: Program, entry: str, longest_bytes: int, blocks: int = 0) -> None:
        super().__init__(program, entry, longest_bytes, blocks)
        self.members: list[Member] = []
        self.limits: set[int] = set()

    def run_launch(self, launch: Launch) -> Iterator[None]:
        """Nests that pipes join wait for the last of them. Then each does what it does behind its own turn."""
        if "TG_PIPES" not in self.program.defined:
            yield from super().run_launch(launch)
            return
        call = call_at(self.program, launch.current)
        flags, lanes = call.flags, 1 + (call.flags >> self.c["TG_LANES_SHIFT"])
        joins = bool(flags & self.c["TG_JOINS"])
        is_alone = not self.members and not joins
        self.make_moves(call.moves)
        own_lanes = 1 if is_alone else lanes
        self.members += [Member(launch, lane, own_lanes) for lane in range(own_lanes)]
        if joins:
            self.limits.add(width_of(self.program, flags, self.blocks) // lanes)
            self.is_launch_next = True
            self.start(launch.number + 1, *following_of(call))
            return
        members, self.members = self.members, []
        limits, self.limits = self.limits, set()
        blocks = width_of(self.program, flags, self.blocks) // own_lanes
        if limits - {blocks}:
            raise DecodeError("nests that run at once are not over as many blocks")
        numbered = list(enumerate(members))
        for number, own in groupby(numbered, key=lambda one: one[1].launch.number):
            self.done.append(("enter", number))
            lanes_of = list(own)
            for block in range(blocks):
                for place, member in lanes_of:
                    yield from self.run_block(PipedBlock(self, member, block, blocks, place, len(members)))
        self.barrier(launch, call, blocks * len(members))


class PipedBlock(Block):
    """One lane of a block: number `member` of the `members` that run at once."""

    def __init__(self, entry: Conductor, own: Member, block: int, blocks: int, member: int, members: int) -> None:
        super().__init__(entry, own.launch, block, blocks, block * members + member)
        self.lane, self.lanes, self.members = own.lane, own.lanes, members
        self.piped: list[Piped] = []

    def share(self) -> range:
        own = super().share()
        return range(own.start + self.lane, own.stop)

    def begin_share(self, nest: Nest, share: range) -> None:
        super().begin_share(nest, share)
        for i in range(nest.nest.operand_count):
            if self.is_piped(nest.home(i)):
                self.piped.append(Piped(self.pipe_of(nest.home(i)), bool(nest.operand(i).access), i))

    def compute(self, nest: Nest, fetching: int | None) -> Iterator[None]:
        return super().compute(nest, fetching) if self.members == 1 else self.run_piped(nest)

    # Pipes.

    def is_piped(self, home: int) -> bool:
        pipe = self.c["TG_IN_PIPE"]
        return home & pipe == pipe and home != self.c["TG_ABSENT"]

    def is_left(self, home: int) -> bool:
        return super().is_left(home) and not self.is_piped(home)

    def pipe_of(self, home: int) -> Pipe:
        return self.program.pipes[home & ~self.c["TG_IN_PIPE"]]

    def box_of(self, own: Piped, number: int) -> tuple[int, int]:
        """Of this lane's boxes, which ring one passes through, and the how manieth of that it is."""
        count, ring = divmod(number * self.lanes + self.lane, own.pipe.lanes)
        return ring, count

    def slot(self, own: Piped) -> tuple[object, ...]:
        """Of the next box, and which one that is: in a slice of the workspace, or in a member's scratchpad."""
        pipe, (ring, count) = own.pipe, self.box_of(own, own.moved)
        at = pipe.workspace + count % pipe.depth * pipe.slot_bytes
        which = pipe.number, ring, count
        if pipe.near:
            member = pipe.near - 1 + ring % pipe.near_lanes
            return "ring", at + ring // pipe.near_lanes * pipe.slice_bytes, member, *which
        if self.block >= pipe.slices:
            raise DecodeError(f"block {self.block} has no slice of pipe {pipe.number}")
        return "arena", at + (self.block * pipe.lanes + ring) * pipe.slice_bytes, *which

    def await_slot(self, nest: Nest, own: Piped) -> None:
        ring, count = self.box_of(own, own.moved)
        wanted = max(count + 1 - own.pipe.depth, 0) if own.is_result else count + 1
        self.done.append(("await", nest.number, own.pipe.number, ring, int(not own.is_result), wanted))

    def add_box(self, nest: Nest, i: int, tile: int, request: int | None) -> int | None:
        """A box goes into a slot that is free, or comes out of one that is ready: dense, and as long as it is."""
        if not self.is_piped(nest.home(i)):
            return super().add_box(nest, i, tile, request)
        pipe, o = self.pipe_of(nest.home(i)), nest.operand(i)
        if pipe.near:
            return request
        own = next(one for one in self.piped if one.pipe is pipe)
        size = o.row_bytes * o.rows
        for level in range(nest.words[o.levels] if o.levels else 0):
            size *= nest.words[o.levels + 1 + 2 * level]
        self.await_slot(nest, own)
        request = self.open() if request is None else request
        region, far, *which = self.slot(own)
        parts = ((nest.call.slots + o.scratch, region, far, size, 1, 0),)
        self.done.append(("store" if own.is_result else "load", request, nest.number, tile, i, parts, *which))
        own.moved += 1
        return request

    def tell(self, nest: Nest, *, ready: bool, is_near: bool = False) -> None:
        for own in self.piped:
            if own.is_result == ready and bool(own.pipe.near) == is_near and own.told < own.moved:
                ring, count = self.box_of(own, own.told)
                own.told = own.moved
                self.done.append(("signal", nest.number, own.pipe.number, ring, int(ready), count + 1))

    def await_near(self, nest: Nest) -> None:
        at: list[Address] = self.at[self.turn]
        for own in self.piped:
            if own.pipe.near:
                self.await_slot(nest, own)
                at[own.operand] = self.slot(own)

    def tell_near(self, nest: Nest, reads: int, results: int) -> None:
        for own in self.piped:
            if own.pipe.near:
                own.moved += (results if own.is_result else reads) >> own.operand & 1
        self.tell(nest, ready=False, is_near=True)
        self.tell(nest, ready=True, is_near=True)

    # Tiles.

    def advance_lane(self, nest: Nest) -> tuple[int, int, int]:
        loops = reads = results = 0
        for _ in range(self.lanes):
            own = self.advance(nest)
            loops, reads, results = max(loops, own[0]), reads | own[1], results | own[2]
        return loops, reads, results

    def stored(self, nest: Nest) -> None:
        self.settle("storing")
        self.tell(nest, ready=True)

    def run_piped(self, nest: Nest) -> Iterator[None]:
        head, self.tile, is_last = nest.nest, self.first_tile, False
        while not is_last:
            loops, reads, results = 0, ALL, nest.call.results
            following = self.tile + self.lanes
            is_last = following >= head.tiles
            self.settle("loading")
            self.tell(nest, ready=False)
            self.await_near(nest)
            self.done.append(self.begun(nest))
            if not is_last:
                loops, reads, results = self.advance_lane(nest)
            if head.is_double and not is_last:
                self.loading = self.add_boxes(nest, reads, NEXT_TILE, following, None)
            self.stored(nest)
            self.done.append(("end", nest.number, self.tile))
            self.tell_near(nest, reads, ALL if is_last else results)
            self.storing = self.add_boxes(nest, results, RESULTS, self.tile, None)
            yield
            if is_last:
                break
            self.turn_all(nest, loops)
            if not head.is_double:
                self.stored(nest)
                self.loading = self.add_boxes(nest, reads, NEXT_TILE, following, None)
            self.tile = following
        self.stored(nest)
