"""Ways to cut a nest, thousands at once: tile sizes as columns, and what each row of them needs and moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.footprint import all_tiles_bytes, repeat_count, slot_of, tile_sizes, units_of
from tilegrad.ir.nest import AxisKind, Nest, ordered_sizes
from tilegrad.ir.schedule import AnyLoop, Loop
from tilegrad.ir.types import Column

# Candidate numbers of tiles along an axis; beyond the last, sizes shrink by halves.
_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BLOCK = 4  # kernels work on register blocks of four
MOST_AXES_CUT = 3
EVALUATED = 32  # candidates whose cycles are estimated, after a ranking by traffic
TILE_WORTH_BYTES = 4000
TILE_CYCLES = 400  # what a tile of a launch takes to begin, in a rough guess


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
    loops: tuple[AnyLoop[Column], ...]
    moved: list[Column | int]
    units: Column | None

    def candidate(self) -> Candidate:
        columns, i = self.columns, self.number
        loops = tuple([Loop(loop.axis, loop.extent, int(loop.tile[i])) for loop in self.loops])
        moved = tuple([column if isinstance(column, int) else int(column[i]) for column in self.moved])
        units = 1 if self.units is None else int(self.units[i])
        sizes, count = tile_sizes(columns.nest, loops), int(columns.tile_count[i])
        return Candidate(sizes, loops, columns.is_double, self.footprint_bytes, moved, count, units)


class Columns:
    """Rows of tile sizes of one nest: `tiles` has a column for each axis that is cut, which it is in every row."""

    def __init__(self, nest: Nest, tiles: Mapping[str, Column], alignment: int, is_double: bool) -> None:
        self.nest = nest
        self.alignment = alignment
        self.is_double = is_double
        self.length = max(map(len, tiles.values()), default=1)
        self.loops = [AnyLoop(axis.name, axis.extent, tiles[axis.name]) for axis in nest.axes if axis.name in tiles]
        self.sizes = tile_sizes(nest, self.loops)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Columns:
        tiles = {loop.axis: loop.tile[chosen] for loop in self.loops}
        return Columns(self.nest, tiles, self.alignment, self.is_double)

    @cached_property
    def footprint(self) -> Column:
        """Bytes of scratchpad."""
        own = (slot_of(one, self.loops, self.sizes, self.is_double, self.alignment) for one in self.nest.present)
        return self._filled(sum(map(prod, own)))

    @cached_property
    def tile_count(self) -> Column:
        return self._filled(prod([loop.count for loop in self.loops]))

    def _filled(self, column: Column | int) -> Column:
        """In every row, also where it is the same in all of them."""
        return np.full(self.length, column, dtype=np.int64) if isinstance(column, int) else column

    def rows(self, most: int = EVALUATED, split: Split | None = None) -> Iterator[Row]:
        """Of each order of the parallel loops, the most promising; reduction loops are innermost, in their order."""
        nest, tile_count = self.nest, self.tile_count
        once = [all_tiles_bytes(operand, self.loops, self.sizes) for operand in nest.present]
        parallel, reductions = (
            [loop for loop in self.loops if nest.axis(loop.axis).kind is kind]
            for kind in (AxisKind.PARALLEL, AxisKind.REDUCTION)
        )
        for order in permutations(parallel):
            loops = (*order, *reductions)
            moved = [own * repeat_count(operand, loops) for operand, own in zip(nest.present, once, strict=True)]
            traffic = self._filled(sum(moved))
            units = None if split is None else self._filled(units_of(nest, loops)[0])
            if split is None:
                worth = traffic * _shown_share(self.is_double, tile_count) + TILE_WORTH_BYTES * tile_count
            else:
                worth = split.rough_cycles(units, tile_count, traffic, self.is_double, split.whole_cycles)
            ranked = np.argsort(worth, kind="stable")[:most]
            if units is not None:
                ranked = ranked[units[ranked] > 1]
            promised = zip(worth[ranked].tolist(), self.footprint[ranked].tolist(), ranked.tolist(), strict=True)
            for one, footprint_bytes, i in promised:
                yield Row(one, footprint_bytes, i, self, loops, moved, units)


def one_row(nest: Nest, sizes: Mapping[str, int], alignment: int, is_double: bool) -> Candidate:
    """One choice of sizes, with the nest's own order of loops."""
    tiles = {axis: np.array([size]) for axis, size in sizes.items() if size < nest.axis(axis).extent}
    return next(Columns(nest, tiles, alignment, is_double).rows(1)).candidate()


def columns_of(nest: Nest, chosen: Sequence[str], alignment: int, is_double: bool, blocks: int = 1) -> Columns:
    """All sizes for one choice of axes to cut that keep the order of every sum."""
    options = [axis_candidates(nest.axis(axis).extent, blocks)[1:] for axis in chosen]
    if len(chosen) == MOST_AXES_CUT:
        options = [option[::2] for option in options]
    grid = np.array(list(product(*options)), dtype=np.int64)
    tiles = dict(zip(chosen, grid.T, strict=True))
    # Sums ask for single steps along the same axes in every row.
    wished = {axis.name: axis.extent for axis in nest.axes} | dict(zip(chosen, grid[0].tolist(), strict=True))
    single = [axis for axis, size in ordered_sizes(nest, wished).items() if size < wished[axis]]
    tiles |= {axis: np.ones(len(grid), dtype=np.int64) for axis in single}
    return Columns(nest, tiles, alignment, is_double)


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
