"""Chooses how a nest is cut into tiles: by estimated cycles, then by traffic.

The search is exhaustive over a small set of sensible sizes per axis and all orders of the parallel loops; equal nests
are searched once. Everything it needs follows from the axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.footprint import (
    box_extent,
    box_shape,
    load_count,
    moving_axes,
    tileable_axes,
    transfer_levels,
)
from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.tables import CALL_WORDS, NEST_WORDS, OPERAND_WORDS, Fields, described_bytes, table_words
from tilegrad.costs.kernel_cost import Boxes, KernelCosts
from tilegrad.errors import DoesNotFit
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, along, ordered_sizes
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.targets.base import Target

# Candidate numbers of tiles along an axis; beyond the last, sizes shrink by halves.
_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BLOCK = 4  # kernels work on register blocks of four
EVALUATED = 32  # candidates whose cycles are estimated, after a ranking by traffic
TILE_WORTH_BYTES = 4000
# Of scratchpad, what a double-buffered nest takes at most, and what it may take so that its neighbours have room too.
MOST_L1, SHARED_L1 = 0.7, 0.5
# Of a nest's first loads and last stores, what is not hidden where neighbours have room. Half of it by experience: a
# nest that reads what the one before wrote last must wait for it.
SHOWN_WITH_NEIGHBOURS = 0.5
# Tilings of a nest that are compared with those of its neighbours, none that takes much longer than the best.
MOST_CHOICES, WORTH_A_LOOK, MANY_TILES = 12, 1.1, 6
MOST_AXES_CUT = 3
NEXT_TABLE_BYTES = 1024
NOT_ESTIMATED = TileEstimate(inf, 0.0, 0.0, 0, "")


@dataclass(frozen=True)
class TilingOptions:
    """`buffering`: auto, single or double."""

    target: Target
    buffering: str
    costs: KernelCosts

    @property
    def overlaps(self) -> bool:
        """Whether nests may overlap with their neighbours."""
        return self.buffering != "single"

    @property
    def scratch_bytes(self) -> int:
        capacity = self.target.memory(self.target.compute).capacity_bytes
        assert capacity is not None
        return capacity


@dataclass(frozen=True)
class _Candidate:
    sizes: Mapping[str, int]
    loops: tuple[Loop, ...]
    is_double: bool
    footprint_bytes: int
    traffic_bytes: int
    tile_count: int


def axis_candidates(extent: int) -> list[int]:
    """Tile sizes worth trying along an axis, largest first."""
    sizes = {-(-extent // cut) for cut in _CUTS if cut <= extent}
    size = -(-extent // _CUTS[-1])
    while size > 1:
        size = -(-size // 2)
        sizes.add(size)
    rounded = {min(extent, -(-size // _BLOCK) * _BLOCK) for size in sizes if size > _BLOCK}
    return sorted(sizes | rounded, reverse=True)


def _slot_counts(nest: Nest, loops: Sequence[Loop], is_double: bool) -> dict[str, int]:
    """Two slots for what moves, if the nest is double buffered; one for what stays."""
    return {
        operand.name: (2 if is_double and moving_axes(operand, loops) else 1)
        for operand in nest.operands
        if operand.value is not None
    }


def footprint(
    nest: Nest, sizes: Mapping[str, int], slots: Mapping[str, int], element_bytes: Mapping[str, int], alignment: int
) -> int:
    total = 0
    for operand in nest.operands:
        if operand.value is not None:
            box = prod(box_shape(operand, sizes)) * element_bytes[operand.name]
            total += align(box, alignment) * slots[operand.name]
    return total


def _loop_orders(nest: Nest, sizes: Mapping[str, int]) -> Iterator[tuple[Loop, ...]]:
    """Parallel loops in any order, then the reduction loops in the nest's own."""
    cut = [axis for axis in nest.axes if sizes[axis.name] < axis.extent]
    reductions = tuple(
        Loop(axis.name, axis.extent, sizes[axis.name]) for axis in cut if axis.kind is AxisKind.REDUCTION
    )
    parallel = [Loop(axis.name, axis.extent, sizes[axis.name]) for axis in cut if axis.kind is AxisKind.PARALLEL]
    for order in permutations(parallel):
        yield (*order, *reductions)


def _promise(candidate: _Candidate) -> float:
    """Lower is better, in bytes moved while nobody computes. A tile costs as much as moving a few kilobytes."""
    shown = candidate.traffic_bytes * _shown_share(candidate.is_double, candidate.tile_count)
    return float(shown + TILE_WORTH_BYTES * candidate.tile_count)


def _shown_share(is_double: bool, tile_count: Any) -> Any:
    """Of the traffic, what other tiles do not hide; for one count or a column of them."""
    return 0.25 + 0.75 / tile_count if is_double else 1.0 + 0.0 * tile_count


def traffic_bytes(operand: Operand, loops: Sequence[Loop], sizes: Mapping[str, int], element_bytes: int) -> int:
    """Bytes moved for an operand over the whole nest, halos counted each time."""
    if operand.index is None:
        return prod(operand.shape) * element_bytes
    once = 1
    for index, extent in zip(operand.index, operand.shape, strict=True):
        loop = next((loop for loop in loops if index.coefficient(loop.axis)), None)
        if loop is None:
            once *= box_extent(index, extent, sizes)
            continue
        full, rest = divmod(loop.extent, loop.tile)
        total = full * box_extent(index, extent, sizes)
        once *= total + (box_extent(index, extent, {**sizes, loop.axis: rest}) if rest else 0)
    boxes = prod(loops[i].count for i in moving_axes(operand, loops))
    return once * element_bytes * (load_count(operand, loops) // boxes)


class TilingSearch:
    """Searches one nest."""

    def __init__(self, options: TilingOptions, nest: Nest, element_bytes: Mapping[str, int], fields: Fields) -> None:
        self.options = options
        self.nest = nest
        self.element_bytes = element_bytes
        self.fields = fields
        self.target = options.target
        self.alignment = self.target.memory(self.target.compute).alignment_bytes
        self.engine = self.target.engine(self.target.home, self.target.compute)
        whole_table = (NEST_WORDS + CALL_WORDS + (1 + OPERAND_WORDS) * len(nest.operands) + len(fields)) * 4
        # Candidates leave room for their table, about as large, and for the next nest's where it costs little.
        ahead_bytes = NEXT_TABLE_BYTES if options.scratch_bytes >= 32 * NEXT_TABLE_BYTES else 0
        self.budget_bytes = options.scratch_bytes - whole_table - ahead_bytes

    def budget_for(self, is_double: bool) -> float:
        """A double-buffered nest leaves some room for its neighbours, where there is any."""
        has_room = self.options.scratch_bytes >= 32 * NEXT_TABLE_BYTES
        return self.budget_bytes * (MOST_L1 if is_double and has_room else 1.0)

    def choices(self, name: str) -> tuple[tuple[Tiling, int], ...]:
        """Tilings with the bytes of their tables: the best first, then others that are cut otherwise or leave more
        room, and are not much worse.

        `name` is the operator's, for the error when nothing fits.
        """
        found: list[tuple[Tiling, int]] = []
        if self.options.buffering != "double":
            found += self._of_kind(self._candidates(False), is_double=False)
        else:
            # One tile has nothing to overlap with; it may still be the best, and with little scratchpad the only way.
            singles = self._candidates(False)
            found += self._different([one for one in singles if one.tile_count == 1])
        if self.options.overlaps:
            found += self._of_kind(self._candidates(True), is_double=True)
        found = found or self._of_kind([], is_double=False)
        if not found:
            raise self._does_not_fit(name)
        found.sort(key=lambda pair: (pair[0].estimate.cycles, pair[0].estimate.dma_bytes))
        return tuple(found if self.options.overlaps else found[:1])

    def _of_kind(self, candidates: Sequence[_Candidate], is_double: bool) -> list[tuple[Tiling, int]]:
        """Those with one tile and those with several, or if none fits, one that does."""
        whole, cut = ([one for one in candidates if bool(one.loops) is is_cut] for is_cut in (False, True))
        return [*self._different(whole), *self._different(cut)] or self._different(self._shrunk(is_double))

    def _different(self, candidates: Sequence[_Candidate]) -> list[tuple[Tiling, int]]:
        """Of candidates of one kind, the best first: those that fit, are cut differently and are not much worse. What
        is chosen of a kind does not depend on other kinds, so that `auto` chooses among all that `double` does."""
        estimated = [(self._estimate(candidate), candidate) for candidate in candidates]
        estimated.sort(key=lambda pair: (pair[0].cycles, pair[0].dma_bytes))
        found: dict[object, tuple[Tiling, int]] = {}
        for estimate, candidate in estimated:
            has_neighbours = candidate.footprint_bytes <= self.budget_bytes * SHARED_L1
            key = (has_neighbours, tuple((loop.axis, min(loop.count, MANY_TILES)) for loop in candidate.loops))
            best = next(iter(found.values()), None)
            is_worse = best is not None and estimate.steady_cycles > best[0].estimate.cycles * WORTH_A_LOOK
            if key in found or is_worse:
                continue
            tiling = self._tiling(candidate, estimate)
            table_bytes = self.table_bytes(tiling)
            if tiling.scratch_bytes + table_bytes <= self.options.scratch_bytes:
                found[key] = tiling, table_bytes
            if len(found) == (MOST_CHOICES if self.options.overlaps else 1):
                break
        return list(found.values())

    def _fits(self, tiling: Tiling) -> bool:
        """With the table that describes it."""
        return tiling.scratch_bytes + self.table_bytes(tiling) <= self.options.scratch_bytes

    def table_bytes(self, tiling: Tiling) -> int:
        words = table_words(self.nest, tiling, self.fields, self.element_bytes, self.engine.longest_bytes)
        return align(described_bytes(words, len(self.nest.operands)), self.alignment)

    def _candidates(self, is_double: bool) -> list[_Candidate]:
        """Those that fit, the most promising by traffic and tile count."""
        axes = tileable_axes(self.nest)
        found: list[_Candidate] = []
        for count in range(MOST_AXES_CUT + 1 if self.budget_bytes > 0 else 0):
            for chosen in combinations(axes, count):
                found += CandidateGroup(self, chosen, is_double).best()
        if not found:
            found = self._shrunk(is_double)
        found.sort(key=lambda candidate: (_promise(candidate), candidate.footprint_bytes))
        return found[:EVALUATED]

    def _shrunk(self, is_double: bool) -> list[_Candidate]:
        """Where no choice of few axes fits."""
        found = (one for one in self._ever_smaller(is_double) if self._fits(self._tiling(one, NOT_ESTIMATED)))
        best = next(found, None)
        return [] if best is None or (is_double and not best.loops) else [best]  # one tile has none to overlap with

    def _ever_smaller(self, is_double: bool) -> Iterator[_Candidate]:
        """From the whole nest to single steps: halves whatever saves most."""
        sizes: Mapping[str, int] = ordered_sizes(self.nest, {axis.name: axis.extent for axis in self.nest.axes})
        axes = tileable_axes(self.nest)
        while True:
            yield self._candidate(sizes, is_double)
            smaller = [
                ordered_sizes(self.nest, {**sizes, axis: -(-sizes[axis] // 2)}) for axis in axes if sizes[axis] > 1
            ]
            if not smaller:
                return
            sizes = min(smaller, key=lambda one: self._candidate(one, is_double).footprint_bytes)

    def _candidate(self, sizes: Mapping[str, int], is_double: bool) -> _Candidate:
        loops = next(_loop_orders(self.nest, sizes))
        slots = _slot_counts(self.nest, loops, is_double)
        size_bytes = footprint(self.nest, sizes, slots, self.element_bytes, self.alignment)
        present = [operand for operand in self.nest.operands if operand.value is not None]
        moved = sum(traffic_bytes(o, loops, sizes, self.element_bytes[o.name]) for o in present)
        return _Candidate(sizes, loops, is_double, size_bytes, moved, prod(loop.count for loop in loops))

    def _compute_cycles(self, candidate: _Candidate) -> float:
        """Over all tiles: full and ragged ones along each loop."""
        kinds = []
        for loop in candidate.loops:
            full = loop.extent // loop.tile
            rest = loop.extent - full * loop.tile
            kinds.append([(loop.axis, loop.tile, full), *([(loop.axis, rest, 1)] if rest else [])])
        total = 0.0
        for choice in product(*kinds):
            sizes = {**candidate.sizes, **{axis: size for axis, size, _ in choice}}
            times = prod(count for _, _, count in choice)
            total += times * self.options.costs.cycles(self.nest, sizes, self.target.compute, self.target.cores)
        return total

    def _estimate(self, candidate: _Candidate) -> TileEstimate:
        compute = self._compute_cycles(candidate)
        costs = self.options.costs
        inward = outward = first = last = 0.0
        boxes = Boxes(), Boxes(tables=1.0)  # between kernel calls, and while cores compute
        for operand in self.nest.operands:
            if operand.value is None:
                continue
            size = self.element_bytes[operand.name]
            moved = traffic_bytes(operand, candidate.loops, candidate.sizes, size)
            loads = load_count(operand, candidate.loops)
            box = box_shape(operand, candidate.sizes)
            counts = [level.size(box) for level in transfer_levels(operand, self.nest, candidate.loops, size)]
            rows = counts[1] if len(counts) > 1 else 1
            timing = self.engine.outward if operand.access is Access.WRITE else self.engine.inward
            cycles = moved * timing.cycles_per_byte + loads * prod(counts[2:]) * (
                timing.setup_cycles / 4 + (rows - 1) * timing.cycles_per_extra_row
            )
            shares = (1.0, loads - 1.0) if candidate.is_double else (float(loads), 0.0)
            for when, count in zip(boxes, shares, strict=True):
                when.add(operand.access is Access.READ, prod(counts[2:]), count)
            if operand.access is Access.WRITE:
                outward += cycles
                last += cycles / loads
            else:
                inward += cycles
                first += cycles / loads
        count = candidate.tile_count
        simple = self._simple_steps(candidate)
        between, meanwhile = costs.conduct_cycles(self.nest, simple, count - 1 - simple, *boxes)
        span = costs.span(self.nest, candidate.sizes, self.target.compute, self.target.cores)
        conduct = between + count * (span.ending(meanwhile / count) - span.cycles)
        if self.options.overlaps and (candidate.is_double or count == 1):
            has_neighbours = candidate.footprint_bytes <= self.budget_bytes * SHARED_L1
            steady = max(compute + conduct, inward - first, outward - last)
            cycles = steady + (first + last) * (SHOWN_WITH_NEIGHBOURS if has_neighbours else 1.0)
        else:
            cycles = compute + conduct + inward + outward
            steady = cycles - first - last
        reason = "double buffered" if candidate.is_double else "single buffered"
        return TileEstimate(cycles, compute, inward + outward, candidate.traffic_bytes, reason, steady)

    def _simple_steps(self, candidate: _Candidate) -> int:
        """As in the table that the candidate would get, nearly."""
        if not candidate.is_double:
            return 0
        axis = candidate.loops[-1].axis
        moved = [index for o in self.nest.operands for index in o.index or () if index.coefficient(axis)]
        if any(index != along(axis) for index in moved):
            return 0
        return candidate.tile_count - candidate.tile_count // candidate.loops[-1].count

    def _tiling(self, candidate: _Candidate, estimate: TileEstimate) -> Tiling:
        slots = {}
        offset = 0
        counts = _slot_counts(self.nest, candidate.loops, candidate.is_double)
        for operand in self.nest.operands:
            if operand.value is None:
                continue
            box = prod(box_shape(operand, candidate.sizes)) * self.element_bytes[operand.name]
            slot_bytes = align(box, self.alignment)
            slots[operand.name] = Slot(offset, slot_bytes, counts[operand.name])
            offset += slot_bytes * counts[operand.name]
        return Tiling(candidate.loops, slots, candidate.is_double, offset, estimate)

    def smallest(self) -> tuple[_Candidate, int]:
        """The tile that needs least, with the table that describes it; the bytes of both together."""
        found = []
        for candidate in self._ever_smaller(False):
            tiling = self._tiling(candidate, NOT_ESTIMATED)
            found.append((candidate, tiling.scratch_bytes + self.table_bytes(tiling)))
        return min(found, key=lambda pair: pair[1])

    def _does_not_fit(self, name: str) -> DoesNotFit:
        candidate, size_bytes = self.smallest()
        budget = ", ".join(
            f"{operand.name} {prod(box_shape(operand, candidate.sizes)) * self.element_bytes[operand.name]}"
            for operand in self.nest.operands
            if operand.value is not None
        )
        table_bytes = self.table_bytes(self._tiling(candidate, NOT_ESTIMATED))
        return DoesNotFit(
            f"the smallest tile of tg_{self.nest.kernel} does not fit into {self.target.compute}",
            stage="tiling",
            node=name,
            expected=f"at most {self.options.scratch_bytes} bytes",
            got=f"{size_bytes} bytes: {budget}, its description {table_bytes}",
            hint=f"give {self.target.compute} at least {size_bytes} bytes (--l1)",
        )


_Column = npt.NDArray[np.int64]


class CandidateGroup:
    """All tile sizes for one choice of axes to cut, as columns: the arithmetic of thousands of candidates at once."""

    def __init__(self, search: TilingSearch, chosen: Sequence[str], is_double: bool) -> None:
        self.search = search
        self.nest = search.nest
        self.chosen = chosen
        self.is_double = is_double
        self.sizes = self._size_columns()

    def _size_columns(self) -> dict[str, _Column]:
        """Sizes that keep the order of every sum: vectorised `ordered_sizes`."""
        options = [axis_candidates(self.nest.axis(axis).extent)[1:] for axis in self.chosen]
        if len(self.chosen) == MOST_AXES_CUT:
            options = [option[::2] for option in options]
        rows = list(product(*options))
        grid = np.array(rows, dtype=np.int64).reshape(len(rows), len(self.chosen))
        wished = {axis: grid[:, i] for i, axis in enumerate(self.chosen)}
        sizes: dict[str, _Column] = {}
        is_inner_cut = np.zeros(len(grid), dtype=bool)
        for axis in reversed(self.nest.axes):
            column = wished.get(axis.name, np.full(len(grid), max(axis.extent, 1), dtype=np.int64))
            if axis.kind is AxisKind.REDUCTION:
                column = np.where(is_inner_cut, 1, column)
                is_inner_cut |= column < axis.extent
            sizes[axis.name] = column
        return sizes

    def _box(self, operand: Operand, d: int, sizes: Mapping[str, _Column]) -> _Column:
        assert operand.index is not None
        index = operand.index[d]
        span = np.ones(len(next(iter(sizes.values()))), dtype=np.int64)
        for axis, coefficient in index.terms:
            span = span + abs(coefficient) * (sizes[axis] - 1)
        return np.minimum(operand.shape[d], -(-span // index.divisor))

    def _counts(self, axis: str) -> _Column:
        return -(-self.nest.axis(axis).extent // self.sizes[axis])

    def _used_axes(self, operand: Operand) -> set[str]:
        return {axis for index in operand.index or () for axis, _ in index.terms}

    def _footprint(self) -> _Column:
        total = np.zeros(len(self.sizes[self.nest.axes[0].name]), dtype=np.int64)
        alignment = self.search.alignment
        for operand in self.nest.operands:
            if operand.value is None:
                continue
            size = np.full(len(total), self.search.element_bytes[operand.name], dtype=np.int64)
            if operand.index is None:
                size = size * prod(operand.shape)
            else:
                for d in range(len(operand.shape)):
                    size = size * self._box(operand, d, self.sizes)
            size = -(-size // alignment) * alignment
            if self.is_double:
                moves = np.zeros(len(total), dtype=bool)
                for axis in self._used_axes(operand):
                    moves |= self._counts(axis) > 1
                size = np.where(moves, 2 * size, size)
            total = total + size
        return total

    def _once(self, operand: Operand) -> _Column:
        """Bytes of all boxes of an operand, each counted once."""
        size = np.full(len(self.sizes[self.nest.axes[0].name]), self.search.element_bytes[operand.name], dtype=np.int64)
        if operand.index is None:
            return size * prod(operand.shape)
        for d, index in enumerate(operand.index):
            cut = next((axis for axis, _ in index.terms if axis in self._cut_axes()), None)
            box = self._box(operand, d, self.sizes)
            if cut is None:
                size = size * box
                continue
            full, rest = np.divmod(self.nest.axis(cut).extent, self.sizes[cut])
            ragged = self._box(operand, d, {**self.sizes, cut: np.maximum(rest, 1)})
            size = size * (full * box + np.where(rest > 0, ragged, 0))
        return size

    def _cut_axes(self) -> list[str]:
        """Chosen axes, and reduction axes that had to follow."""
        return [axis.name for axis in self.nest.axes if axis.name in self.chosen or axis.kind is AxisKind.REDUCTION]

    def best(self) -> list[_Candidate]:
        if not len(self.sizes[self.nest.axes[0].name]):
            return []
        footprint_bytes = self._footprint()
        fits = footprint_bytes <= self.search.budget_for(self.is_double)
        if self.is_double:
            fits &= np.logical_or.reduce([self._counts(axis) > 1 for axis in self._cut_axes()] or [~fits & fits])
        if not fits.any():
            return []
        self.sizes = {axis: column[fits] for axis, column in self.sizes.items()}
        footprint_bytes = footprint_bytes[fits]
        once = {o.name: self._once(o) for o in self.nest.operands if o.value is not None}
        tile_count = np.ones(len(footprint_bytes), dtype=np.int64)
        for axis in self._cut_axes():
            tile_count = tile_count * self._counts(axis)
        reductions = [axis.name for axis in self.nest.axes if axis.kind is AxisKind.REDUCTION]
        parallel = [axis for axis in self.chosen if axis not in reductions]
        found: list[_Candidate] = []
        for order in permutations(parallel):
            traffic = self._traffic((*order, *reductions), once)
            shown = traffic * _shown_share(self.is_double, tile_count)
            ranked = np.argsort(shown + TILE_WORTH_BYTES * tile_count, kind="stable")[:EVALUATED]
            for i in ranked.tolist():
                sizes = {axis.name: int(self.sizes[axis.name][i]) for axis in self.nest.axes}
                loops = tuple(
                    Loop(axis, self.nest.axis(axis).extent, sizes[axis])
                    for axis in (*order, *reductions)
                    if sizes[axis] < self.nest.axis(axis).extent
                )
                found.append(
                    _Candidate(
                        sizes, loops, self.is_double, int(footprint_bytes[i]), int(traffic[i]), int(tile_count[i])
                    )
                )
        found.sort(key=_promise)
        return found[:EVALUATED]

    def _traffic(self, order: Sequence[str], once: Mapping[str, _Column]) -> _Column:
        """Bytes moved over the nest: an operand is brought again for each step of the loops outside its own."""
        total = np.zeros(len(self.sizes[self.nest.axes[0].name]), dtype=np.int64)
        for operand in self.nest.operands:
            if operand.value is None:
                continue
            used = self._used_axes(operand)
            outside = np.ones(len(total), dtype=np.int64)
            repeats = np.ones(len(total), dtype=np.int64)
            for axis in order:
                counts = self._counts(axis)
                if axis in used:
                    repeats = np.where(counts > 1, outside, repeats)
                else:
                    outside = outside * counts
            total = total + once[operand.name] * repeats
        return total
