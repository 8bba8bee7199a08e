"""Which neighbours become pipes: nests on different engines of a block, of which some read what others make.

All are cut alike, so that each box that goes in comes out as one box of the other, and they are played on the clock
with their engines at once. A group is chosen where that is faster than one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import prod

from tilegrad.analysis.footprint import (
    cut_loops,
    inner_loops,
    nth_tile,
    tile_bytes,
    tile_sizes,
    tileable_axes,
    units_of,
)
from tilegrad.analysis.lifetimes import align
from tilegrad.errors import DoesNotFit
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, operand_box, ordered_sizes
from tilegrad.ir.pipes import DEPTHS, MOST_WORKERS, Pipe
from tilegrad.ir.schedule import Loop, Panel, Rows, TileEstimate, Tiling
from tilegrad.schedule.pipe_clock import Stage, alone, play
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
class Joined:
    """Nests with their tilings and the lanes that each takes, over so many blocks, and a pipe for each link, whose ends
    are numbers of these nests."""

    tilings: tuple[Tiling, ...]
    lanes: tuple[int, ...]
    blocks: int
    pipes: tuple[Pipe, ...]
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
            found.sort(key=lambda one: (one.cycles, [pipe.depth for pipe in one.pipes]))
            self.known[key] = next((one for one in found if self._is_right(group, one)), None)
        return self.known[key]

    def _group(self, nodes: Sequence[tuple[Node, Nest]], links: Sequence[Link]) -> _Group:
        engines = tuple(self.engine(nest) for _, nest in nodes)
        places = self.options.target.places_of([(engine, 1) for engine in engines])
        searches = tuple(
            TilingSearch(self.options, node.op, nest, places.count(place))
            for (node, nest), place in zip(nodes, places, strict=True)
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
        axes = [a for a in tileable_axes(nest) if nest.axis(a).kind is AxisKind.PARALLEL and a in operand.axes]
        for axis in axes:
            for size in _sizes(nest.axis(axis).extent, limit):
                yield _ordered(nest, {axis: size})
        for outer, inner in permutations(axes, 2):
            for count, size in product((2, 3, 4, 8), _sizes(nest.axis(inner).extent, limit)[::2]):
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
        target = self.options.target
        units, per_unit = units_of(nest, tiling.loops)
        count = -(-units // (blocks * lanes)) * per_unit
        cycles = self.options.costs.cycles(nest, tile_sizes(nest, tiling.loops), target.compute, target.cores)
        stage = Stage.of(nest, tiling, cycles, count)
        return alone(target, stage, min(blocks, target.clusters), lanes, count)

    def _is_right(self, group: _Group, one: Joined) -> bool:
        """Every box is one to one, and tables have room."""
        if not all(search.fits(tiling) for search, tiling in zip(group.searches, one.tilings, strict=True)):
            return False
        units, _ = units_of(group.searches[0].nest, one.tilings[0].loops)
        for link, unit in product(group.links, range(units)):
            sides = ((link.producer, link.made), (link.consumer, link.read))
            made, read = (box_of(group.nests[k], operand, one.tilings[k].loops, unit) for k, operand in sides)
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
        longest = -(-units // blocks)
        cycles = [
            search.cycles(tile_sizes(search.nest, own)) for search, own in zip(group.searches, loops, strict=True)
        ]
        depths = {tuple(one or depth for one in asked) for depth in DEPTHS if all(asked) or depth < 2 * longest}
        places = (True, False) if self.options.target.shares_l1 and _are_made_at_once(group, loops) else (False,)
        for lanes, wanted in product(self._lanes(group, loops, cycles), sorted(depths)):
            for is_near in places:
                pipes = self._pipes(group, loops, lanes, wanted, is_near)
                tilings = self._tilings(group, loops, pipes)
                if tilings is not None:
                    yield self._played(group, tilings, cycles, lanes, pipes, (blocks, longest))
                    break

    def _tilings(self, group: _Group, loops: tuple[Loops, ...], pipes: Sequence[Pipe]) -> tuple[Tiling, ...] | None:
        """None where they do not fit, or a box is more than a transfer."""
        target, found = self.options.target, []
        longest_bytes = target.engine(target.home, target.compute).longest_bytes
        if any(pipe.slot_bytes > longest_bytes for pipe in pipes if not pipe.is_near):
            return None
        for k, search in enumerate(group.searches):
            tiling = search.cut(loops[k], _near_slots(group, pipes, k))
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

    def _pipes(
        self, group: _Group, loops: tuple[Loops, ...], lanes: Sequence[int], depths: Sequence[int], is_near: bool
    ) -> list[Pipe]:
        """In L1, as slots of the nests that make what passes; or in the memory that all share."""
        target, found = self.options.target, []
        alignment = target.memory(target.compute if is_near else target.home).alignment_bytes
        for number, (link, depth) in enumerate(zip(group.links, depths, strict=True)):
            sizes = tile_sizes(group.nests[link.producer], loops[link.producer])
            slot_bytes = align(tile_bytes(link.made, sizes), alignment)
            own = lanes[link.producer]
            rings = max(own, lanes[link.consumer]), own if is_near else 0
            found.append(Pipe(number, "", link.producer, link.consumer, depth, slot_bytes, 1, alignment, *rings))
        return found

    def _played(
        self,
        group: _Group,
        tilings: Sequence[Tiling],
        cycles: Sequence[float],
        lanes: tuple[int, ...],
        pipes: Sequence[Pipe],
        counts: tuple[int, int],
    ) -> Joined:
        target, (blocks, longest) = self.options.target, counts
        places = target.places_of(list(zip(group.engines, lanes, strict=True)))
        stages, first = [], 0
        for k, (nest, tiling) in enumerate(zip(group.nests, tilings, strict=True)):
            stage = Stage.of(nest, tiling, cycles[k], longest, _near_slots(group, pipes, k))
            stages.append(replace(stage, places=tuple(places[first : first + lanes[k]])))
            first += lanes[k]
        total = play(target, stages, pipes, blocks, longest)
        shown = [total, *(0.0 for _ in tilings[1:])]  # how long one takes is known of all together only
        estimated = [_estimated(target, *one) for one in zip(tilings, stages, shown, strict=True)]
        return Joined(tuple(estimated), lanes, blocks, tuple(pipes), total)

    def reason(self, nodes: Sequence[tuple[Node, Nest]], links: Sequence[Link], limit: int) -> str | DoesNotFit:
        """Why nests cannot be joined."""
        group = self._group(nodes, links)
        loops = list(self._loops(group, limit))
        if not loops:
            return "no way to cut both alike" if len(nodes) == 2 else "no way to cut all of them alike"
        smallest = min(loops, key=lambda own: prod(tile_sizes(group.nests[0], own[0]).values()))
        for (node, nest), search, own in zip(nodes, group.searches, smallest, strict=True):
            room, sizes = search.scratch_bytes, tile_sizes(nest, own)
            needed = {operand.name: tile_bytes(operand, sizes) for operand in nest.present}
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


def _are_made_at_once(group: _Group, loops: tuple[Loops, ...]) -> bool:
    """Whether each box that passes is: tiles of it differ by what they sum up."""
    for nest, cut in ((group.nests[link.producer], loops[link.producer]) for link in group.links):
        inner = cut[len(cut) - inner_loops(nest, cut) :]
        if any(nest.axis(loop.axis).kind is not AxisKind.REDUCTION for loop in inner):
            return False
    return True


def _near_slots(group: _Group, pipes: Sequence[Pipe], k: int) -> dict[str, int]:
    """Of operands of a nest that pass through L1: slots of its own that they have."""
    found = {}
    for link, pipe in zip(group.links, pipes, strict=True):
        if pipe.is_near and k == link.producer:
            found[link.made.name] = pipe.depth * pipe.lanes // pipe.near_lanes
        if pipe.is_near and k == link.consumer:
            found[link.read.name] = 0
    return found


def _estimated(target: Target, tiling: Tiling, stage: Stage, cycles: float) -> Tiling:
    """With what it computes and moves."""
    count = tiling.tile_count
    size_bytes = stage.first_bytes + (count - 1) * stage.in_bytes + count * stage.out_bytes
    busy = size_bytes * target.engine(target.home, target.compute).inward.cycles_per_byte
    return replace(tiling, estimate=TileEstimate(cycles, count * stage.cycles, busy, round(size_bytes), "piped"))


def _sizes(extent: int, limit: int) -> list[int]:
    cuts = {*CUTS, *(limit * k for k in (1, 2, 3, 4, 6, 8, 12))}
    return sorted({-(-extent // cut) for cut in cuts if cut <= extent}, reverse=True)


def _ordered(nest: Nest, wished: Mapping[str, int]) -> tuple[Loop, ...]:
    order = dict.fromkeys((*wished, *(axis.name for axis in nest.axes)))
    return cut_loops(nest, ordered_sizes(nest, wished), order)
