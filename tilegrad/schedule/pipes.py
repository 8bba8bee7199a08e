"""Which neighbours become pipes: nests on different engines of a block, of which some read what others make.

All are cut alike, so that each box that goes in comes out as one box of the other, and they are played on the clock
with their engines at once. A group is chosen where that is faster than one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilegrad.analysis.footprint import box_shape, inner_loops, nth_tile, tileable_axes, units_of
from tilegrad.analysis.lifetimes import align
from tilegrad.errors import DoesNotFit
from tilegrad.ir.blocks import share
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, operand_box, ordered_sizes
from tilegrad.ir.pipes import DEPTHS, MOST_WORKERS
from tilegrad.ir.schedule import Loop, Panel, Rows, TileEstimate, Tiling
from tilegrad.schedule.pipe_clock import Passage, Stage, alone, play
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets.base import ComputeEngine, Target

PAYS = 0.97
"""Of the cycles one behind the other, what pipes take at most where they are chosen."""
MOST_BOXES = 512
CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 96, 192)

Loops = tuple[Loop, ...]


@dataclass(frozen=True)
class Link:
    """A value that goes from one nest of a group to another, by their numbers in it."""

    producer: int
    consumer: int
    made: Operand
    read: Operand


@dataclass(frozen=True)
class Ring:
    """How a link becomes a pipe (`ir.pipes.Pipe`)."""

    depth: int
    slot_bytes: int
    lanes: int
    near_lanes: int


@dataclass(frozen=True)
class Joined:
    """Nests with their tilings and the lanes that each takes, over so many blocks, and a ring of each link."""

    tilings: tuple[Tiling, ...]
    lanes: tuple[int, ...]
    blocks: int
    rings: tuple[Ring, ...]
    cycles: float


@dataclass(frozen=True)
class _Group:
    """Nests that are to run at once. Those on the same lane of an engine share its scratchpad."""

    searches: tuple[TilingSearch, ...]
    engines: tuple[ComputeEngine, ...]
    links: tuple[Link, ...]

    @property
    def nests(self) -> list[Nest]:
        return [search.nest for search in self.searches]


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
        self.pairs: dict[object, list[tuple[Loops, Loops]]] = {}  # ways to cut two nests alike

    def engine(self, nest: Nest) -> ComputeEngine:
        found = self.options.target.compute_engine(nest.counts_macs)
        assert found is not None
        return found

    def join(
        self, nodes: Sequence[tuple[Node, Nest]], links: Sequence[Link], limit: int, depths: Sequence[int | None]
    ) -> Joined | None:
        """The fastest way to run nests at once, through so many slots of a link if that was asked for; None where no
        boxes of theirs are one to one, or nothing fits."""
        kinds = [(nest.kind, nest.skipped) for _, nest in nodes]
        passing = [(one.producer, one.consumer, one.made.name, one.read.name) for one in links]
        key = (*kinds, *passing, *depths, limit)
        if key not in self.known:
            group = self._group(nodes, links)
            found: list[Joined] = []
            for loops in self._loops(group, limit):
                found += self._judged(group, loops, limit, depths)
            found.sort(key=lambda one: (one.cycles, [ring.depth for ring in one.rings]))
            self.known[key] = next((one for one in found if self._is_right(group, one)), None)
        return self.known[key]

    def _group(self, nodes: Sequence[tuple[Node, Nest]], links: Sequence[Link]) -> _Group:
        engines = tuple(self.engine(nest) for _, nest in nodes)
        places = self.options.target.places_of([(engine, 1) for engine in engines])
        searches = tuple(
            TilingSearch(self.options.on(engine, places.count(place)), node.op, nest)
            for (node, nest), engine, place in zip(nodes, engines, places, strict=True)
        )
        return _Group(searches, engines, tuple(links))

    def _loops(self, group: _Group, limit: int) -> Iterator[tuple[Loops, ...]]:
        """Ways to cut all of them so that boxes of every link are one to one."""
        first, *others = group.links
        nests = group.nests
        pair, operands = (nests[first.producer], nests[first.consumer]), (first.made, first.read)
        key = (*((one.kind, one.skipped) for one in pair), *(one.name for one in operands), limit)
        if key not in self.pairs:  # groups of more begin as this one
            self.pairs[key] = [*self._alike(*pair, operands, limit)]
        for made, read in self.pairs[key]:
            found = self._extended(nests, others, {first.producer: made, first.consumer: read})
            if found is not None:
                yield tuple(found[k] for k in range(len(nests)))

    def _extended(
        self, nests: Sequence[Nest], links: Sequence[Link], known: dict[int, Loops]
    ) -> dict[int, Loops] | None:
        """With the other nests cut as these links need it."""
        link = next((one for one in links if one.producer in known or one.consumer in known), None)
        if link is None:
            return known if len(known) == len(nests) else None
        others = [one for one in links if one is not link]
        ends = [(link.producer, link.made), (link.consumer, link.read)]
        (own, operand), (other, wanted) = ends if link.producer in known else ends[::-1]
        for loops in self._answered(nests[own], operand, known[own], nests[other], wanted, known.get(other)):
            found = self._extended(nests, others, {**known, other: loops})
            if found is not None:
                return found
        return None

    def _answered(
        self, nest: Nest, operand: Operand, loops: Loops, other: Nest, wanted: Operand, known: Loops | None = None
    ) -> Iterator[Loops]:
        """How another nest may be cut so that its boxes are those of one that is cut; `known`, if it is, too."""
        units = unit_count(nest, operand, loops)
        if not units:
            return
        some = [u for u in (0, 1, 2, units // 2, units - 1) if u < units]  # tell if a cut is worth a look
        boxes = {0: box_of(nest, operand, loops, 0)}
        answers = self._answers(other, wanted, loops, boxes[0].size_bytes, units) if known is None else [known]
        for answer in answers:
            if unit_count(other, wanted, answer) != units:
                continue
            for unit in some:
                boxes[unit] = boxes.get(unit) or box_of(nest, operand, loops, unit)
                if boxes[unit] != box_of(other, wanted, answer, unit):
                    break
            else:
                yield answer

    def _alike(
        self, first: Nest, second: Nest, operands: tuple[Operand, Operand], limit: int
    ) -> Iterator[tuple[Loops, Loops]]:
        """One is cut, and the other answers to that."""
        seen = set()
        for nests, own in (((first, second), operands), ((second, first), operands[::-1])):
            for loops in self._cuts(nests[0], own[0], limit):
                other = next(self._answered(nests[0], own[0], loops, nests[1], own[1]), None)
                if other is not None:
                    found = (loops, other) if nests[0] is first else (other, loops)
                    if found not in seen:
                        yield found
                    seen.add(found)

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

    def _is_right(self, group: _Group, one: Joined) -> bool:
        """Every box is one to one, and tables have room."""
        if not all(search.fits(tiling) for search, tiling in zip(group.searches, one.tilings, strict=True)):
            return False
        units, _ = units_of(group.searches[0].nest, one.tilings[0].loops)
        for link in group.links:
            sides = ((link.producer, link.made), (link.consumer, link.read))
            made, read = (
                [box_of(group.nests[k], operand, one.tilings[k].loops, unit) for unit in range(units)]
                for k, operand in sides
            )
            if made != read:
                return False
        return True

    def _judged(
        self, group: _Group, loops: tuple[Loops, ...], limit: int, asked: Sequence[int | None]
    ) -> Iterator[Joined]:
        """What they take, double buffered where that fits, on one lane each or all, with each depth of which all slots
        are used; in L1 where engines share that and have room."""
        units = units_of(group.nests[0], loops[0])[0]
        blocks = min(limit, units)
        longest = max(stop - start for start, stop in (share(units, block, blocks) for block in range(blocks)))
        target = self.options.target
        sizes = [_tile_sizes(nest, own) for nest, own in zip(group.nests, loops, strict=True)]
        cycles = [
            self.options.costs.cycles(nest, own, target.compute, target.cores)
            for nest, own in zip(group.nests, sizes, strict=True)
        ]
        depths = {tuple(one or depth for one in asked) for depth in DEPTHS if all(asked) or depth < 2 * longest}
        far_tilings = self._tilings(group, loops, sizes, {})
        for lanes in self._lanes(group, loops, cycles):
            for wanted in sorted(depths):
                made = self._rings(group, sizes, lanes, wanted, loops) if target.shares_l1 else None
                near = None if made is None else self._tilings(group, loops, sizes, made[1])
                rings = made[0] if made is not None and near is not None else self._far(group, sizes, lanes, wanted)
                tilings = near or far_tilings
                if tilings is None or rings is None:
                    continue
                yield self._played(group, tilings, (sizes, cycles), lanes, rings, (blocks, longest))

    def _tilings(
        self,
        group: _Group,
        loops: tuple[Loops, ...],
        sizes: Sequence[dict[str, int]],
        slots: Mapping[int, dict[str, int]],
    ) -> tuple[Tiling, ...] | None:
        found = []
        for k, search in enumerate(group.searches):
            tiling = search.cut(sizes[k], loops[k], slots.get(k))
            if tiling is None:
                return None
            found.append(tiling)
        return tuple(found)

    def _lanes(self, group: _Group, loops: tuple[Loops, ...], cycles: Sequence[float]) -> Iterator[tuple[int, ...]]:
        """One of each; and all there are, where that is what the others wait for."""
        yield (1,) * len(group.engines)
        own = []
        for nest, cut, engine in zip(group.nests, loops, group.engines, strict=True):
            is_able = units_of(nest, cut)[1] == 1
            own.append(max(engine.lanes // group.engines.count(engine), 1) if is_able else 1)
        sides = [(own[link.producer], own[link.consumer]) for link in group.links]
        is_slowest = own[max(range(len(own)), key=lambda k: cycles[k])] > 1
        if is_slowest and sum(own) <= MOST_WORKERS and all(1 in side or side[0] == side[1] for side in sides):
            yield tuple(own)

    def _rings(
        self,
        group: _Group,
        sizes: Sequence[dict[str, int]],
        lanes: Sequence[int],
        depths: Sequence[int],
        loops: tuple[Loops, ...],
    ) -> tuple[list[Ring], dict[int, dict[str, int]]] | None:
        """In L1, as slots of the nests that make what passes; None where a box is not made in one go."""
        rings, slots = [], dict[int, dict[str, int]]()
        alignment = self.options.target.memory(self.options.target.compute).alignment_bytes
        for link, depth in zip(group.links, depths, strict=True):
            nest, cut = group.nests[link.producer], loops[link.producer]
            inner = cut[len(cut) - inner_loops(nest, cut) :]
            if any(nest.axis(loop.axis).kind is not AxisKind.REDUCTION for loop in inner):
                return None
            count = max(lanes[link.producer], lanes[link.consumer])
            own = lanes[link.producer]
            rings.append(Ring(depth, _slot_bytes(link, sizes, alignment), count, own))
            slots.setdefault(link.producer, {})[link.made.name] = depth * count // own
            slots.setdefault(link.consumer, {})[link.read.name] = 0
        return rings, slots

    def _far(
        self, group: _Group, sizes: Sequence[dict[str, int]], lanes: Sequence[int], depths: Sequence[int]
    ) -> list[Ring] | None:
        """In the memory that all share; None where a box is more than a transfer."""
        target, rings = self.options.target, []
        for link, depth in zip(group.links, depths, strict=True):
            slot_bytes = _slot_bytes(link, sizes, target.memory(target.home).alignment_bytes)
            if slot_bytes > target.engine(target.home, target.compute).longest_bytes:
                return None
            rings.append(Ring(depth, slot_bytes, max(lanes[link.producer], lanes[link.consumer]), 0))
        return rings

    def _played(
        self,
        group: _Group,
        tilings: Sequence[Tiling],
        work: tuple[Sequence[dict[str, int]], Sequence[float]],
        lanes: tuple[int, ...],
        rings: Sequence[Ring],
        counts: tuple[int, int],
    ) -> Joined:
        target, (blocks, longest) = self.options.target, counts
        places = target.places_of(list(zip(group.engines, lanes, strict=True)))
        stages, first = [], 0
        for k, (nest, tiling) in enumerate(zip(group.nests, tilings, strict=True)):
            near = {
                (link.made if link.producer == k else link.read).name
                for link, ring in zip(group.links, rings, strict=True)
                if ring.near_lanes and k in (link.producer, link.consumer)
            }
            stage = Stage.of(nest, tiling, work[0][k], work[1][k], longest, near)
            stages.append(replace(stage, places=tuple(places[first : first + lanes[k]])))
            first += lanes[k]
        passages = [
            Passage(link.producer, link.consumer, ring.depth * ring.lanes, ring.near_lanes > 0)
            for link, ring in zip(group.links, rings, strict=True)
        ]
        cycles = play(target, stages, passages, blocks, longest)
        estimated = tuple(_estimated(target, one, stage) for one, stage in zip(tilings, stages, strict=True))
        return Joined(estimated, lanes, blocks, tuple(rings), cycles)

    def reason(self, nodes: Sequence[tuple[Node, Nest]], links: Sequence[Link], limit: int) -> str | DoesNotFit:
        """Why nests cannot be joined."""
        group = self._group(nodes, links)
        loops = list(self._loops(group, limit))
        if not loops:
            return "no way to cut both alike" if len(nodes) == 2 else "no way to cut all of them alike"
        smallest = min(loops, key=lambda own: prod(_tile_sizes(group.nests[0], own[0]).values()))
        for (node, nest), search, own in zip(nodes, group.searches, smallest, strict=True):
            room, sizes = search.options.scratch_bytes, _tile_sizes(nest, own)
            needed = {o.name: prod(box_shape(o, sizes)) * o.element_bytes for o in nest.present}
            if sum(needed.values()) > room:
                budget = ", ".join(f"{name} {size}" for name, size in needed.items())
                return DoesNotFit(
                    f"the slots of a pipe from '{nodes[0][0].name}' to '{nodes[-1][0].name}' do not fit into "
                    f"{self.engine(nest).name}",
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


def _slot_bytes(link: Link, sizes: Sequence[dict[str, int]], alignment: int) -> int:
    return align(prod(box_shape(link.made, sizes[link.producer])) * link.made.element_bytes, alignment)


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
