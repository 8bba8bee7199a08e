"""What the tile runtime does for one nest, event by event: a mirror of runtime/cluster/tg_tile.c.

The verifier proves properties of these lists, and a test proves that the C driver does exactly this, by its trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilegrad.ir.nest import Access, Nest, Operand, Range, Tile, operand_box, row_major_strides
from tilegrad.ir.schedule import Tiling
from tilegrad.scheduling.footprint import moving_axes, tiles

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
    """A request for a box: opened and given all its parts. `far_start` is where the box begins in the operand."""

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


Event = Start | Wait | Compute


def sizes_of(box: Box) -> tuple[int, ...]:
    return tuple(r.size for r in box)


def split_transfer(
    shape: tuple[int, ...], sizes: tuple[int, ...], element_bytes: int, longest_bytes: int
) -> tuple[Part, ...]:
    """The parts that move a box of these sizes: mirrors `start_transfer` and `add_rows`."""
    strides = tuple(stride * element_bytes for stride in row_major_strides(shape))
    inner = len(sizes)
    row_bytes = element_bytes
    while inner > 0 and (inner == len(sizes) or sizes[inner] == shape[inner]):
        inner -= 1
        row_bytes *= sizes[inner]
    rows = sizes[inner - 1] if inner > 0 else 1
    far_stride = strides[inner - 1] if inner > 0 else row_bytes
    outer = max(inner - 1, 0)
    parts: list[Part] = []
    scratch = 0
    for index in product(*(range(size) for size in sizes[:outer])):
        far = sum(i * stride for i, stride in zip(index, strides[:outer], strict=True))
        parts += _pieces(scratch, far, row_bytes, rows, far_stride, longest_bytes)
        scratch += row_bytes * rows
    return tuple(parts)


def _pieces(
    scratch: int, far: int, row_bytes: int, rows: int, far_stride: int, longest_bytes: int
) -> Iterator[Part]:
    """Pieces that the engine takes."""
    if rows == 1 or row_bytes == far_stride:
        left = row_bytes * rows
        while left > 0:
            piece = left if left < longest_bytes else longest_bytes & ~7
            yield Part(scratch, far, piece, 1, piece)
            scratch, far, left = scratch + piece, far + piece, left - piece
        return
    most = longest_bytes // row_bytes
    if most == 0:
        for row in range(rows):
            here, there = scratch + row * row_bytes, far + row * far_stride
            yield from _pieces(here, there, row_bytes, 1, row_bytes, longest_bytes)
        return
    while rows > 0:
        piece = min(rows, most)
        yield Part(scratch, far, row_bytes, piece, far_stride)
        scratch, far, rows = scratch + row_bytes * piece, far + far_stride * piece, rows - piece


@dataclass
class _Flight:
    """An operand while its nest runs: `flight_t`."""

    operand: Operand
    loops: int
    slots: int
    slot: int = 0
    loading: int | None = None
    storing: list[int | None] = field(default_factory=lambda: [None, None])


class _Driver:
    """`run_in_tiles`, with lists of events in place of calls."""

    def __init__(self, nest: Nest, tiling: Tiling, element_bytes: Mapping[str, int], longest_bytes: int) -> None:
        self.nest = nest
        self.tiling = tiling
        self.element_bytes = element_bytes
        self.longest_bytes = longest_bytes
        self.requests = 0
        self.parts: dict[tuple[str, tuple[int, ...]], tuple[Part, ...]] = {}
        self.flights = [
            _Flight(operand, sum(1 << i for i in moving_axes(operand, tiling.loops)), tiling.slots[operand.name].count)
            for operand in nest.operands
            if operand.value is not None
        ]

    def run(self) -> Iterator[Event]:
        every = tiles(self.nest, self.tiling.loops)
        yield from self._load(0, *every[0])
        for number, (tile, _) in enumerate(every):
            for flight in self.flights:
                yield from self._settle_load(flight, number)
            slots = {flight.operand.name: flight.slot for flight in self.flights}
            following = every[number + 1] if number + 1 < len(every) else None
            if following is not None and self.tiling.is_double:
                yield from self._load(number + 1, *following)
            yield from self._compute(number, tile, slots)
            yield from self._store(number, tile, None if following is None else following[1])
            if following is not None and not self.tiling.is_double:
                yield from self._load(number + 1, *following)
        for flight in self.flights:
            yield from self._settle_store(flight, 0, len(every) - 1)
            yield from self._settle_store(flight, 1, len(every) - 1)

    def _load(self, number: int, tile: Tile, moved: int) -> Iterator[Event]:
        for flight in self.flights:
            if flight.operand.access is not Access.READ or (number > 0 and not moved & flight.loops):
                continue
            if number > 0 and flight.slots == 2:
                flight.slot ^= 1
            box = operand_box(flight.operand, tile)
            flight.loading = None
            if prod(sizes_of(box)):
                flight.loading = self.requests
                yield self._start(flight, number, box, True)

    def _start(self, flight: _Flight, number: int, box: Box, inward: bool) -> Start:
        operand = flight.operand
        size = self.element_bytes[operand.name]
        key = (operand.name, sizes_of(box))
        if key not in self.parts:
            self.parts[key] = split_transfer(operand.shape, key[1], size, self.longest_bytes)
        far = size * sum(r.start * s for r, s in zip(box, row_major_strides(operand.shape), strict=True))
        self.requests += 1
        return Start(self.requests - 1, number, operand.name, inward, flight.slot, box, far, self.parts[key])

    def _settle_load(self, flight: _Flight, number: int) -> Iterator[Event]:
        if flight.loading is not None:
            yield Wait(flight.loading, number)
            flight.loading = None

    def _settle_store(self, flight: _Flight, slot: int, number: int) -> Iterator[Event]:
        request = flight.storing[slot]
        if request is not None:
            yield Wait(request, number)
            flight.storing[slot] = None

    def _compute(self, number: int, tile: Tile, slots: Mapping[str, int]) -> Iterator[Event]:
        for flight in self.flights:
            if flight.operand.access is Access.WRITE:
                yield from self._settle_store(flight, slots[flight.operand.name], number)
        boxes = {flight.operand.name: operand_box(flight.operand, tile) for flight in self.flights}
        yield Compute(number, tile, slots, boxes)

    def _store(self, number: int, tile: Tile, moved: int | None) -> Iterator[Event]:
        """`moved` None: behind the last tile."""
        for flight in self.flights:
            if flight.operand.access is not Access.WRITE or (moved is not None and not moved & flight.loops):
                continue
            box = operand_box(flight.operand, tile)
            if prod(sizes_of(box)):
                flight.storing[flight.slot] = self.requests
                yield self._start(flight, number, box, False)
            if not self.tiling.is_double:
                yield from self._settle_store(flight, flight.slot, number)
            if flight.slots == 2:
                flight.slot ^= 1


def nest_events(
    nest: Nest, tiling: Tiling, element_bytes: Mapping[str, int], longest_bytes: int
) -> Iterator[Event]:
    """Everything the runtime does for a nest, in order. `element_bytes` by operand."""
    return _Driver(nest, tiling, element_bytes, longest_bytes).run()
