"""What one nest does that is joined to others by pipes.

Results leave right behind their tiles, into a slot that has become free, and what comes out of a pipe is asked for when
it is ready. Both are told to the other side as soon as the transfer is done: while the next tile computes. What passes
through a ring in L1 moves nowhere: a tile that needs it waits for the slot, and says so when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from tilegrad.ir.listing import RING, Await, Begin, End, Event, ListedNest, Part, Place, Queue, Signal, box_size
from tilegrad.ir.nest import Access, Tile
from tilegrad.ir.pipes import Pipe, slot_offset
from tilegrad.ir.plan import Address
from tilegrad.sequence.handover import Handover
from tilegrad.sequence.nest_events import Flow, NestEvents, _Moving


@dataclass(frozen=True)
class PipeEnd:
    """A pipe as one side has it; `near` is where in the producer's scratchpad its rings begin, None where in L2."""

    pipe: Pipe
    near: int | None


class PipedEvents(NestEvents):
    """`ends` by operand, `block` is whose slices they are, `lane` which of the nest's lanes this is."""

    def __init__(
        self, number: int, listed: ListedNest, homes: dict[str, Address], longest: int, ends: Mapping[str, PipeEnd]
    ) -> None:
        super().__init__(number, listed, Handover(), homes, Flow(Queue(0, "")), longest)
        self.ends = ends
        self.lanes = len(listed.lanes)
        self.block = self.lane = 0
        self.moved: dict[str, int] = {}
        self.told: dict[str, int] = {}

    def at(self, flow: Flow, share: range, block: int, lane: int) -> PipedEvents:
        own = self.of_block(flow, share)
        assert isinstance(own, PipedEvents)
        own.block, own.lane = block, lane
        own.moved, own.told = dict.fromkeys(self.ends, 0), dict.fromkeys(self.ends, 0)
        return own

    def events(self) -> Iterator[Event]:
        """As `run_piped` of tg_tile.c."""
        first = self.share.start
        for one in self._of(Access.READ):
            yield from self._transfer(one, first, self.every[first][0])
        for tile in self.share:
            ranges, following = self.every[tile][0], tile + self.lanes
            is_last = following >= self.share.stop
            moved = 0 if is_last else reduce(or_, (self.every[i][1] for i in range(tile + 1, following + 1)))
            yield from self._loaded()
            for near in self._near():
                yield self._await(*near)
            yield self._kernel(tile, ranges)
            if not is_last and self.tiling.is_double:
                yield from self._next(following, self.every[following][0], moved)
            yield from self._stored()
            yield End(self.kernels, self.number, tile)
            yield from self._tell_near(None if is_last else moved)
            for one in self._of(Access.WRITE):
                if is_last or moved & one.loops:
                    yield from self._transfer(one, tile, ranges)
            if not is_last and not self.tiling.is_double:
                yield from self._stored()
                yield from self._next(following, self.every[following][0], moved)
        yield from self._stored()

    def _of(self, access: Access) -> list[_Moving]:
        return [one for one in self.moving.values() if one.operand.access is access]

    def _near(self) -> Iterator[tuple[_Moving, Pipe]]:
        for name, end in self.ends.items():
            if end.near is not None:
                yield self.moving[name], end.pipe

    def _next(self, tile: int, ranges: Tile, moved: int) -> Iterator[Event]:
        for one in self._of(Access.READ):
            if moved & one.loops:
                one.slot ^= one.slots - 1
                yield from self._transfer(one, tile, ranges)

    def _loaded(self) -> Iterator[Event]:
        yield from self.flow.settle_loads(self.number)
        yield from self._tell(Access.READ)

    def _stored(self) -> Iterator[Event]:
        yield from self.flow.settle_stores(self.number)
        yield from self._tell(Access.WRITE)

    def _tell(self, access: Access, is_near: bool = False) -> Iterator[Signal]:
        """What was moved has arrived: the other side may know."""
        for name, end in self.ends.items():
            is_due = self.moving[name].operand.access is access and (end.near is not None) is is_near
            if is_due and self.told[name] < self.moved[name]:
                self.told[name] = self.moved[name]
                ring, count = self._box(end.pipe, self.moved[name] - 1)
                ready = access is Access.WRITE
                yield Signal(self.flow.queue, self.number, end.pipe.number, ring, ready, count + 1)

    def _tell_near(self, moved: int | None) -> Iterator[Signal]:
        """Of rings in L1, behind the last tile of a box."""
        for one, _ in self._near():
            self.moved[one.operand.name] += moved is None or bool(moved & one.loops)
        for access in (Access.READ, Access.WRITE):
            yield from self._tell(access, is_near=True)

    def _box(self, pipe: Pipe, number: int) -> tuple[int, int]:
        """Through which ring of the pipe this lane's box of a number passes, and the how manieth of it that is."""
        count, ring = divmod(number * self.lanes + self.lane, pipe.lanes)
        return ring, count

    def _await(self, one: _Moving, pipe: Pipe) -> Await:
        ring, count = self._box(pipe, self.moved[one.operand.name])
        is_read = one.operand.access is Access.READ
        wanted = count + 1 if is_read else max(count + 1 - pipe.depth, 0)
        return Await(self.flow.queue, self.number, pipe.number, ring, is_read, wanted)

    def _kernel(self, tile: int, ranges: Tile) -> Begin:
        """What passes through L1 is used where it is."""
        found = super()._kernel(tile, ranges)
        places = list(found.places)
        for i, operand in enumerate(self.nest.operands):
            end, place = self.ends.get(operand.name), places[i]
            if end is not None and end.near is not None and place is not None:
                box = self._box(end.pipe, self.moved[operand.name])
                at = end.near + slot_offset(end.pipe, self.block, *box)
                places[i] = Place(RING, at, place.box, end.pipe.number, *box)
        return replace(found, places=tuple(places))

    def _transfer(self, one: _Moving, tile: int, ranges: Tile) -> Iterator[Event]:
        name = one.operand.name
        if name not in self.ends:
            yield from self._start(one, tile, ranges, one.slot)
        elif self.ends[name].near is None:
            pipe = self.ends[name].pipe
            yield self._await(one, pipe)
            ring, count = self._box(pipe, self.moved[name])
            self.moved[name] += 1
            far = one.home.offset + slot_offset(pipe, self.block, ring, count)
            for event in self._start(one, tile, ranges, one.slot):
                dense = Part(0, 0, box_size(event.box) * one.operand.element_bytes, 1, 0)
                yield replace(event, far=far, parts=(dense,), pipe=pipe.number, ring=ring, count=count)
        if one.operand.access is Access.WRITE:
            one.slot ^= one.slots - 1
