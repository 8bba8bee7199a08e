"""What a tile touches: boxes, bytes and transfers, all from the axes and the index maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilegrad.ir.nest import AxisKind, Index, Nest, Operand, Range, Tile
from tilegrad.ir.schedule import Loop

Sizes = Mapping[str, int]


def tileable_axes(nest: Nest) -> tuple[str, ...]:
    """The axes that may be cut: not inner, longer than one, and no operand dimension depends on two of them."""
    candidates = [axis.name for axis in nest.axes if axis.kind is not AxisKind.INNER and axis.extent > 1]
    for operand in nest.operands:
        for index in operand.index or ():
            together = [axis for axis, _ in index.terms if axis in candidates]
            for axis in together[1:]:
                candidates.remove(axis)
    return tuple(candidates)


def box_extent(index: Index, extent: int, sizes: Sizes) -> int:
    """The most positions of a dimension that a tile of these sizes can touch."""
    span = sum(abs(coefficient) * (sizes[axis] - 1) for axis, coefficient in index.terms)
    return min(extent, -(-(span + 1) // index.divisor))


def box_shape(operand: Operand, sizes: Sizes) -> tuple[int, ...]:
    if operand.index is None:
        return operand.shape
    return tuple(
        box_extent(index, extent, sizes) for index, extent in zip(operand.index, operand.shape, strict=True)
    )


@dataclass(frozen=True)
class Transfer:
    """A box on the move: `parts` parts of `rows` rows of `row_bytes`."""

    row_bytes: int
    rows: int
    parts: int

    @property
    def size_bytes(self) -> int:
        return self.row_bytes * self.rows * self.parts


def transfer_of(shape: Sequence[int], box: Sequence[int], element_bytes: int) -> Transfer:
    """How a box of a row-major tensor is moved: mirrors `start_transfer` in runtime/cluster/tg_tile.c."""
    rank = inner = len(box)
    row = element_bytes
    while inner > 0 and (inner == rank or box[inner] == shape[inner]):
        inner -= 1
        row *= box[inner]
    rows = box[inner - 1] if inner > 0 else 1
    return Transfer(row, rows, prod(box[: max(inner - 1, 0)]))


def moving_axes(operand: Operand, loops: Sequence[Loop]) -> tuple[int, ...]:
    """Positions of the loops that move an operand's box."""
    used = {axis for index in operand.index or () for axis, _ in index.terms}
    return tuple(i for i, loop in enumerate(loops) if loop.axis in used)


def load_count(operand: Operand, loops: Sequence[Loop]) -> int:
    """How often an operand's box changes: it stays while only loops inside its own advance."""
    moving = moving_axes(operand, loops)
    return prod(loop.count for loop in loops[: moving[-1] + 1]) if moving else 1


def tile_at(nest: Nest, loops: Sequence[Loop], indices: Sequence[int]) -> dict[str, Range]:
    tile = {axis.name: Range(0, axis.extent) for axis in nest.axes}
    for loop, index in zip(loops, indices, strict=True):
        tile[loop.axis] = Range(index * loop.tile, min((index + 1) * loop.tile, loop.extent))
    return tile


def tiles(nest: Nest, loops: Sequence[Loop]) -> list[tuple[Tile, int]]:
    """Every tile in order, with the set of loops (as bits) that moved since the one before; all for the first."""
    indices = [0] * len(loops)
    result: list[tuple[Tile, int]] = [(tile_at(nest, loops, indices), ~0)]
    while True:
        moved = 0
        for i in reversed(range(len(loops))):
            moved |= 1 << i
            indices[i] += 1
            if indices[i] < loops[i].count:
                break
            indices[i] = 0
        else:
            return result
        result.append((tile_at(nest, loops, indices), moved))
