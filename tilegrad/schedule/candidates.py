"""Ways to cut a nest, thousands at once: tile sizes as columns, and what each row of them needs and moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

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

    @property
    def promise(self) -> float:
        """Lower is better, in bytes moved while nobody computes. A tile costs as much as moving a few kilobytes."""
        shown = self.traffic_bytes * _shown_share(self.is_double, self.tile_count)
        return float(shown + TILE_WORTH_BYTES * self.tile_count)


@dataclass(frozen=True)
class Split:
    """A launch over so many blocks of a nest that takes `whole_cycles` on one, with what memory gives each of them."""

    blocks: int
    whole_cycles: float
    bytes_per_cycle: float

    def rough_cycles(self, units: Any, tile_count: Any, traffic: Any, is_double: bool) -> Any:
        """Of the block with most to do, for one choice or a column of them. A tile takes some cycles to begin."""
        return self._rough(-(-units // self.blocks) / units, tile_count, traffic, is_double, self.whole_cycles)

    def _rough(self, share: Any, tile_count: Any, traffic: Any, is_double: bool, compute_cycles: float) -> Any:
        own = tile_count * share
        shown = _shown_share(is_double, np.maximum(own, 1.0) if isinstance(own, np.ndarray) else max(own, 1.0))
        moved = traffic / self.blocks / self.bytes_per_cycle
        return compute_cycles * share + moved * shown + TILE_CYCLES * tile_count * share

    def promise(self, one: Candidate, compute_cycles: float) -> float:
        """With what all of its tiles compute."""
        share = -(-one.units // self.blocks) / one.units
        return float(self._rough(share, one.tile_count, one.traffic_bytes, one.is_double, compute_cycles))


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
    return 0.25 + 0.75 / tile_count if is_double else 1.0 + 0.0 * tile_count


class Columns:
    """Rows of tile sizes of one nest, by axis."""

    def __init__(self, nest: Nest, sizes: Mapping[str, Column], alignment: int, is_double: bool) -> None:
        self.nest = nest
        self.sizes = sizes
        self.alignment = alignment
        self.is_double = is_double
        self.length = len(sizes[nest.axes[0].name])
        extents = {axis.name: axis.extent for axis in nest.axes}
        self.counts = {axis: -(-extents[axis] // np.maximum(column, 1)) for axis, column in sizes.items()}
        self.cut = [axis.name for axis in nest.axes if (self.counts[axis.name] > 1).any()]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Columns:
        sizes = {axis: column[chosen] for axis, column in self.sizes.items()}
        return Columns(self.nest, sizes, self.alignment, self.is_double)

    def _box(self, operand: Operand, d: int, sizes: Mapping[str, Column]) -> Column:
        assert operand.index is not None
        index = operand.index[d]
        span = np.ones(self.length, dtype=np.int64)
        for axis, coefficient in index.terms:
            span = span + abs(coefficient) * (sizes[axis] - 1)
        return np.minimum(operand.shape[d], -(-span // index.divisor))

    def _used_axes(self, operand: Operand) -> set[str]:
        return {axis for index in operand.index or () for axis, _ in index.terms}

    def footprint(self) -> Column:
        """Bytes of scratchpad: two slots for what moves, if double buffered; one for what stays."""
        total = np.zeros(self.length, dtype=np.int64)
        for operand in self.nest.present:
            size = np.full(self.length, operand.element_bytes, dtype=np.int64)
            if operand.index is None:
                size = size * prod(operand.shape)
            else:
                for d in range(len(operand.shape)):
                    size = size * self._box(operand, d, self.sizes)
            size = -(-size // self.alignment) * self.alignment
            if self.is_double:
                moves = np.zeros(self.length, dtype=bool)
                for axis in self._used_axes(operand):
                    moves |= self.counts[axis] > 1
                size = np.where(moves, 2 * size, size)
            total = total + size
        return total

    def _once(self, operand: Operand) -> Column:
        """Bytes of all boxes of an operand, each counted once."""
        size = np.full(self.length, operand.element_bytes, dtype=np.int64)
        if operand.index is None:
            return size * prod(operand.shape)
        for d, index in enumerate(operand.index):
            cut = next((axis for axis, _ in index.terms if axis in self.cut), None)
            box = self._box(operand, d, self.sizes)
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
            used = self._used_axes(operand)
            outside = np.ones(self.length, dtype=np.int64)
            repeats = np.ones(self.length, dtype=np.int64)
            for axis in order:
                if axis in used:
                    repeats = np.where(self.counts[axis] > 1, outside, repeats)
                else:
                    outside = outside * self.counts[axis]
            found.append(once[operand.name] * repeats)
        return found

    def tile_count(self) -> Column:
        total = np.ones(self.length, dtype=np.int64)
        for axis in self.cut:
            total = total * self.counts[axis]
        return total

    def units(self, order: Sequence[str]) -> Column:
        """Into how many units blocks may split the tiles: along loops, outermost first, that all results move with."""
        total, is_open = np.ones(self.length, dtype=np.int64), np.ones(self.length, dtype=bool)
        for axis in order:
            if all(axis in self._used_axes(operand) for operand in self.nest.results):
                total = np.where(is_open, total * self.counts[axis], total)
            else:
                is_open &= self.counts[axis] == 1
        return total

    def candidates(self, most: int = EVALUATED, split: Split | None = None) -> Iterator[Candidate]:
        """Of each order of the parallel loops, the most promising; reduction loops are innermost, in their order."""
        footprint, tile_count = self.footprint(), self.tile_count()
        once = {operand.name: self._once(operand) for operand in self.nest.present}
        kinds = {axis.name: axis.kind for axis in self.nest.axes}
        reductions = [axis.name for axis in self.nest.axes if axis.kind is AxisKind.REDUCTION]
        parallel = [axis for axis in self.cut if kinds[axis] is AxisKind.PARALLEL]
        for order in permutations(parallel):
            moved = self.moved((*order, *reductions), once)
            traffic = sum(moved, np.zeros(self.length, dtype=np.int64))
            units = np.ones(self.length, dtype=np.int64) if split is None else self.units(order)
            if split is None:
                worth = traffic * _shown_share(self.is_double, tile_count) + TILE_WORTH_BYTES * tile_count
                ranked = np.argsort(worth, kind="stable")[:most].tolist()
            else:
                worth = split.rough_cycles(units, tile_count, traffic, self.is_double)
                ranked = [i for i in np.argsort(worth, kind="stable")[:most].tolist() if units[i] > 1]
            for i in ranked:
                sizes = {axis.name: int(self.sizes[axis.name][i]) for axis in self.nest.axes}
                loops = tuple(
                    Loop(axis, self.nest.axis(axis).extent, sizes[axis])
                    for axis in (*order, *reductions)
                    if sizes[axis] < self.nest.axis(axis).extent
                )
                own = tuple(int(column[i]) for column in moved)
                yield Candidate(sizes, loops, self.is_double, int(footprint[i]), own, int(tile_count[i]), int(units[i]))


def one_row(nest: Nest, sizes: Mapping[str, int], alignment: int, is_double: bool) -> Candidate:
    """One choice of sizes, with the nest's own order of loops."""
    row = {axis: np.array([size], dtype=np.int64) for axis, size in sizes.items()}
    return next(Columns(nest, row, alignment, is_double).candidates(1))


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


def best_candidates(
    nest: Nest, chosen: Sequence[str], alignment: int, is_double: bool, budget: float, split: Split | None = None
) -> list[Candidate]:
    """The most promising of those that fit, for one cluster or for a launch over blocks."""
    columns = columns_of(nest, chosen, alignment, is_double, 1 if split is None else split.blocks)
    if not columns.length:
        return []
    fits = columns.footprint() <= budget
    if is_double:
        fits &= columns.tile_count() > 1
    if not fits.any():
        return []
    found = list(columns.where(fits).candidates(split=split))
    found.sort(key=lambda one: one.promise if split is None else split.promise(one, split.whole_cycles))
    return found[:EVALUATED]
