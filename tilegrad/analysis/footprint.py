"""What a tile touches: boxes, bytes and transfers, all from the axes and the index maps.

Of one way to cut a nest, or of many at once: where tiles have columns of sizes, what follows from them is columns too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from tilegrad.analysis.lifetimes import align
from tilegrad.ir.nest import AxisKind, Index, Nest, Operand, Range, Tile, along, row_major_strides
from tilegrad.ir.schedule import AnyLoop, Loop
from tilegrad.ir.types import Number

Sizes = Mapping[str, Number | int]
Loops = Sequence[AnyLoop[Number]]


def tileable_axes(nest: Nest) -> tuple[str, ...]:
    """The axes that may be cut: not inner, longer than one, and no operand dimension depends on two of them."""
    candidates = [axis.name for axis in nest.axes if axis.kind is not AxisKind.INNER and axis.extent > 1]
    for operand in nest.operands:
        for index in operand.index or ():
            together = [axis for axis, _ in index.terms if axis in candidates]
            for axis in together[1:]:
                candidates.remove(axis)
    return tuple(candidates)


def _reach(index: Index, extent: int, sizes: Sizes[Number]) -> Number | int:
    """The most positions of one dimension that a tile of these sizes can touch."""
    span = sum([abs(coefficient) * (sizes[axis] - 1) for axis, coefficient in index.terms])
    reach = -(-(span + 1) // index.divisor)
    return min(extent, reach) if isinstance(reach, int) else np.minimum(extent, reach)


def box_shape(operand: Operand, sizes: Sizes[Number]) -> tuple[Number | int, ...]:
    """The most positions of each dimension that a tile of these sizes can touch."""
    if operand.index is None:
        return operand.shape
    return tuple([_reach(*each, sizes) for each in zip(operand.index, operand.shape, strict=True)])


def tile_bytes(operand: Operand, sizes: Sizes[Number]) -> Number | int:
    """The most of an operand that a tile of these sizes can touch."""
    return prod(box_shape(operand, sizes)) * operand.element_bytes


def all_tiles_bytes(operand: Operand, loops: Loops[Number], sizes: Sizes[Number]) -> Number | int:
    """Of all boxes of an operand, each counted once, with its halo: along a loop, those that are full and the last."""
    if operand.index is None:
        return operand.size_bytes
    cut = {loop.axis: loop for loop in loops}
    total: Number | int = operand.element_bytes
    for index, extent in zip(operand.index, operand.shape, strict=True):
        loop = next((cut[axis] for axis, _ in index.terms if axis in cut), None)
        positions = _reach(index, extent, sizes)
        if loop is not None:
            full, rest = divmod(loop.extent, loop.tile)
            positions = full * positions + (rest > 0) * _reach(index, extent, {**sizes, loop.axis: rest})
        total = total * positions
    return total


def slot_of(
    operand: Operand, loops: Loops[Number], sizes: Sizes[Number], is_double: bool, alignment: int
) -> tuple[Number | int, int]:
    """Bytes of a slot that holds any box of an operand, and how many it has: two for what moves, if double buffered."""
    return align(tile_bytes(operand, sizes), alignment), 2 if is_double and moving_axes(operand, loops) else 1


def tile_sizes(nest: Nest, loops: Loops[Number]) -> dict[str, Number | int]:
    """Of a nest's first tile, by axis."""
    return {axis.name: max(axis.extent, 1) for axis in nest.axes} | {loop.axis: loop.tile for loop in loops}


def cut_loops(nest: Nest, sizes: Mapping[str, int], order: Iterable[str]) -> tuple[Loop, ...]:
    """Along those of these axes that tiles of such sizes cut."""
    every = (Loop(axis, nest.axis(axis).extent, sizes[axis]) for axis in order)
    return tuple(loop for loop in every if loop.tile < loop.extent)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a box on the move: `factor` steps, times the box's extent along `dim` if that is cut.

    The innermost level is a row, in bytes; each further one repeats it `far_stride` bytes apart in L2.
    """

    factor: int
    dim: int | None
    far_stride: int

    def size(self, box: Sequence[int]) -> int:
        return self.factor if self.dim is None else self.factor * box[self.dim]


def transfer_levels(operand: Operand, nest: Nest, loops: Sequence[Loop]) -> tuple[Level, ...]:
    """How boxes of an operand are moved, innermost level first, whatever the tile: what is whole in every tile is one
    with what lies inside it."""
    cut = tuple(is_dimension_cut(operand, d, loops) for d in range(len(operand.shape)))
    everything = nest.whole_sizes[operand.name]
    return _levels(operand.shape, operand.element_bytes, everything, cut)


@lru_cache(maxsize=4096)
def _levels(
    shape: tuple[int, ...], element_bytes: int, everything: tuple[int, ...], cut: tuple[bool, ...]
) -> tuple[Level, ...]:
    strides = row_major_strides(shape)
    levels: list[Level] = []
    factor, stride, is_closed = element_bytes, 0, False
    for d in reversed(range(len(shape))):
        size, is_cut = everything[d], cut[d]
        if shape[d] == 1 and size == 1 and not is_cut:
            continue
        if is_closed:
            factor, stride, is_closed = 1, strides[d] * element_bytes, False
        if is_cut:
            levels.append(Level(factor, d, stride))
            is_closed = True
            continue
        factor *= size
        if size != shape[d]:
            levels.append(Level(factor, None, stride))
            is_closed = True
    if not is_closed:
        levels.append(Level(factor, None, stride))
    return (levels[0], *(level for level in levels[1:] if level.dim is not None or level.factor != 1))


def is_dimension_cut(operand: Operand, d: int, loops: Sequence[Loop]) -> bool:
    if operand.index is None:
        return False
    index = operand.index[d]
    return bool(index.terms) and any(index.coefficient(loop.axis) for loop in loops)


def moving_axes(operand: Operand, loops: Loops[Number]) -> tuple[int, ...]:
    """Positions of the loops that move an operand's box."""
    return tuple(i for i, loop in enumerate(loops) if loop.axis in operand.axes)


def is_held_whole(operand: Operand, nest: Nest, loops: Sequence[Loop]) -> bool:
    """Whether one slot holds all of an operand, for all tiles."""
    sizes = nest.whole_sizes[operand.name]
    return not moving_axes(operand, loops) and sizes == operand.shape and all(sizes)


def is_read_in_place(operand: Operand, nest: Nest, loops: Sequence[Loop]) -> bool:
    """Whether every tile's box is one run of the tensor's bytes: where all of that is, a kernel finds the box in it."""
    sizes = nest.whole_sizes[operand.name]
    if sizes != operand.shape or not all(sizes):
        return False
    cut = [index for d, index in enumerate(operand.index or ()) if is_dimension_cut(operand, d, loops)]
    is_plain = all(index == along(index.terms[0][0]) for index in cut)
    return is_plain and len(transfer_levels(operand, nest, loops)) == 1


def load_count(operand: Operand, loops: Loops[Number]) -> Number | int:
    """How often an operand's box changes: it stays while only loops inside its own advance."""
    return prod([loop.count for loop in _changing(operand, loops)])


def repeat_count(operand: Operand, loops: Loops[Number]) -> Number | int:
    """How often each box of an operand is brought: once for each step of the loops outside its own."""
    return prod([loop.count for loop in _changing(operand, loops) if loop.axis not in operand.axes])


def _changing(operand: Operand, loops: Loops[Number]) -> Loops[Number]:
    """The loops as far in as the innermost of an operand's own."""
    moving = moving_axes(operand, loops)
    return loops[: moving[-1] + 1] if moving else ()


def tile_at(nest: Nest, loops: Sequence[Loop], indices: Sequence[int]) -> dict[str, Range]:
    tile = dict(nest.everything)
    for loop, index in zip(loops, indices, strict=True):
        tile[loop.axis] = Range(index * loop.tile, min((index + 1) * loop.tile, loop.extent))
    return tile


def nth_tile(nest: Nest, loops: Sequence[Loop], number: int) -> dict[str, Range] | None:
    """One of the tiles, the last for -1; None where there are not as many."""
    count = prod(loop.count for loop in loops)
    number += count if number < 0 else 0
    if not 0 <= number < count:
        return None
    indices = []
    for loop in reversed(loops):
        indices.append(number % loop.count)
        number //= loop.count
    return tile_at(nest, loops, indices[::-1])


def tiles(nest: Nest, loops: Sequence[Loop]) -> list[tuple[Tile, int]]:
    """Every tile in order, with the set of loops (as bits) that moved since the one before; all for the first."""
    found: list[tuple[Tile, int]] = []
    before: tuple[int, ...] = ()
    for indices in product(*(range(loop.count) for loop in loops)):
        outermost = next((i for i, (a, b) in enumerate(zip(before, indices, strict=False)) if a != b), None)
        moved = ~0 if outermost is None else (1 << len(loops)) - (1 << outermost)
        found.append((tile_at(nest, loops, indices), moved))
        before = indices
    return found


def inner_loops(nest: Nest, loops: Loops[Number]) -> int:
    """How many loops, the innermost ones, no block leaves to another: reductions, those that a result stays put in,
    and what lies inside these. All are such where a nest cannot be split over blocks."""
    split = next((i for i, loop in enumerate(loops) if loop.axis not in nest.shared_axes), len(loops))
    return len(loops) - split


def units_of(nest: Nest, loops: Loops[Number]) -> tuple[Number | int, Number | int]:
    """Into how many units the tiles of a nest can be split, and how many tiles each of them is."""
    split = len(loops) - inner_loops(nest, loops)
    return prod(loop.count for loop in loops[:split]), prod(loop.count for loop in loops[split:])
