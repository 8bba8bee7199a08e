"""Chooses among the tilings of nests that follow each other: by what neighbours hide of each other's transfers.

A nest's first loads are hidden while the nest before computes its last tile, if there is room for them in scratchpad,
as far as that takes, and if they are not what that nest has still to store. Two nests that are cut along the same
dimension pass their data on without waiting, as do two that hold all of it in scratchpad; otherwise the second waits
for all of the first. The choices of an entry are a path, and the cheapest one is found by going through it once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tilegrad.analysis.footprint import is_held_whole, is_read_in_place, nth_tile
from tilegrad.analysis.overlap import SETTLED_BYTES, Bytes, box_bytes
from tilegrad.ir.nest import Access, Nest, Operand, Tile
from tilegrad.ir.schedule import Slot, Tiling
from tilegrad.schedule.judge import Judge, Shapes

# How much a cycle of exposed waiting may count, the most first: the first choice that costs little more than the
# fastest is taken. Queues and later neighbours make real waits longer than what is seen from one pair.
WAITING_COUNTS = (4.0, 3.0, 2.5, 2.0, 1.75, 1.5, 1.25)
LITTLE_MORE = 1.005
# How many nests behind one may come together with the next, as far as is seen before they are placed.
SOON = 4
# Where transfers are to be hidden and these leave more of them exposed: more, at a price. Seen from pairs, that is a
# third of what is exposed in the end: commands that wait for room in a queue, and tiles that take less than their
# transfers do, are not seen.
MOST_EXPOSED, MOST_PAID = 0.05, 1.015
MORE_WAITING_COUNTS = (5.0, 6.0, 8.0, 12.0, 16.0, 32.0)


@dataclass(frozen=True, eq=False)
class _Load:
    """The first box of an operand, which is known by its number."""

    operand: int
    box: Bytes
    slot: Slot
    is_readable: bool  # in all of the tensor, where that is


@dataclass(frozen=True, eq=False)
class Edge:
    """What a nest moves at first and at last, cut in one of its ways; the same for all nests of its kind, whatever
    their values. Boxes are those of whole operands, by their number; equal `boxes` are one object."""

    nest: Nest
    tiling: Tiling
    table_bytes: int
    boxes: dict[object, Bytes | None] = field(default_factory=dict)

    @cached_property
    def size_bytes(self) -> int:
        return self.table_bytes + self.tiling.scratch_bytes

    def _boxes(self, access: Access, number: int) -> dict[int, Bytes]:
        """Of one of the tiles."""
        tile = nth_tile(self.nest, self.tiling.loops, number)
        if tile is None:
            return {}
        own = [(k, one) for k, one in enumerate(self.nest.operands) if one.value is not None and one.access is access]
        boxes = {k: self._box(k, operand, tile) for k, operand in own}
        return {k: box for k, box in boxes.items() if box is not None}

    def _box(self, k: int, operand: Operand, tile: Tile) -> Bytes | None:
        key = (k, *[(tile[axis].start, tile[axis].stop) for axis in operand.axes])
        if key not in self.boxes:
            self.boxes[key] = box_bytes(operand, tile, "", 0)
        return self.boxes[key]

    @cached_property
    def loads(self) -> list[_Load]:
        nest, tiling = self.nest, self.tiling
        operands = [(k, nest.operands[k], box) for k, box in self._boxes(Access.READ, 0).items()]
        return [
            _Load(k, box, tiling.slots[one.name], is_read_in_place(one, nest, tiling.loops)) for k, one, box in operands
        ]

    @cached_property
    def is_one_tile(self) -> bool:
        return self.tiling.tile_count == 1

    @cached_property
    def last_tile_cycles(self) -> float:
        return self.tiling.estimate.compute_cycles / self.tiling.tile_count

    @cached_property
    def stores(self) -> dict[int, Bytes]:
        """Those of the last tile."""
        return self._boxes(Access.WRITE, -1)

    @cached_property
    def stored_shapes(self) -> Shapes:
        return tuple([box.shape for box in self.stores.values()])

    @cached_property
    def last_results(self) -> dict[int, list[Bytes]]:
        """What has not arrived while the last tile computes."""
        every = (self.stores, self._boxes(Access.WRITE, -2))
        return {k: [own[k] for own in every if k in own] for k in self.stores | every[1]}

    @cached_property
    def whole_results(self) -> set[int]:
        """Those that one slot holds all of, for all tiles."""
        nest, loops = self.nest, self.tiling.loops
        return {k for k in self.stores if is_held_whole(nest.operands[k], nest, loops)}


@dataclass(frozen=True, eq=False)
class Link:
    """A nest of an entry, with the ways to cut it. `homes` says by operand which bytes it has: values share some."""

    nest: Nest
    edges: Sequence[Edge]
    homes: tuple[str, ...]

    @cached_property
    def loaded(self) -> set[str]:
        return {self.homes[load.operand] for load in self.edges[0].loads}

    @cached_property
    def written(self) -> set[str]:
        return {home for home, one in zip(self.homes, self.nest.operands, strict=True) if one.access is Access.WRITE}

    @cached_property
    def large_results(self) -> set[str]:
        """Where results live that take long to arrive."""
        own = zip(self.homes, self.nest.operands, strict=True)
        return {home for home, one in own if one.access is Access.WRITE and one.size_bytes > SETTLED_BYTES}


class _Neighbours:
    """Two nests, of which the second follows the first. `arriving` is what the nest before them stores while the first
    one computes its first tile."""

    def __init__(self, before: Link, link: Link, arriving: Collection[str]) -> None:
        self.arriving = {k for k, home in enumerate(link.homes) if home in arriving}
        own = [n for n, one in enumerate(before.nest.operands) if one.access is Access.WRITE]
        # By operand of the second, the results of the first that have its bytes.
        self.same = [[n for n in own if before.homes[n] == home] for home in link.homes]
        self.met: dict[tuple[Bytes, Bytes], bool] = {}

    def _meets(self, box: Bytes, other: Bytes) -> bool:
        found = self.met.get((box, other))
        if found is None:
            found = self.met[box, other] = box.meets(other)
        return found

    def _is_late(self, load: _Load, before: Edge) -> bool:
        same, last = self.same[load.operand], before.last_results
        return bool(same) and any(self._meets(load.box, box) for n in same for box in last.get(n, ()))

    def _is_kept(self, load: _Load, before: Edge) -> bool:
        own = (n for n in self.same[load.operand] if n in before.whole_results)
        return load.is_readable and any(self._meets(load.box, before.stores[n]) for n in own)

    def exposed_cycles(self, judge: Judge, before: Edge, edge: Edge, is_on_top: bool, scratch_bytes: int) -> float:
        """What the second waits for. Those that do not fit beside each other are at the bottom and at the top of
        scratchpad."""
        start = scratch_bytes - edge.size_bytes if is_on_top else edge.table_bytes
        room = scratch_bytes - before.size_bytes
        hidden: list[tuple[int, int]] = []
        waiting: list[tuple[int, int]] = []
        taken: list[tuple[int, int]] = []
        depends = False
        for load in edge.loads:
            begins = start + load.slot.offset_bytes
            has_room = begins >= before.size_bytes if is_on_top else begins + load.slot.slot_bytes <= room
            is_late = self._is_late(load, before)
            depends |= is_late
            if is_late and self._is_kept(load, before):
                taken.append(load.box.shape)
            elif is_late or (before.is_one_tile and load.operand in self.arriving) or not has_room:
                waiting.append(load.box.shape)
            else:
                hidden.append(load.box.shape)
        if not waiting and edge.size_bytes <= room:
            # It begins at once, with what the nest before left in scratchpad.
            return judge.exposed(before.last_tile_cycles, tuple(hidden))
        stores = before.stored_shapes if depends else ()
        return judge.exposed(before.last_tile_cycles, tuple(hidden), stores, (*waiting, *taken))


class Waits:
    """Remembers what neighbours wait for: layers repeat, and inference repeats the forward pass."""

    def __init__(self, judge: Judge, scratch_bytes: int) -> None:
        self.judge = judge
        self.scratch_bytes = scratch_bytes
        self.known: dict[object, list[list[float]]] = {}

    def between(self, before: Link, link: Link, is_on_top: bool, arriving: Collection[str]) -> list[list[float]]:
        """By choice of the second nest, and by choice of the first."""
        homes = (*before.homes, *link.homes)
        pattern = tuple([homes.index(home) for home in homes])
        early = tuple([home in arriving for home in link.homes])
        key = (*before.edges, *link.edges, pattern, early, is_on_top)
        if key not in self.known:
            both, place = _Neighbours(before, link, arriving), (is_on_top, self.scratch_bytes)
            self.known[key] = [
                [both.exposed_cycles(self.judge, one, edge, *place) for one in before.edges] for edge in link.edges
            ]
        return self.known[key]


def choose(links: Sequence[Link], known: Waits, hides: bool) -> list[Tiling]:
    """One tiling of each nest, in order. `hides`: hidden transfers are worth more than cycles."""
    if not links:
        return []
    first = [tuple([load.box.shape for load in edge.loads]) for edge in links[0].edges]
    # By nest, its choice, and the choice of the nest before.
    waits = [[[known.judge.exposed(0.0, shapes)] for shapes in first]]
    for i, link in enumerate(links[1:], 1):
        arriving = links[i - 2].large_results if i > 1 else ()
        waits.append(known.between(links[i - 1], link, bool(i % 2), arriving))
    steady = [_steady_cycles(known.judge, link, links[i + 2 : i + SOON]) for i, link in enumerate(links)]
    fastest, path = cheapest_path(steady, waits, 1.0)
    for weight in WAITING_COUNTS:
        cycles, other = cheapest_path(steady, waits, weight)
        if cycles <= LITTLE_MORE * fastest:
            path = other
            break
    for weight in MORE_WAITING_COUNTS if hides else ():
        if _exposed_share(links, waits, path) <= MOST_EXPOSED:
            break
        cycles, more = cheapest_path(steady, waits, weight)
        path = more if cycles <= MOST_PAID * fastest else path
    return [link.edges[k].tiling for link, k in zip(links, path, strict=True)]


def _steady_cycles(judge: Judge, link: Link, soon: Sequence[Link]) -> list[float]:
    """By choice, with what it costs that results leave and come back `soon`. Those that scratchpad holds whole are read
    there, also by a nest that comes together with the next one."""
    read = {home for one in soon for home in one.loaded} & link.written
    steady = []
    for edge in link.edges:
        left = read - {link.homes[k] for k in edge.whole_results} if read else read
        cut = tuple([box.shape for k, box in edge.stores.items() if link.homes[k] in left]) if left else ()
        steady.append(edge.tiling.estimate.steady_cycles + (judge.exposed(0.0, (), cut, cut) if cut else 0.0))
    return steady


def _exposed_share(links: Sequence[Link], waits: Sequence[Sequence[Sequence[float]]], path: Sequence[int]) -> float:
    exposed = sum(own[k][before] for own, k, before in zip(waits, path, (0, *path), strict=False))
    transfers = sum(link.edges[k].tiling.estimate.dma_cycles for link, k in zip(links, path, strict=True))
    return exposed / transfers if transfers else 0.0


def cheapest_path(
    steady: Sequence[Sequence[float]], waits: Sequence[Sequence[Sequence[float]]], weight: float
) -> tuple[float, list[int]]:
    """The cycles of the path that is cheapest where a cycle of waiting counts `weight`, and the choices on it."""
    # By choice of the latest nest, of the best path to it: its cost, and its cycles.
    costs = totals = np.zeros(1)
    sources = []  # the choice before, by nest and its choice
    for own, own_waits in zip(steady, waits, strict=True):
        waiting, cycles = np.array(own_waits), np.array(own)[:, None]
        steps = costs + weight * waiting + cycles
        best = (np.arange(len(own)), steps.argmin(axis=1))
        costs, totals = steps[best], (totals + waiting + cycles)[best]
        sources.append(best[1])
    choice = int(costs.argmin())
    total, path = float(totals[choice]), list[int]()
    for source in reversed(sources):
        path.append(choice)
        choice = int(source[choice])
    return total, path[::-1]
