"""What the tile runtime does, event by event: a mirror of runtime/cluster/tg_tile.c.

The verifier proves properties of these lists, and a test proves that the C driver does exactly this, by its trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeVar

from tilegrad.analysis.footprint import Level, moving_axes, tiles, transfer_levels
from tilegrad.ir.nest import Access, Nest, Operand, Range, Tile, operand_box, row_major_strides
from tilegrad.ir.schedule import Tiling

Box = tuple[Range, ...]

# Transfers that may be under way at once (TG_DMA_REQUESTS in runtime/cluster/tg_cluster.h).
MOST_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class Part:
    """One command to the engine: rows dense in scratchpad, `far_stride` apart in L2. Offsets are the box's own."""

    scratch_offset: int
    far_offset: int
    row_bytes: int
    rows: int
    far_stride: int

    @property
    def size_bytes(self) -> int:
        return self.row_bytes * self.rows

    @property
    def far_stop(self) -> int:
        return self.far_offset + (self.rows - 1) * self.far_stride + self.row_bytes


@dataclass(frozen=True, slots=True)
class Start:
    """A box is added to a request, which its first box opens. `far_start` is where the box begins in the operand."""

    request: int
    tile: int
    operand: str
    inward: bool
    slot: int
    box: Box
    far_start: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    request: int
    tile: int


@dataclass(frozen=True, slots=True)
class Compute:
    """One kernel call on all cores. `slots` and `boxes` by operand."""

    number: int
    tile: Tile
    slots: Mapping[str, int]
    boxes: Mapping[str, Box]


@dataclass(frozen=True, slots=True)
class Fork:
    """Cores begin a kernel call, which ends with its `Compute`: what happens in between happens meanwhile."""

    kernel: Compute


Event = Start | Wait | Fork | Compute
T = TypeVar("T")


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
    scratch = 0
    for index in product(*(range(count) for count in reversed(counts[2:]))):
        far = sum(i * step for i, step in zip(index, reversed(strides[2:]), strict=True))
        parts += pieces(scratch, far, row_bytes, rows, stride, longest_bytes)
        scratch += row_bytes * rows
    return tuple(parts)


def pieces(scratch: int, far: int, row_bytes: int, rows: int, stride: int, longest_bytes: int) -> Iterator[Part]:
    """Pieces that the engine takes."""
    most = longest_bytes // row_bytes
    if most == 0:
        for row in range(rows):
            done = 0
            while done < row_bytes:
                left = row_bytes - done
                piece = left if left < longest_bytes else longest_bytes & ~7
                yield Part(scratch + row * row_bytes + done, far + row * stride + done, piece, 1, 0)
                done += piece
        return
    while rows > 0:
        piece = min(rows, most)
        yield Part(scratch, far, row_bytes, piece, stride)
        scratch, far, rows = scratch + row_bytes * piece, far + stride * piece, rows - piece


@dataclass
class Flow:
    """What is under way as nests follow each other: the requests of `tg_tiles`."""

    requests: int = 0
    loading: int | None = None
    storing: int | None = None

    def open(self) -> int:
        self.requests += 1
        return self.requests - 1

    def settle_loads(self, tile: int) -> Iterator[Wait]:
        if self.loading is not None:
            yield Wait(self.loading, tile)
            self.loading = None

    def settle_stores(self, tile: int) -> Iterator[Wait]:
        if self.storing is not None:
            yield Wait(self.storing, tile)
            self.storing = None


@dataclass
class _Moving:
    """An operand while its nest runs. `slot` is the one that the tile loaded last lies in (results: computed in)."""

    operand: Operand
    loops: int
    slots: int
    slot: int = 0


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A result of a tile, and the slot it is in."""

    moving: _Moving
    number: int
    tile: Tile
    slot: int


class NestRun:
    """One nest: `run_nest`, with events in place of calls."""

    def __init__(
        self,
        nest: Nest,
        tiling: Tiling,
        element_bytes: Mapping[str, int],
        longest_bytes: int,
        flow: Flow | None = None,
    ) -> None:
        self.nest = nest
        self.tiling = tiling
        self.element_bytes = element_bytes
        self.longest_bytes = longest_bytes
        self.flow = flow or Flow()
        self.parts: dict[tuple[str, tuple[int, ...]], tuple[Part, ...]] = {}
        self.moving = [
            _Moving(operand, sum(1 << i for i in moving_axes(operand, tiling.loops)), tiling.slots[operand.name].count)
            for operand in nest.operands
            if operand.value is not None
        ]
        self.levels = {
            operand.name: transfer_levels(operand, nest, tiling.loops, element_bytes[operand.name])
            for operand in nest.operands
            if operand.value is not None
        }
        self.every = tiles(nest, tiling.loops)
        results = [one.operand for one in self.moving if one.operand.access is Access.WRITE]
        self.is_large = any(map(self._may_take_several, results))

    def _may_take_several(self, operand: Operand) -> bool:
        """Whether some box of an operand is not one command: it has more levels, is too long, or is empty."""
        is_long = self.tiling.slots[operand.name].slot_bytes > self.longest_bytes
        if is_long or len(self.levels[operand.name]) > 2:
            return True
        return any(not prod(sizes_of(operand_box(operand, tile))) for tile, _ in self.every)

    def first_loads(self, names: Collection[str]) -> Iterator[Event]:
        """Requests operands of the first tile: `load_first`."""
        for one in self.moving:
            if one.operand.access is Access.READ and one.operand.name in names:
                yield from self._start(one, 0, self.every[0][0], one.slot, True)

    def run(
        self,
        *,
        early: Collection[str] = (),
        drains: bool = False,
        leaves: bool = False,
        hands_over: bool = False,
        in_first: Iterable[T] = (),
        in_last: Iterable[T] = (),
    ) -> Iterator[Event | T]:
        """`early` operands were requested before, or need not be. What the runtime does for its neighbours while the
        first tile computes, and while the last one does: `in_first` and `in_last`. If it `hands_over`, its last results
        leave later (`last_stores`)."""
        if drains:
            yield from self.flow.settle_stores(0)
        yield from self.first_loads([one.operand.name for one in self.moving if one.operand.name not in early])
        leaves_late = self.tiling.is_double and not self.is_large
        kept: list[_Leaving] = []
        for number, (tile, _) in enumerate(self.every):
            following = self.every[number + 1] if number + 1 < len(self.every) else None
            kernel = self._kernel(number, tile)
            if number and not self.is_large:
                yield from self.flow.settle_stores(number)
            yield from self.flow.settle_loads(number)
            yield Fork(kernel)
            yield from in_first if number == 0 else ()
            yield from self._leave(kept)
            if following is None:
                yield from in_last
            elif self.tiling.is_double:
                yield from self._load(number + 1, *following)
            yield kernel
            if following is not None and leaves_late:
                kept = list(self._store(number, tile, following[1]))
                continue
            yield from self.flow.settle_stores(number)
            if following is None and hands_over:
                return
            yield from self._leave(self._store(number, tile, None if following is None else following[1]))
            if following is not None and not self.tiling.is_double:
                yield from self.flow.settle_stores(number)
                yield from self._load(number + 1, *following)
        if not leaves:
            yield from self.flow.settle_stores(len(self.every) - 1)

    def last_stores(self) -> Iterator[Start]:
        """Results of the last tile leave."""
        number = len(self.every) - 1
        yield from self._leave(self._store(number, self.every[number][0], None))

    def _kernel(self, number: int, tile: Tile) -> Compute:
        slots = {one.operand.name: one.slot for one in self.moving}
        return Compute(number, tile, slots, {o.name: operand_box(o, tile) for o in (m.operand for m in self.moving)})

    def _load(self, number: int, tile: Tile, moved: int) -> Iterator[Event]:
        for one in self.moving:
            if one.operand.access is Access.READ and moved & one.loops:
                one.slot ^= one.slots - 1
                yield from self._start(one, number, tile, one.slot, True)

    def _store(self, number: int, tile: Tile, moved: int | None) -> Iterator[_Leaving]:
        """Results that leave, and take their other slot. `moved` None: behind the last tile."""
        for one in self.moving:
            if one.operand.access is Access.WRITE and (moved is None or moved & one.loops):
                yield _Leaving(one, number, tile, one.slot)
                one.slot ^= one.slots - 1

    def _leave(self, results: Iterable[_Leaving]) -> Iterator[Start]:
        for one in results:
            yield from self._start(one.moving, one.number, one.tile, one.slot, False)

    def _start(self, one: _Moving, number: int, tile: Tile, slot: int, inward: bool) -> Iterator[Start]:
        operand = one.operand
        box = operand_box(operand, tile)
        sizes = sizes_of(box)
        if not prod(sizes):
            return
        size = self.element_bytes[operand.name]
        key = (operand.name, sizes)
        if key not in self.parts:
            is_long = self.tiling.slots[operand.name].slot_bytes > self.longest_bytes
            self.parts[key] = split_transfer(self.levels[operand.name], sizes, self.longest_bytes, is_long)
        far = size * sum(r.start * s for r, s in zip(box, row_major_strides(operand.shape), strict=True))
        if inward:
            request = self.flow.loading = self.flow.open() if self.flow.loading is None else self.flow.loading
        else:
            request = self.flow.storing = self.flow.open() if self.flow.storing is None else self.flow.storing
        yield Start(request, number, operand.name, inward, slot, box, far, self.parts[key])


def nest_events(nest: Nest, tiling: Tiling, element_bytes: Mapping[str, int], longest_bytes: int) -> Iterator[Event]:
    """What the runtime does for a nest on its own, in order. `element_bytes` by operand."""
    return NestRun(nest, tiling, element_bytes, longest_bytes).run()
