"""What a kernel call needs and a transfer must move, from the operator's declaration alone.

Positions of index maps are enumerated here rather than computed from their ends, as they are where tiles are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tilegrad.ir.listing import Begin, Box, Load, Part, Place, Store, box_size
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, Range, Tile
from tilegrad.sequence.contents import units_of_box

_Positions = npt.NDArray[np.int64]


def box_text(box: Box) -> str:
    return "[" + ", ".join(f"{r.start}:{r.stop}" for r in box) + "]"


def dense_bytes(operand: Operand, box: Box) -> int:
    return box_size(box) * operand.element_bytes


def placed(nest: Nest, event: Begin) -> Iterator[tuple[Operand, Place]]:
    """Operands of a kernel call that have bytes: what it reads, and then what it writes."""
    pairs = list(zip(nest.operands, event.places, strict=True))
    for access in (Access.READ, Access.WRITE):
        for operand, place in pairs:
            if place is not None and operand.access is access and box_size(place.box):
                yield operand, place


def summed_axes(nest: Nest, operand: Operand) -> tuple[Axis, ...]:
    """The axes over which a result is summed: reduction axes that do not lead to other elements of it."""
    own = {axis for index in operand.index or () for axis, _ in index.terms}
    return tuple(axis for axis in nest.axes if axis.kind is AxisKind.REDUCTION and axis.name not in own)


class Needs:
    """Remembers what it found out: nests of one kind have the same tiles."""

    def __init__(self) -> None:
        self.positions: dict[object, tuple[Range, bool]] = {}
        self.calls: dict[object, str | None] = {}
        self.transfers: dict[object, bool] = {}

    def needed(self, operand: Operand, d: int, tile: Tile) -> tuple[Range, bool]:
        """Positions of a dimension, from the first to behind the last, and whether all between are needed too."""
        if operand.index is None:
            return Range(0, operand.shape[d]), True
        index, extent = operand.index[d], operand.shape[d]
        key = (index, extent, tuple((tile[axis].start, tile[axis].stop) for axis, _ in index.terms))
        if key not in self.positions:
            self.positions[key] = _enumerated(index, extent, tile)
        return self.positions[key]

    def wrong_call(self, nest: Nest, event: Begin) -> str | None:
        """What is wrong with a kernel call's tile and boxes, if anything."""
        boxes = tuple(None if place is None else place.box for place in event.places)
        key = (nest.kind, nest.skipped, tuple((r.start, r.stop) for r in event.ranges.values()), boxes)
        if key not in self.calls:
            self.calls[key] = self._wrong_tile(nest, event.ranges) or self._wrong_boxes(nest, event.ranges, boxes)
        return self.calls[key]

    def _wrong_tile(self, nest: Nest, tile: Tile) -> str | None:
        for axis in nest.axes:
            r = tile[axis.name]
            if r.start < 0 or r.stop > axis.extent or (axis.kind is AxisKind.INNER and r.size != axis.extent):
                return f"the range of axis '{axis.name}' cannot be: {r}"
        return None

    def _wrong_boxes(self, nest: Nest, tile: Tile, boxes: Sequence[Box | None]) -> str | None:
        """A box has all that the kernel needs, and for results nothing that it does not write."""
        for operand, box in zip(nest.operands, boxes, strict=True):
            if (box is None) is not (operand.value is None):
                return f"operand '{operand.name}' has no place, or one too many"
            for d in range(len(operand.shape) if box is not None else 0):
                assert box is not None
                needed, is_dense = self.needed(operand, d, tile)
                is_enough = not needed.size or (box[d].start <= needed.start and needed.stop <= box[d].stop)
                if operand.access is Access.WRITE and needed.size:
                    is_enough = is_dense and box[d] == needed
                if not is_enough:
                    has = f"the box of '{operand.name}' has {box[d].start} to {box[d].stop} of dimension {d}"
                    return f"{has}, the kernel's are {needed.start} to {needed.stop}"
        return None

    def wrong_transfer(self, nest: Nest, operand: Operand, event: Load | Store) -> str | None:
        """That the parts move the box, all of it, and nothing else."""
        for r, extent in zip(event.box, operand.shape, strict=True):
            if not 0 <= r.start < r.stop <= extent:
                return f"the box {box_text(event.box)} passes the tensor's end"
        key = (nest.kind, operand.name, tuple(r.size for r in event.box), event.parts)
        if key not in self.transfers:
            self.transfers[key] = _moves_box(event.parts, event.box, operand)
        return None if self.transfers[key] else f"the transfer is not that of the box {box_text(event.box)}"


def _enumerated(index: Index, extent: int, tile: Tile) -> tuple[Range, bool]:
    numerators: _Positions = np.array([index.offset], dtype=np.int64)
    for axis, coefficient in index.terms:
        steps = coefficient * np.arange(tile[axis].start, tile[axis].stop, dtype=np.int64)
        if len(numerators) == 1 and coefficient > 0:
            numerators = numerators[0] + steps  # are in order, each of them once
        else:
            numerators = np.unique(np.add.outer(numerators, steps))
    positions = numerators[numerators % index.divisor == 0] // index.divisor
    positions = positions[(positions >= 0) & (positions < extent)]
    if not len(positions):
        return Range(0, 0), True
    needed = Range(int(positions[0]), int(positions[-1]) + 1)
    return needed, needed.size == len(positions)


def _moves_box(parts: tuple[Part, ...], box: Box, operand: Operand) -> bool:
    """Whether parts bring the elements of a box, in order, to where a dense box has them."""
    size = operand.element_bytes
    far: list[_Positions] = []
    near = 0
    for part in parts:
        if part.near_offset != near or part.row_bytes % size:
            return False
        near += part.size_bytes
        row = np.arange(0, part.row_bytes, size, dtype=np.int64)
        rows = np.arange(part.rows, dtype=np.int64) * part.far_stride + part.far_offset
        far.append(np.add.outer(rows, row).reshape(-1))
    wanted = size * units_of_box(operand.shape, tuple(r.size for r in box))
    moved = np.concatenate(far) if far else np.zeros(0, dtype=np.int64)
    return near == dense_bytes(operand, box) and bool(np.array_equal(moved, wanted))
