"""Ways to cut a nest, thousands at once: tile sizes as columns, and what each row of them needs and moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.footprint import cut_loops
from tilegrad.ir.nest import AxisKind, Nest, Operand
from tilegrad.ir.schedule import Loop

# Candidate numbers of tiles along an axis; beyond the last, sizes shrink by halves.
_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BLOCK = 4  # kernels work on register blocks of four
MOST_AXES_CUT = 3
EVALUATED = 32  # candidates whose cycles are estimated, after a ranking by traffic
TILE_WORTH_BYTES = 4000
TILE_CYCLES = 400  # what a tile of a launch takes to begin, in a rough guess

Column = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """`moved_bytes` over the whole nest, of each operand that is there, halos counted each time."""

    sizes: Mapping[str, int]
    loops: tuple[Loop, ...]
    is_double: bool
    footprint_bytes: int
    moved_bytes: tuple[int, ...]
    tile_count: int
    units: int = 1  # that blocks may share, where that was asked

    @property
    def traffic_bytes(self) -> int:
        return sum(self.moved_bytes)


@dataclass(frozen=True)
class Split:
    """A launch over so many blocks of a nest that takes `whole_cycles` on one, with what memory gives each of them."""

    blocks: int
    whole_cycles: float
    bytes_per_cycle: float

    def rough_cycles(self, units: Any, tile_count: Any, traffic: Any, is_double: bool, compute_cycles: float) -> Any:
        """Of the block with most to do, for one choice or a column of them. A tile takes some cycles to begin."""
        share = -(-units // self.blocks) / units
        shown = _shown_share(is_double, np.maximum(tile_count * share, 1.0))
        moved = traffic / self.blocks / self.bytes_per_cycle
        return compute_cycles * share + moved * shown + TILE_CYCLES * tile_count * share


def axis_candidates(extent: int, blocks: int = 1) -> list[int]:
    """Tile sizes worth trying along an axis, largest first."""
    cuts = _CUTS if blocks == 1 else sorted({1, 2, 3, 4, 8, 16, *(blocks * k for k in (1, 2, 3, 4, 6, 8))})
    sizes = {-(-extent // cut) for cut in cuts if cut <= extent}
    size = -(-extent // _CUTS[-1])
    while size > 1:
        size = -(-size // 2)
        sizes.add(size)
    rounded = {min(extent, -(-size // _BLOCK) * _BLOCK) for size in sizes if size > _BLOCK}
    return sorted(sizes | rounded, reverse=True)


def _shown_share(is_double: bool, tile_count: Any) -> Any:
    """Of the traffic, what other tiles do not hide; for one count or a column of them."""
    return 0.25 + 0.75 / tile_count if is_double else 1.0


class Row(NamedTuple):
    """One of the ways in columns: what it is worth (lower is better) and takes, and how to make a candidate of it."""

    worth: float
    footprint_bytes: int
    number: int
    columns: Columns
    order: tuple[str, ...]
    moved: list[Column]
    units: Column | None

    def candidate(self) -> Candidate:
        nest, i, columns = self.columns.nest, self.number, self.columns
        sizes = {axis.name: int(columns.sizes[axis.name][i]) for axis in nest.axes}
        loops = cut_loops(nest, sizes, self.order)
        own = tuple(int(column[i]) for column in self.moved)
        units = 1 if self.units is None else int(self.units[i])
        count = int(columns.tile_count[i])
        return Candidate(sizes, loops, columns.is_double, self.footprint_bytes, own, count, units)


class Columns:
    """Rows of tile sizes of one nest, by axis. `boxes` are extents of boxes, by operand and dimension."""

    def __init__(
        self,
        nest: Nest,
        sizes: Mapping[str, Column],
        alignment: int,
        is_double: bool,
        boxes: Mapping[tuple[str, int], Column] | None = None,
    ) -> None:
        self.nest = nest
        self.sizes = sizes
        self.alignment = alignment
        self.is_double = is_double
        self.length = len(sizes[nest.axes[0].name])
        self.counts = {axis: -(-nest.axis(axis).extent // np.maximum(column, 1)) for axis, column in sizes.items()}
        self.cut = [axis.name for axis in nest.axes if (self.counts[axis.name] > 1).any()]
        indexed = [operand for operand in nest.present if operand.index is not None]
        self.boxes = boxes or {(o.name, d): self._box(o, d, sizes) for o in indexed for d in range(len(o.shape))}

    def where(self, chosen: npt.NDArray[np.bool_]) -> Columns:
        sizes = {axis: column[chosen] for axis, column in self.sizes.items()}
        boxes = {place: column[chosen] for place, column in self.boxes.items()}
        return Columns(self.nest, sizes, self.alignment, self.is_double, boxes)

    def _box(self, operand: Operand, d: int, sizes: Mapping[str, Column]) -> Column:
        assert operand.index is not None
        index = operand.index[d]
        span = np.ones(self.length, dtype=np.int64)
        for axis, coefficient in index.terms:
            span = span + abs(coefficient) * (sizes[axis] - 1)
        return np.minimum(operand.shape[d], -(-span // index.divisor))

    @cached_property
    def footprint(self) -> Column:
        """Bytes of scratchpad: two slots for what moves, if double buffered; one for what stays."""
        total = np.zeros(self.length, dtype=np.int64)
        for operand in self.nest.present:
            whole = operand.size_bytes if operand.index is None else operand.element_bytes
            size = np.full(self.length, whole, dtype=np.int64)
            for d in range(len(operand.index or ())):
                size = size * self.boxes[operand.name, d]
            size = -(-size // self.alignment) * self.alignment
            if self.is_double:
                moves = np.zeros(self.length, dtype=bool)
                for axis in operand.axes:
                    moves |= self.counts[axis] > 1
                size = np.where(moves, 2 * size, size)
            total = total + size
        return total

    def _once(self, operand: Operand) -> Column:
        """Bytes of all boxes of an operand, each counted once."""
        whole = operand.size_bytes if operand.index is None else operand.element_bytes
        size = np.full(self.length, whole, dtype=np.int64)
        for d, index in enumerate(operand.index or ()):
            cut = next((axis for axis, _ in index.terms if axis in self.cut), None)
            box = self.boxes[operand.name, d]
            if cut is None:
                size = size * box
                continue
            full, rest = np.divmod(self.nest.axis(cut).extent, self.sizes[cut])
            ragged = self._box(operand, d, {**self.sizes, cut: np.maximum(rest, 1)})
            size = size * (full * box + np.where(rest > 0, ragged, 0))
        return size

    def moved(self, order: Sequence[str], once: Mapping[str, Column]) -> list[Column]:
        """Bytes moved for each operand: it is brought again for each step of the loops outside its own."""
        found = []
        for operand in self.nest.present:
            outside = np.ones(self.length, dtype=np.int64)
            repeats = np.ones(self.length, dtype=np.int64)
            for axis in order:
                if axis in operand.axes:
                    repeats = np.where(self.counts[axis] > 1, outside, repeats)
                else:
                    outside = outside * self.counts[axis]
            found.append(once[operand.name] * repeats)
        return found

    @cached_property
    def tile_count(self) -> Column:
        total = np.ones(self.length, dtype=np.int64)
        for axis in self.cut:
            total = total * self.counts[axis]
        return total

    def units(self, order: Sequence[str]) -> Column:
        """Into how many units blocks may split the tiles: along loops, outermost first, that all results move with."""
        total, is_open = np.ones(self.length, dtype=np.int64), np.ones(self.length, dtype=bool)
        for axis in order:
            if axis in self.nest.shared_axes:
                total = np.where(is_open, total * self.counts[axis], total)
            else:
                is_open &= self.counts[axis] == 1
        return total

    def rows(self, most: int = EVALUATED, split: Split | None = None) -> Iterator[Row]:
        """Of each order of the parallel loops, the most promising; reduction loops are innermost, in their order."""
        tile_count = self.tile_count
        once = {operand.name: self._once(operand) for operand in self.nest.present}
        reductions = [axis.name for axis in self.nest.axes if axis.kind is AxisKind.REDUCTION]
        parallel = [axis for axis in self.cut if self.nest.axis(axis).kind is AxisKind.PARALLEL]
        for order in permutations(parallel):
            moved = self.moved((*order, *reductions), once)
            traffic = sum(moved, np.zeros(self.length, dtype=np.int64))
            units = None if split is None else self.units(order)
            if split is None:
                worth = traffic * _shown_share(self.is_double, tile_count) + TILE_WORTH_BYTES * tile_count
            else:
                worth = split.rough_cycles(units, tile_count, traffic, self.is_double, split.whole_cycles)
            ranked = np.argsort(worth, kind="stable")[:most]
            if units is not None:
                ranked = ranked[units[ranked] > 1]
            promised = zip(worth[ranked].tolist(), self.footprint[ranked].tolist(), ranked.tolist(), strict=True)
            for one, footprint_bytes, i in promised:
                yield Row(one, footprint_bytes, i, self, (*order, *reductions), moved, units)


def one_row(nest: Nest, sizes: Mapping[str, int], alignment: int, is_double: bool) -> Candidate:
    """One choice of sizes, with the nest's own order of loops."""
    row = {axis: np.array([size], dtype=np.int64) for axis, size in sizes.items()}
    return next(Columns(nest, row, alignment, is_double).rows(1)).candidate()


def columns_of(nest: Nest, chosen: Sequence[str], alignment: int, is_double: bool, blocks: int = 1) -> Columns:
    """All sizes for one choice of axes to cut that keep the order of every sum: `ordered_sizes` for columns."""
    options = [axis_candidates(nest.axis(axis).extent, blocks)[1:] for axis in chosen]
    if len(chosen) == MOST_AXES_CUT:
        options = [option[::2] for option in options]
    rows = list(product(*options))
    grid = np.array(rows, dtype=np.int64).reshape(len(rows), len(chosen))
    wished = {axis: grid[:, i] for i, axis in enumerate(chosen)}
    sizes: dict[str, Column] = {}
    is_inner_cut = np.zeros(len(grid), dtype=bool)
    for axis in reversed(nest.axes):
        column = wished.get(axis.name, np.full(len(grid), max(axis.extent, 1), dtype=np.int64))
        if axis.kind is AxisKind.REDUCTION:
            column = np.where(is_inner_cut, 1, column)
            is_inner_cut |= column < axis.extent
        sizes[axis.name] = column
    return Columns(nest, sizes, alignment, is_double)


def best_rows(
    nest: Nest, chosen: Sequence[str], alignment: int, is_double: bool, budget: float, split: Split | None = None
) -> list[Row]:
    """The most promising of those that fit, for one cluster or for a launch over blocks."""
    columns = columns_of(nest, chosen, alignment, is_double, 1 if split is None else split.blocks)
    fits = columns.footprint <= budget
    if is_double:
        fits &= columns.tile_count > 1
    if not fits.any():
        return []
    return sorted(columns.where(fits).rows(split=split), key=itemgetter(0))[:EVALUATED]
