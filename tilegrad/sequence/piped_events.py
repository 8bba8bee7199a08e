"""What one nest does that is joined to others by pipes.

Results leave right behind their tiles, into a slot that has become free, and what comes out of a pipe is asked for when
it is ready. Both are told to the other side as soon as the transfer is done: while the next tile computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tilegrad.ir.listing import Await, End, Event, ListedNest, Load, Part, Queue, Signal, Store
from tilegrad.ir.nest import Access, Tile
from tilegrad.ir.pipes import Pipe, slot_offset
from tilegrad.ir.plan import Address
from tilegrad.sequence.handover import Handover
from tilegrad.sequence.nest_events import Flow, NestEvents, _Moving, sizes_of


class PipedEvents(NestEvents):
    """`pipes` by operand, `block` is whose slices they are."""

    def __init__(
        self, number: int, listed: ListedNest, homes: dict[str, Address], longest: int, pipes: Mapping[str, Pipe]
    ) -> None:
        super().__init__(number, listed, Handover(), homes, Flow(Queue(0, "")), longest)
        self.pipes = pipes
        self.block = 0
        self.moved: dict[str, int] = {}
        self.told: dict[str, int] = {}

    def at(self, flow: Flow, share: range, block: int) -> PipedEvents:
        own = self.of_block(flow, share)
        assert isinstance(own, PipedEvents)
        own.block, own.moved, own.told = block, dict.fromkeys(self.pipes, 0), dict.fromkeys(self.pipes, 0)
        return own

    def events(self) -> Iterator[Event]:
        """As `run_piped` of tg_tile.c."""
        first = self.share.start
        for one in self._of(Access.READ):
            yield from self._transfer(one, first, self.every[first][0])
        for tile in self.share:
            ranges = self.every[tile][0]
            following = self.every[tile + 1] if tile + 1 < self.share.stop else None
            yield from self._loaded()
            yield self._kernel(tile, ranges)
            if following is not None and self.tiling.is_double:
                yield from self._next(tile + 1, *following)
            yield from self._stored()
            yield End(self.kernels, self.number, tile)
            for one in self._of(Access.WRITE):
                if following is None or following[1] & one.loops:
                    yield from self._transfer(one, tile, ranges)
                    one.slot ^= one.slots - 1
            if following is not None and not self.tiling.is_double:
                yield from self._stored()
                yield from self._next(tile + 1, *following)
        yield from self._stored()

    def _of(self, access: Access) -> list[_Moving]:
        return [one for one in self.moving.values() if one.operand.access is access]

    def _next(self, tile: int, ranges: Tile, moved: int) -> Iterator[Event]:
        for one in self._of(Access.READ):
            if moved & one.loops:
                one.slot ^= one.slots - 1
                yield from self._transfer(one, tile, ranges)

    def _loaded(self) -> Iterator[Event]:
        yield from self.flow.settle_loads(self.number)
        yield from self._tell(ready=False)

    def _stored(self) -> Iterator[Event]:
        yield from self.flow.settle_stores(self.number)
        yield from self._tell(ready=True)

    def _tell(self, ready: bool) -> Iterator[Signal]:
        for name, pipe in self.pipes.items():
            is_result = self.moving[name].operand.access is Access.WRITE
            if is_result is ready and self.told[name] < self.moved[name]:
                self.told[name] = self.moved[name]
                yield Signal(self.flow.queue, self.number, pipe.number, ready, self.moved[name])

    def _transfer(self, one: _Moving, tile: int, ranges: Tile) -> Iterator[Event]:
        name = one.operand.name
        if name not in self.pipes:
            yield from self._start(one, tile, ranges, one.slot)
            return
        pipe, count, is_read = self.pipes[name], self.moved[name], one.operand.access is Access.READ
        wanted = count + 1 if is_read else max(count + 1 - pipe.depth, 0)
        yield Await(self.flow.queue, self.number, pipe.number, is_read, wanted)
        self.moved[name] += 1
        box, flow = one.box_at(ranges), self.flow
        if is_read:
            transfer = flow.loading = flow.open() if flow.loading is None else flow.loading
        else:
            transfer = flow.storing = flow.open() if flow.storing is None else flow.storing
        far = one.home.offset + slot_offset(pipe, self.block, count)
        part = Part(0, 0, prod(sizes_of(box)) * one.operand.element_bytes, 1, 0)
        kind = Load if is_read else Store
        where = (one.at[one.slot], one.home.region, far, (part,), pipe.number, count)
        yield kind(flow.queue, transfer, self.number, tile, name, box, *where)
