"""Chooses how a nest is cut into tiles: by estimated cycles, then by traffic.

The search is exhaustive over a small set of sensible sizes per axis and all orders of the parallel loops; equal nests
are searched once. Everything it needs follows from the axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import inf, prod

from tilegrad.errors import DoesNotFit
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, ordered_sizes
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.memory.lifetimes import align
from tilegrad.scheduling.footprint import (
    box_extent,
    box_shape,
    load_count,
    moving_axes,
    tileable_axes,
    transfer_of,
)
from tilegrad.scheduling.kernel_cost import KernelCosts
from tilegrad.targets.base import Target

# Candidate numbers of tiles along an axis; beyond the last, sizes shrink by halves.
_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BLOCK = 4  # kernels work on register blocks of four
EVALUATED = 48  # candidates whose cycles are estimated, after a ranking by traffic
MOST_AXES_CUT = 3


@dataclass(frozen=True)
class TilingOptions:
    """`buffering`: auto, single or double."""

    target: Target
    buffering: str
    costs: KernelCosts

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


def _dimension_total(operand: Operand, d: int, loops: Sequence[Loop], sizes: Mapping[str, int]) -> int:
    """Sum over a dimension's tiles of the positions they touch (halos counted each time)."""
    assert operand.index is not None
    index, extent = operand.index[d], operand.shape[d]
    loop = next((loop for loop in loops if index.coefficient(loop.axis)), None)
    if loop is None:
        return box_extent(index, extent, sizes)
    full = loop.extent // loop.tile
    rest = loop.extent - full * loop.tile
    total = full * box_extent(index, extent, sizes)
    if rest:
        total += box_extent(index, extent, {**sizes, loop.axis: rest})
    return total


def operand_traffic_bytes(
    operand: Operand, loops: Sequence[Loop], sizes: Mapping[str, int], element_bytes: int
) -> int:
    """Bytes moved for an operand over the whole nest."""
    if operand.index is None:
        return prod(operand.shape) * element_bytes
    once = prod(_dimension_total(operand, d, loops, sizes) for d in range(len(operand.shape)))
    moving = moving_axes(operand, loops)
    boxes = prod(loops[i].count for i in moving)
    return once * element_bytes * (load_count(operand, loops) // boxes)


class TilingSearch:
    """Searches one nest."""

    def __init__(self, options: TilingOptions, nest: Nest, element_bytes: Mapping[str, int]) -> None:
        self.options = options
        self.nest = nest
        self.element_bytes = element_bytes
        self.target = options.target
        self.alignment = self.target.memory(self.target.compute).alignment_bytes
        self.engine = self.target.engine(self.target.home, self.target.compute)

    def choose(self, name: str) -> Tiling:
        """`name` is the operator's, for the error when nothing fits."""
        modes = {"auto": (False, True), "single": (False,), "double": (True,)}[self.options.buffering]
        candidates = [candidate for mode in modes for candidate in self._candidates(mode)]
        if not candidates and self.options.buffering == "double":
            candidates = list(self._candidates(False))  # too little scratchpad for two of anything
        if not candidates:
            raise self._does_not_fit(name)
        best, best_key = None, (inf, inf)
        for candidate in candidates:
            estimate = self._estimate(candidate)
            key = (estimate.cycles, float(estimate.dma_bytes))
            if key < best_key:
                best, best_key = (candidate, estimate), key
        assert best is not None
        candidate, estimate = best
        return self._tiling(candidate, estimate)

    def _size_choices(self) -> Iterator[dict[str, int]]:
        """Sizes for the axes, few axes cut first."""
        extents = {axis.name: axis.extent for axis in self.nest.axes}
        axes = tileable_axes(self.nest)
        yield dict(extents)
        for count in range(1, MOST_AXES_CUT + 1):
            for chosen in combinations(axes, count):
                options = [axis_candidates(extents[axis])[1:] for axis in chosen]
                if count == MOST_AXES_CUT:
                    options = [option[::2] for option in options]
                for sizes in product(*options):
                    yield {**extents, **dict(zip(chosen, sizes, strict=True))}

    def _candidates(self, is_double: bool) -> list[_Candidate]:
        """Those that fit, the most promising by traffic and tile count."""
        found = []
        seen = set()
        for wished in self._size_choices():
            sizes = ordered_sizes(self.nest, wished)
            key = tuple(sizes.values())
            if key in seen:
                continue
            seen.add(key)
            loops = next(_loop_orders(self.nest, sizes))
            if is_double and not loops:
                continue
            slots = _slot_counts(self.nest, loops, is_double)
            size = footprint(self.nest, sizes, slots, self.element_bytes, self.alignment)
            if size > self.options.scratch_bytes:
                continue
            for order in _loop_orders(self.nest, sizes):
                traffic = sum(
                    operand_traffic_bytes(operand, order, sizes, self.element_bytes[operand.name])
                    for operand in self.nest.operands
                    if operand.value is not None
                )
                tile_count = prod(loop.count for loop in order)
                found.append(_Candidate(sizes, order, is_double, size, traffic, tile_count))
        if not found:
            found = self._shrunk(is_double)
        # A tile costs about as much as moving a few hundred bytes.
        found.sort(key=lambda c: (c.traffic_bytes + 2000 * c.tile_count, c.footprint_bytes))
        return found[:EVALUATED]

    def _shrunk(self, is_double: bool) -> list[_Candidate]:
        """Where no choice of few axes fits: halves whatever saves most until it does."""
        sizes = ordered_sizes(self.nest, {axis.name: axis.extent for axis in self.nest.axes})
        axes = tileable_axes(self.nest)

        def size_of(sizes: Mapping[str, int]) -> int:
            loops = next(_loop_orders(self.nest, sizes))
            slots = _slot_counts(self.nest, loops, is_double)
            return footprint(self.nest, sizes, slots, self.element_bytes, self.alignment)

        while size_of(sizes) > self.options.scratch_bytes:
            smaller = [
                ordered_sizes(self.nest, {**sizes, axis: -(-sizes[axis] // 2)}) for axis in axes if sizes[axis] > 1
            ]
            if not smaller:
                return []
            sizes = min(smaller, key=size_of)
        loops = next(_loop_orders(self.nest, sizes))
        return [_Candidate(sizes, loops, is_double, size_of(sizes), 0, prod(loop.count for loop in loops))]

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
        inward = outward = parts = 0.0
        for operand in self.nest.operands:
            if operand.value is None:
                continue
            size = self.element_bytes[operand.name]
            moved = operand_traffic_bytes(operand, candidate.loops, candidate.sizes, size)
            loads = load_count(operand, candidate.loops)
            box = box_shape(operand, candidate.sizes)
            shape = transfer_of(operand.shape, box, size)
            timing = self.engine.outward if operand.access is Access.WRITE else self.engine.inward
            cycles = moved * timing.cycles_per_byte + loads * shape.parts * (
                timing.setup_cycles / 4 + (shape.rows - 1) * timing.cycles_per_extra_row
            )
            parts += loads * shape.parts
            if operand.access is Access.WRITE:
                outward += cycles
            else:
                inward += cycles
        conduct = costs.conduct_cycles(self.nest, candidate.tile_count, parts)
        count = candidate.tile_count
        if candidate.is_double:
            steady = max(compute + conduct, inward, outward) * (count - 1) / count
            cycles = inward / count + steady + (compute + conduct) / count + outward / count
        else:
            cycles = compute + conduct + inward + outward
        reason = "double buffered" if candidate.is_double else "single buffered"
        return TileEstimate(cycles, compute, inward + outward, candidate.traffic_bytes, reason)

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

    def smallest_footprint_bytes(self) -> int:
        """With every axis cut to single steps."""
        sizes = ordered_sizes(self.nest, dict.fromkeys((axis.name for axis in self.nest.axes), 1))
        slots = {operand.name: 1 for operand in self.nest.operands}
        return footprint(self.nest, sizes, slots, self.element_bytes, self.alignment)

    def _does_not_fit(self, name: str) -> DoesNotFit:
        sizes = ordered_sizes(self.nest, dict.fromkeys((axis.name for axis in self.nest.axes), 1))
        budget = ", ".join(
            f"{operand.name} {prod(box_shape(operand, sizes)) * self.element_bytes[operand.name]}"
            for operand in self.nest.operands
            if operand.value is not None
        )
        return DoesNotFit(
            f"the smallest tile of tg_{self.nest.kernel} does not fit into {self.target.compute}",
            stage="tiling",
            node=name,
            expected=f"at most {self.options.scratch_bytes} bytes",
            got=f"{self.smallest_footprint_bytes()} bytes: {budget}",
            hint=f"give {self.target.compute} at least {self.smallest_footprint_bytes()} bytes (--l1)",
        )
