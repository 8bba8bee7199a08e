"""Chooses among the tilings of nests that follow each other: by what neighbours hide of each other's transfers.

A nest's first loads are hidden while the nest before computes its last tile, if there is room for them in scratchpad,
as far as that takes, and if they are not what that nest has still to store. Two nests that are cut along the same
dimension pass their data on without waiting, as do two that hold all of it in scratchpad; otherwise the second waits
for all of the first. The choices of an entry are a path, and the cheapest one is found by going through it once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilegrad.analysis.footprint import is_held_whole, is_read_in_place, nth_tile
from tilegrad.analysis.overlap import SETTLED_BYTES, Bytes, box_bytes, meet
from tilegrad.ir.nest import Nest, Operand
from tilegrad.ir.schedule import Slot, Tiling
from tilegrad.schedule.judge import Judge
from tilegrad.schedule.splitting import home_of

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


@dataclass(frozen=True)
class _Load:
    """The first box of an operand."""

    home: Bytes
    slot: Slot
    is_readable: bool  # in all of the tensor, where that is


@dataclass(frozen=True, eq=False)
class Link:
    """A nest with one of its tilings. `homes` says which values share bytes."""

    nest: Nest
    tiling: Tiling
    table_bytes: int
    homes: Mapping[str, str]

    @cached_property
    def size_bytes(self) -> int:
        return self.table_bytes + self.tiling.scratch_bytes

    def _boxes(self, operands: Sequence[Operand], number: int) -> list[tuple[Operand, Bytes]]:
        tile = nth_tile(self.nest, self.tiling.loops, number)
        if tile is None:
            return []
        boxes = ((operand, box_bytes(operand, tile, home_of(operand, self.homes), 0)) for operand in operands)
        return [(operand, box) for operand, box in boxes if box is not None]

    @cached_property
    def loads(self) -> list[_Load]:
        return [
            _Load(box, self.tiling.slots[operand.name], is_read_in_place(operand, self.nest, self.tiling.loops))
            for operand, box in self._boxes(self.nest.reads, 0)
        ]

    @cached_property
    def whole_results(self) -> list[Bytes]:
        """Those that one slot holds all of, for all tiles."""
        loops = self.tiling.loops
        return [box for operand, box in self._last_boxes if is_held_whole(operand, self.nest, loops)]

    @cached_property
    def read(self) -> set[str]:
        """Where operands live; all of a nest's tilings have the same."""
        return {home_of(operand, self.homes) for operand in self.nest.reads}

    @cached_property
    def written(self) -> set[str]:
        return {home_of(operand, self.homes) for operand in self.nest.results}

    @cached_property
    def large_results(self) -> set[str]:
        """Where results live that take long to arrive. All of a nest's tilings have the same."""
        return {home_of(one, self.homes) for one in self.nest.results if one.size_bytes > SETTLED_BYTES}

    @cached_property
    def last_tile_cycles(self) -> float:
        return self.tiling.estimate.compute_cycles / self.tiling.tile_count

    @cached_property
    def last_results(self) -> list[Bytes]:
        """What has not arrived while the last tile computes."""
        return [*self.last_stores, *(box for _, box in self._boxes(self.nest.results, -2))]

    @cached_property
    def _last_boxes(self) -> list[tuple[Operand, Bytes]]:
        return self._boxes(self.nest.results, -1)

    @cached_property
    def last_stores(self) -> list[Bytes]:
        return [box for _, box in self._last_boxes]

    @cached_property
    def result_regions(self) -> set[str]:
        return {box.region for box in self.last_results}


def exposed_cycles(
    judge: Judge, before: Link, link: Link, is_on_top: bool, scratch_bytes: int, arriving: Collection[str] = ()
) -> float:
    """What the second of two neighbours waits for. Those that do not fit beside each other are at the bottom and at the
    top of scratchpad. `arriving` is what the nest before them stores while the first one computes its first tile."""
    start = scratch_bytes - link.size_bytes if is_on_top else link.table_bytes
    one_tile, room = before.tiling.tile_count == 1, scratch_bytes - before.size_bytes
    hidden: list[Bytes] = []
    waiting: list[Bytes] = []
    taken: list[Bytes] = []
    depends = False
    for load in link.loads:
        begins = start + load.slot.offset_bytes
        has_room = begins >= before.size_bytes if is_on_top else begins + load.slot.slot_bytes <= room
        is_late = load.home.region in before.result_regions and meet([load.home], before.last_results)
        depends |= is_late
        is_arriving = one_tile and load.home.region in arriving
        if is_late and load.is_readable and meet([load.home], before.whole_results):
            taken.append(load.home)
        elif is_late or is_arriving or not has_room:
            waiting.append(load.home)
        else:
            hidden.append(load.home)
    if not waiting and link.size_bytes <= room:
        # It begins at once, with what the nest before left in scratchpad.
        return judge.exposed(before.last_tile_cycles, hidden)
    return judge.exposed(before.last_tile_cycles, hidden, before.last_stores if depends else (), waiting + taken)


class Waits:
    """Remembers what neighbours wait for: layers repeat, and inference repeats the forward pass."""

    def __init__(self, judge: Judge, scratch_bytes: int) -> None:
        self.judge = judge
        self.scratch_bytes = scratch_bytes
        self.known: dict[object, list[list[float]]] = {}

    def between(
        self, before: Sequence[Link], links: Sequence[Link], is_on_top: bool, arriving: Collection[str]
    ) -> list[list[float]]:
        """By choice of the second nest, and by choice of the first."""
        homes = [home_of(o, one.homes) for one in (before[0], links[0]) for o in one.nest.operands]
        pattern = tuple(homes.index(home) for home in homes)
        early = tuple(home in arriving for home in homes)
        keys = [tuple(link.tiling.key for link in own) for own in (before, links)]
        kinds = [(own[0].nest.kind, own[0].nest.skipped) for own in (before, links)]
        key = (*kinds, *keys, pattern, early, is_on_top)
        if key not in self.known:
            place = (is_on_top, self.scratch_bytes, arriving)
            self.known[key] = [[exposed_cycles(self.judge, one, link, *place) for one in before] for link in links]
        return self.known[key]


def choose(choices: Sequence[Sequence[Link]], known: Waits, hides: bool) -> list[Tiling]:
    """One tiling of each nest, in order. `hides`: hidden transfers are worth more than cycles."""
    if not choices:
        return []
    waits: list[list[list[float]]] = []  # by nest, its choice, and the choice of the nest before
    for i, links in enumerate(choices):
        if i == 0:
            waits.append([[known.judge.exposed(0.0, [load.home for load in link.loads])] for link in links])
            continue
        arriving = choices[i - 2][0].large_results if i > 1 else ()
        waits.append(known.between(choices[i - 1], links, bool(i % 2), arriving))
    steady = [
        [
            link.tiling.estimate.steady_cycles + _returning_cycles(known.judge, link, choices[i + 2 : i + SOON])
            for link in links
        ]
        for i, links in enumerate(choices)
    ]
    fastest, path = cheapest_path(steady, waits, 1.0)
    for weight in WAITING_COUNTS:
        cycles, other = cheapest_path(steady, waits, weight)
        if cycles <= LITTLE_MORE * fastest:
            path = other
            break
    for weight in MORE_WAITING_COUNTS if hides else ():
        if _exposed_share(choices, waits, path) <= MOST_EXPOSED:
            break
        cycles, more = cheapest_path(steady, waits, weight)
        path = more if cycles <= MOST_PAID * fastest else path
    return [links[k].tiling for links, k in zip(choices, path, strict=True)]


def _returning_cycles(judge: Judge, link: Link, soon: Sequence[Sequence[Link]]) -> float:
    """What it costs that results leave and come back. Those that scratchpad holds whole are read there, also by a nest
    that comes together with the next one."""
    if not link.written & {home for links in soon for home in links[0].read}:
        return 0.0
    read = {load.home.region for links in soon for load in links[0].loads}
    whole = {box.region for box in link.whole_results}
    cut = [box for box in link.last_stores if box.region in read - whole]
    return judge.exposed(0.0, (), cut, cut) if cut else 0.0


def _exposed_share(
    choices: Sequence[Sequence[Link]], waits: Sequence[Sequence[Sequence[float]]], path: Sequence[int]
) -> float:
    exposed = sum(own[k][before] for own, k, before in zip(waits, path, (0, *path), strict=False))
    transfers = sum(links[k].tiling.estimate.dma_cycles for links, k in zip(choices, path, strict=True))
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
