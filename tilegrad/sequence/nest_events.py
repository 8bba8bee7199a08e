"""What one nest in tiles does: loads, kernel calls, stores and the waits between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilegrad.analysis.footprint import Level, moving_axes, tiles, transfer_levels
from tilegrad.ir.listing import (
    CORES,
    SCRATCH,
    Begin,
    Box,
    End,
    Event,
    ListedNest,
    Load,
    Part,
    Place,
    Queue,
    Store,
    Wait,
)
from tilegrad.ir.nest import Access, Operand, Range, Tile, operand_box, operand_range, row_major_strides
from tilegrad.ir.plan import Address
from tilegrad.sequence.handover import Handover

CONDUCTING = 0
"""The block whose conductor runs the entry."""

AHEAD_OTHERS, AHEAD_LAST, AHEAD_COUNT = 2, 3, 4


def ahead_of(number: int, is_last: bool) -> int:
    """Which transfer brings operands to a nest that comes together with others, the `number`th behind the first: one
    for each that has its turn soon, one for those that follow, and one for the last."""
    return AHEAD_LAST if is_last else min(number, AHEAD_OTHERS)


def sizes_of(box: Box) -> tuple[int, ...]:
    return tuple(r.size for r in box)


def split_transfer(
    levels: Sequence[Level], sizes: Sequence[int], longest_bytes: int, is_long: bool
) -> tuple[Part, ...]:
    """The parts that move a box of these sizes. `is_long` if some box of the operand is more than the engine takes."""
    counts = [level.size(sizes) for level in levels]
    strides = [level.far_stride for level in levels]
    row_bytes, rows, stride = counts[0], 1, 0
    if len(counts) > 1:
        rows, stride = counts[1], strides[1]
    if len(counts) <= 2 and not is_long:
        return (Part(0, 0, row_bytes, rows, stride),)
    parts: list[Part] = []
    near = 0
    for index in product(*(range(count) for count in reversed(counts[2:]))):
        far = sum(i * step for i, step in zip(index, reversed(strides[2:]), strict=True))
        parts += pieces(near, far, row_bytes, rows, stride, longest_bytes)
        near += row_bytes * rows
    return tuple(parts)


def pieces(near: int, far: int, row_bytes: int, rows: int, stride: int, longest_bytes: int) -> Iterator[Part]:
    """Pieces that the engine takes."""
    most = longest_bytes // row_bytes
    if most == 0:
        for row in range(rows):
            done = 0
            while done < row_bytes:
                left = row_bytes - done
                piece = left if left < longest_bytes else longest_bytes & ~7
                yield Part(near + row * row_bytes + done, far + row * stride + done, piece, 1, 0)
                done += piece
        return
    while rows > 0:
        piece = min(rows, most)
        yield Part(near, far, row_bytes, piece, stride)
        near, far, rows = near + row_bytes * piece, far + stride * piece, rows - piece


@dataclass
class Flow:
    """What is under way as nests follow each other: at most one transfer that loads and one that stores. Of nests that
    come together, others load `ahead`, by `ahead_of`, for those behind the first, which computes meanwhile."""

    queue: Queue
    transfers: int = 0
    loading: int | None = None
    ahead: list[int | None] = field(default_factory=lambda: [None] * AHEAD_COUNT)
    storing: int | None = None

    def open(self) -> int:
        self.transfers += 1
        return self.transfers - 1

    def settle_loads(self, nest: int) -> Iterator[Wait]:
        if self.loading is not None:
            yield Wait(self.queue, self.loading, nest)
            self.loading = None

    def settle_stores(self, nest: int) -> Iterator[Wait]:
        if self.storing is not None:
            yield Wait(self.queue, self.storing, nest)
            self.storing = None


class _Moving:
    """An operand while its nest runs. `slot` is the one that the tile loaded last lies in (results: computed in)."""

    def __init__(self, operand: Operand, listed: ListedNest, home: Address, longest_bytes: int) -> None:
        tiling, place = listed.tiling, listed.place
        assert tiling is not None and place is not None
        slot = tiling.slots[operand.name]
        self.operand = operand
        self.home = home
        self.loops = sum(1 << i for i in moving_axes(operand, tiling.loops))
        self.slots = max(slot.count, 1)
        self.slot = 0
        self.at = tuple(place.slots_offset + slot.offset_bytes + k * slot.slot_bytes for k in range(self.slots))
        self.levels = transfer_levels(operand, listed.nest, tiling.loops)
        self.longest_bytes = longest_bytes
        self.is_long = slot.slot_bytes > longest_bytes
        self.strides = row_major_strides(operand.shape)
        self.parts: dict[tuple[int, ...], tuple[Part, ...]] = {}
        self.ranges: dict[object, Range] = {}
        self.box_at = self._boxes()

    def _boxes(self) -> Callable[[Tile], Box]:
        """`operand_box`, with what tiles have in common computed once."""
        operand = self.operand
        if operand.index is None:
            whole = tuple(Range(0, extent) for extent in operand.shape)
            return lambda tile: whole

        def box(tile: Tile) -> Box:
            found = []
            for d, index in enumerate(operand.index or ()):
                key = (d, *((tile[axis].start, tile[axis].stop) for axis, _ in index.terms))
                one = self.ranges.get(key)
                if one is None:
                    one = self.ranges[key] = operand_range(index, operand.shape[d], tile)
                found.append(one)
            return tuple(found)

        return box

    def may_take_several(self, every: Sequence[tuple[Tile, int]]) -> bool:
        """Whether some box is not one command: it has more levels, is too long, or is empty."""
        if self.is_long or len(self.levels) > 2:
            return True
        return any(not prod(sizes_of(self.box_at(tile))) for tile, _ in every)

    def parts_of(self, sizes: tuple[int, ...]) -> tuple[Part, ...]:
        found = self.parts.get(sizes)
        if found is None:
            found = self.parts[sizes] = split_transfer(self.levels, sizes, self.longest_bytes, self.is_long)
        return found

    def far(self, box: Box) -> int:
        start = sum(r.start * stride for r, stride in zip(box, self.strides, strict=True))
        return self.home.offset + self.operand.element_bytes * start


_Leaving = tuple[_Moving, int, Tile, int]
"""A result of a tile, and the slot it is in."""


class NestEvents:
    """One nest. `number` is its place in the entry; `homes` are addresses by operand. A block takes the tiles `share`
    of it."""

    def __init__(
        self,
        number: int,
        listed: ListedNest,
        handover: Handover,
        homes: dict[str, Address],
        flow: Flow,
        longest: int,
        *,
        ahead: int | None = None,
        kept: Collection[str] = (),
    ) -> None:
        """`ahead`: it comes together with the nest before it, by this transfer. Results that are `kept` never leave."""
        assert listed.tiling is not None
        self.ahead = ahead
        self.kept = kept
        self.number = number
        self.kernels = Queue(flow.queue.block, CORES)
        self.nest = listed.nest
        self.tiling = listed.tiling
        self.handover = handover
        self.flow = flow
        self.moving = {o.name: _Moving(o, listed, homes[o.name], longest) for o in listed.nest.present}
        self.every = tiles(self.nest, self.tiling.loops)
        results = [one for one in self.moving.values() if one.operand.access is Access.WRITE]
        self.is_large = any(one.may_take_several(self.every) for one in results)
        self.share = range(len(self.every))

    def of_block(self, flow: Flow, share: range) -> NestEvents:
        """The same for a block that takes these tiles. What all have in common is computed once."""
        own = copy(self)
        own.flow, own.kernels, own.share = flow, Queue(flow.queue.block, CORES), share
        for one in self.moving.values():
            one.slot = 0
        return own

    def first_loads(self, names: Collection[str]) -> Iterator[Load | Store]:
        """Requests operands of the first tile."""
        flow, tile = self.flow, self.share.start
        if self.ahead is not None:
            flow.loading, flow.ahead[self.ahead] = flow.ahead[self.ahead], flow.loading
        for one in self.moving.values():
            if one.operand.access is Access.READ and one.operand.name in names:
                yield from self._start(one, tile, self.every[tile][0], one.slot)
        if self.ahead is not None:
            flow.loading, flow.ahead[self.ahead] = flow.ahead[self.ahead], flow.loading

    def late_loads(self) -> Iterator[Load | Store]:
        """What is requested when its turn has come, or when the first of those that it comes with has begun."""
        yield from self.first_loads(self._late)

    @property
    def has_late_loads(self) -> bool:
        return any(self.moving[name].operand.access is Access.READ for name in self._late)

    @property
    def _late(self) -> list[str]:
        own = self.handover
        return [name for name in self.moving if name not in own.early and name not in own.taken]

    def run(
        self,
        hands_over: bool,
        goes_on: bool = False,
        in_first: Iterable[Event] = (),
        in_last: Iterable[Event] = (),
        at_end: Iterable[Event] = (),
    ) -> Iterator[Event]:
        """What is done for its neighbours while the first tile computes, while the last one does, and while its results
        leave: `in_first`, `in_last` and `at_end`. If it `hands_over`, its last results leave later (`last_stores`), and
        if it also `goes_on`, nobody waits for what is on its way out by then."""
        own = self.handover
        if own.drains:
            yield from self.flow.settle_stores(self.number)
        if self.ahead is not None:
            self.flow.loading, self.flow.ahead[self.ahead] = self.flow.ahead[self.ahead], None
        else:
            yield from self.late_loads()
        leaves_late = self.tiling.is_double and not self.is_large
        asks_ahead = self.tiling.asks_ahead and not self.is_large
        kept: list[_Leaving] = []
        for tile in self.share:
            ranges = self.every[tile][0]
            is_first = tile == self.share.start
            following = self.every[tile + 1] if tile + 1 < self.share.stop else None
            kernel = self._kernel(tile, ranges)
            if not is_first and not self.is_large:
                yield from self.flow.settle_stores(self.number)
            if asks_ahead and tile and following is not None:
                yield from self._ask_ahead(kept, tile + 1, *following)
                kept = []
            else:
                yield from self.flow.settle_loads(self.number)
            yield kernel
            yield from in_first if is_first else ()
            yield from self._leave(kept)
            if following is None:
                yield from in_last
            elif self.tiling.is_double and not (asks_ahead and tile):
                yield from self._load(tile + 1, *following)
            yield End(self.kernels, self.number, tile)
            if following is not None and leaves_late:
                kept = list(self._results(tile, ranges, following[1]))
                continue
            if not goes_on:
                yield from self.flow.settle_stores(self.number)
            if following is None and hands_over:
                return
            yield from self._leave(self._results(tile, ranges, None if following is None else following[1]))
            if following is not None and not self.tiling.is_double:
                yield from self.flow.settle_stores(self.number)
                yield from self._load(tile + 1, *following)
        yield from at_end
        if not own.leaves:
            yield from self.flow.settle_stores(self.number)

    def _ask_ahead(self, kept: Iterable[_Leaving], tile: int, ranges: Tile, moved: int) -> Iterator[Event]:
        """Results leave and a tile is requested, before the one that comes is waited for."""
        coming, self.flow.loading = self.flow.loading, None
        yield from self._leave(kept)
        yield from self._load(tile, ranges, moved)
        if coming is not None:
            yield Wait(self.flow.queue, coming, self.number)

    def last_stores(self) -> Iterator[Load | Store]:
        """Results of the last tile leave."""
        tile = self.share.stop - 1
        yield from self._leave(self._results(tile, self.every[tile][0], None))

    def _kernel(self, tile: int, ranges: Tile) -> Begin:
        places: list[Place | None] = []
        for operand in self.nest.operands:
            if operand.value is None:
                places.append(None)
                continue
            one = self.moving[operand.name]
            at, box = one.at[one.slot], one.box_at(ranges)
            if operand.name in self.handover.taken:
                at = self.handover.taken[operand.name] + one.far(box) - one.home.offset
            places.append(Place(SCRATCH, at, box))
        return Begin(self.kernels, self.number, tile, ranges, tuple(places))

    def _load(self, tile: int, ranges: Tile, moved: int) -> Iterator[Load | Store]:
        for one in self.moving.values():
            is_taken = one.operand.name in self.handover.taken
            if one.operand.access is Access.READ and moved & one.loops and not is_taken:
                one.slot ^= one.slots - 1
                yield from self._start(one, tile, ranges, one.slot)

    def _results(self, tile: int, ranges: Tile, moved: int | None) -> Iterator[_Leaving]:
        """Results that leave, and take their other slot. `moved` None: behind the last tile."""
        for one in self.moving.values():
            is_result = one.operand.access is Access.WRITE and one.operand.name not in self.kept
            if is_result and (moved is None or moved & one.loops):
                yield one, tile, ranges, one.slot
                one.slot ^= one.slots - 1

    def _leave(self, results: Iterable[_Leaving]) -> Iterator[Load | Store]:
        for one in results:
            yield from self._start(*one)

    def _start(self, one: _Moving, tile: int, ranges: Tile, slot: int) -> Iterator[Load | Store]:
        box = one.box_at(ranges)
        sizes = sizes_of(box)
        if not prod(sizes):
            return
        flow = self.flow
        if one.operand.access is Access.READ:
            kind: type[Load] | type[Store] = Load
            transfer = flow.loading = flow.open() if flow.loading is None else flow.loading
        else:
            kind = Store
            transfer = flow.storing = flow.open() if flow.storing is None else flow.storing
        home, parts = one.home.region, one.parts_of(sizes)
        yield kind(
            flow.queue, transfer, self.number, tile, one.operand.name, box, one.at[slot], home, one.far(box), parts
        )


def whole_call(number: int, listed: ListedNest, homes: dict[str, Address], everything: Tile) -> Iterator[Event]:
    """A nest that computes where its operands live."""
    places = []
    for operand in listed.nest.operands:
        place = None
        if operand.value is not None:
            home, box = homes[operand.name], operand_box(operand, everything)
            start = sum(r.start * s for r, s in zip(box, row_major_strides(operand.shape), strict=True))
            skipped = operand.element_bytes * start if prod(sizes_of(box)) else 0
            place = Place(home.region, home.offset + skipped, box)
        places.append(place)
    kernels = Queue(CONDUCTING, CORES)
    yield Begin(kernels, number, 0, everything, tuple(places))
    yield End(kernels, number, 0)
