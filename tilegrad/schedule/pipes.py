"""Which neighbours become a pipe: nests on different engines of a block, of which one reads what the other makes.

Both are cut alike, so that each box that goes in comes out as one box of the other, and the pair is played on the clock
with both engines at once. It is chosen where that is faster than one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilegrad.analysis.footprint import box_shape, nth_tile, tileable_axes, units_of
from tilegrad.analysis.lifetimes import align
from tilegrad.errors import DoesNotFit
from tilegrad.ir.blocks import share
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, operand_box, ordered_sizes
from tilegrad.ir.pipes import DEPTHS
from tilegrad.ir.schedule import Loop, Panel, Rows, TileEstimate, Tiling
from tilegrad.schedule.pipe_clock import Stage, alone, play
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets.base import ComputeEngine, Target

PAYS = 0.97
"""Of the cycles one behind the other, what a pipe takes at most where it is chosen."""
MOST_BOXES = 512
CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 96, 192)


@dataclass(frozen=True)
class Joined:
    """Two nests with their tilings, over so many blocks, through a ring of `depth` slots."""

    tilings: tuple[Tiling, Tiling]
    blocks: int
    depth: int
    slot_bytes: int
    cycles: float


def box_of(nest: Nest, operand: Operand, loops: Sequence[Loop], unit: int) -> Rows:
    """Which elements of an operand's tensor a unit of a nest has, in their order."""
    tile = nth_tile(nest, loops, unit * units_of(nest, loops)[1])
    assert tile is not None
    return Panel("", operand.shape, operand_box(operand, tile), operand.dtype).rows


def unit_count(nest: Nest, operand: Operand, loops: Sequence[Loop]) -> int:
    """Of units with one box each; none where a unit has several, or there are too many."""
    units, per_unit = units_of(nest, loops)
    return 0 if units > MOST_BOXES or (operand.access is Access.READ and per_unit > 1) else units


class Pipes:
    """Of one target."""

    def __init__(self, options: TilingOptions) -> None:
        self.options = options
        self.known: dict[object, Joined | None] = {}

    def engine(self, nest: Nest) -> ComputeEngine:
        found = self.options.target.compute_engine(nest.counts_macs)
        assert found is not None
        return found

    def join(
        self, pair: Sequence[tuple[Node, Nest]], operands: tuple[Operand, Operand], limit: int, depth: int | None = None
    ) -> Joined | None:
        """The fastest way to run two nests at once, through so many slots if that was asked for; None where no boxes of
        theirs are one to one, or nothing fits."""
        (_, first), (_, second) = pair
        key = (first.kind, first.skipped, second.kind, second.skipped, operands[0].name, operands[1].name, limit, depth)
        if key not in self.known:
            searches = [TilingSearch(self.options.on(self.engine(nest)), node.op, nest) for node, nest in pair]
            found: list[Joined] = []
            for loops in self._loops(first, second, operands, limit):
                found += self._judged(searches, loops, operands, limit, depth)
            found.sort(key=lambda one: (one.cycles, one.depth))
            best = next((one for one in found if self._is_right(searches, one, operands)), None)
            self.known[key] = best
        return self.known[key]

    def _loops(
        self, first: Nest, second: Nest, operands: tuple[Operand, Operand], limit: int
    ) -> Iterator[tuple[tuple[Loop, ...], tuple[Loop, ...]]]:
        """Ways to cut both so that boxes are one to one: one is cut, and the other answers to that."""
        seen = set()
        for nests, own in (((first, second), operands), ((second, first), operands[::-1])):
            for loops in self._cuts(nests[0], own[0], limit):
                units = unit_count(nests[0], own[0], loops)
                if not units:
                    continue
                some = [u for u in (0, 1, 2, units // 2, units - 1) if u < units]  # tell if a cut is worth a look
                first_box = box_of(nests[0], own[0], loops, 0)
                for other in self._answers(nests[1], own[1], loops, first_box.size_bytes, units):
                    if unit_count(nests[1], own[1], other) == units and all(
                        (box_of(nests[0], own[0], loops, u) if u else first_box) == box_of(nests[1], own[1], other, u)
                        for u in some
                    ):
                        found = (loops, other) if nests[0] is first else (other, loops)
                        if found not in seen:
                            yield found
                        seen.add(found)
                        break

    def _cuts(self, nest: Nest, operand: Operand, limit: int) -> Iterator[tuple[Loop, ...]]:
        """Of one or two parallel axes that the operand moves along, the outermost first; and of one that reads what
        comes through, of nothing else."""
        used = {axis for index in operand.index or () for axis, _ in index.terms}
        axes = [a for a in tileable_axes(nest) if nest.axis(a).kind is AxisKind.PARALLEL and a in used]
        for axis in axes:
            for size in _sizes(nest.axis(axis).extent, limit):
                yield _ordered(nest, {axis: size})
        for outer in axes:
            for inner in axes:
                if outer == inner:
                    continue
                for count in (2, 3, 4, 8):
                    for size in _sizes(nest.axis(inner).extent, limit)[::2]:
                        yield _ordered(nest, {outer: -(-nest.axis(outer).extent // count), inner: size})

    def _answers(
        self, nest: Nest, operand: Operand, other: Sequence[Loop], box_bytes: int, units: int
    ) -> Iterator[tuple[Loop, ...]]:
        """How the second nest may be cut for these boxes of the first: along one axis by as many elements as a box has,
        or along axes of the same lengths."""
        axes = [a for a in tileable_axes(nest) if nest.axis(a).kind is AxisKind.PARALLEL]
        elements = box_bytes // operand.element_bytes
        for axis in axes:
            extent = nest.axis(axis).extent
            others = max(prod(operand.shape) // extent, 1)
            if elements >= others and elements % others == 0 and -(-extent // (elements // others)) == units:
                yield _ordered(nest, {axis: elements // others})
            if -(-extent // -(-extent // units)) == units:
                yield _ordered(nest, {axis: -(-extent // units)})
        alike: dict[str, int] = {}
        for loop in other:
            found = next((a for a in axes if nest.axis(a).extent == loop.extent and a not in alike), None)
            if found is not None:
                alike[found] = loop.tile
        yield _ordered(nest, alike)

    def apart(self, nest: Nest, tiling: Tiling, lanes: int, blocks: int) -> float:
        """What a nest takes without a pipe, over so many blocks."""
        target, sizes = self.options.target, _tile_sizes(nest, tiling.loops)
        units, per_unit = units_of(nest, tiling.loops)
        count = -(-units // (blocks * lanes)) * per_unit
        stage = Stage.of(
            nest, tiling, sizes, self.options.costs.cycles(nest, sizes, target.compute, target.cores), count
        )
        return alone(target, stage, min(blocks, target.clusters), lanes, count)

    def _is_right(self, searches: Sequence[TilingSearch], one: Joined, operands: tuple[Operand, Operand]) -> bool:
        """Every box is one to one, and tables have room."""
        sides = list(zip(searches, operands, one.tilings, strict=True))
        if not all(search.fits(tiling) for search, _, tiling in sides):
            return False
        units, _ = units_of(searches[0].nest, one.tilings[0].loops)
        made, read = ([box_of(s.nest, o, t.loops, unit) for unit in range(units)] for s, o, t in sides)
        return made == read

    def _judged(
        self,
        searches: Sequence[TilingSearch],
        loops: tuple[tuple[Loop, ...], tuple[Loop, ...]],
        operands: tuple[Operand, Operand],
        limit: int,
        asked: int | None,
    ) -> list[Joined]:
        """What the pair takes, double buffered where that fits, with each depth of which all slots are used."""
        found = [search.cut(_tile_sizes(search.nest, own), own) for search, own in zip(searches, loops, strict=True)]
        tilings = [tiling for tiling in found if tiling is not None]
        if len(tilings) < len(found):
            return []
        units = units_of(searches[0].nest, loops[0])[0]
        blocks = min(limit, units)
        longest = max(stop - start for start, stop in (share(units, block, blocks) for block in range(blocks)))
        target, costs = self.options.target, self.options.costs
        stages = []
        for search, tiling in zip(searches, tilings, strict=True):
            sizes = _tile_sizes(search.nest, tiling.loops)
            cycles = costs.cycles(search.nest, sizes, target.compute, target.cores)
            stages.append(Stage.of(search.nest, tiling, sizes, cycles, longest))
        tilings = [_estimated(target, one, stage) for one, stage in zip(tilings, stages, strict=True)]
        alignment = target.memory(target.home).alignment_bytes
        box = prod(box_shape(operands[0], _tile_sizes(searches[0].nest, loops[0])))
        slot_bytes = align(box * operands[0].element_bytes, alignment)
        both = (tilings[0], tilings[1])
        return [
            Joined(both, blocks, depth, slot_bytes, play(target, stages, blocks, longest, depth))
            for depth in DEPTHS
            if depth == asked or (asked is None and depth < 2 * longest)
        ]

    def reason(
        self, pair: Sequence[tuple[Node, Nest]], operands: tuple[Operand, Operand], limit: int
    ) -> str | DoesNotFit:
        """Why two nests cannot be joined."""
        (_, first), (node, second) = pair
        loops = list(self._loops(first, second, operands, limit))
        if not loops:
            return "no way to cut both alike"
        smallest = min(loops, key=lambda own: prod(_tile_sizes(first, own[0]).values()))
        for (_, nest), own in zip(pair, smallest, strict=True):
            engine = self.engine(nest)
            room = self.options.target.scratch_bytes(engine)
            sizes = _tile_sizes(nest, own)
            needed = {o.name: prod(box_shape(o, sizes)) * o.element_bytes for o in nest.present}
            if sum(needed.values()) > room:
                budget = ", ".join(f"{name} {size}" for name, size in needed.items())
                return DoesNotFit(
                    f"the slots of a pipe from '{pair[0][0].name}' to '{node.name}' do not fit into {engine.name}",
                    stage="schedule",
                    node=node.name,
                    expected=f"at most {room} bytes",
                    got=f"{sum(needed.values())} bytes: {budget}",
                    hint="without this pipe, or with more scratchpad (--l1)",
                )
        return "tables and slots that do not fit"


def with_tiling(
    tilings: tuple[Tiling | None, ...], at: int, tiling: Tiling, cycles: float
) -> tuple[Tiling | None, ...]:
    own = replace(tiling, estimate=replace(tiling.estimate, cycles=cycles))
    return (*tilings[:at], own, *tilings[at + 1 :])


def _estimated(target: Target, tiling: Tiling, stage: Stage) -> Tiling:
    """With what it computes and moves; how long it takes is known of the pair only."""
    count = tiling.tile_count
    size_bytes = stage.first_bytes + (count - 1) * stage.in_bytes + count * stage.out_bytes
    busy = size_bytes * target.engine(target.home, target.compute).inward.cycles_per_byte
    estimate = TileEstimate(0.0, count * stage.cycles, busy, round(size_bytes), "piped")
    return replace(tiling, estimate=estimate)


def _sizes(extent: int, limit: int) -> list[int]:
    cuts = {*CUTS, *(limit * k for k in (1, 2, 3, 4, 6, 8, 12))}
    return sorted({-(-extent // cut) for cut in cuts if cut <= extent}, reverse=True)


def _ordered(nest: Nest, wished: Mapping[str, int]) -> tuple[Loop, ...]:
    sizes = ordered_sizes(nest, {axis.name: wished.get(axis.name, axis.extent) for axis in nest.axes})
    order = [*wished, *(axis.name for axis in nest.axes if axis.name not in wished)]
    return tuple(
        Loop(axis, nest.axis(axis).extent, sizes[axis]) for axis in order if sizes[axis] < nest.axis(axis).extent
    )


def _tile_sizes(nest: Nest, loops: Sequence[Loop]) -> dict[str, int]:
    return {axis.name: max(axis.extent, 1) for axis in nest.axes} | {loop.axis: loop.tile for loop in loops}
