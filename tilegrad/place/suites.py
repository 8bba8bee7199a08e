"""Which nests come to scratchpad together: a suite is some small nests and the one behind them.

While a nest computes, the conductor makes the next one ready. One that computes for less time than that takes does not
pay for it: it comes together with the nest behind it, whose first operands are then requested a nest earlier. All of a
suite lies in scratchpad side by side, so its nests read what those before them made or brought where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilegrad.analysis.footprint import is_held_whole, is_read_in_place, nth_tile
from tilegrad.analysis.overlap import Span, box_bytes, overlaps
from tilegrad.costs.conduct import Act
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.ir.nest import Nest, Operand
from tilegrad.ir.plan import Plan
from tilegrad.ir.schedule import Tiling

# What a nest saves by coming with the next one, beside the time in which that one is made ready.
WORTH = 1.5
MOST_TOGETHER = 16  # nests: what one gains by being the next of so many is gained with fewer
# The conductor makes a nest ready beside cores whose kernel has displaced some of its code.
GONE = 0.5


@dataclass(frozen=True, slots=True)
class TiledNest:
    """A nest of an entry, with what its call and table take."""

    launch: int
    number: int
    nest: Nest
    tiling: Tiling
    table_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.table_bytes + self.tiling.scratch_bytes


class Suites:
    """Of one entry."""

    def __init__(self, plan: Plan, entry: str, costs: KernelCosts) -> None:
        self.plan = plan
        self.entry = entry
        target = plan.schedule.target
        self.conduct = costs.conduct
        self.timing = target.engine(target.home, target.compute).inward
        capacity = target.memory(target.compute).capacity_bytes
        assert capacity is not None
        self.capacity = capacity
        self.launches = plan.schedule.entries[entry].launches
        self.moved = {number for move in plan.entries[entry].staging for number in (move.start, move.wait)}

    def joined(self, nests: Sequence[TiledNest]) -> list[bool]:
        """For each nest, whether it comes together with the one before it."""
        found = [False] * len(nests)
        if not self.plan.schedule.overlaps:
            return found
        before = first = 0
        for i in range(1, len(nests)):
            found[i] = self._come_together(nests, before, first, i)
            if not found[i] and first < i - 1 and self._come_together(nests, first, i - 1, i):
                found[i - 1], found[i] = False, True
                before, first = first, i - 1
            elif not found[i]:
                before, first = first, i
        return found

    def _come_together(self, nests: Sequence[TiledNest], before: int, first: int, last: int) -> bool:
        """Whether nests from `first` to `last` do, behind those from `before` on."""
        if last - first >= MOST_TOGETHER:
            return False
        suite = nests[first : last + 1]
        size_bytes = sum(one.size_bytes for one in suite)
        before_bytes = sum(one.size_bytes for one in nests[before:first])
        next_bytes = nests[last + 1].size_bytes if last + 1 < len(nests) else 0
        if next_bytes + suite[-1].size_bytes > self.capacity:
            next_bytes = 0  # that has no room beside the last one anyway
        has_room = size_bytes + max(before_bytes, next_bytes) <= self.capacity
        return has_room and self._are_worth_it(suite) and self.may_come_together(suite)

    def _are_worth_it(self, suite: Sequence[TiledNest]) -> bool:
        """Whether the last but one computes for less time than it takes to make the last one ready, or brings so little
        that nobody waits for it."""
        *_, small, last = suite
        own_cycles = min(small.tiling.estimate.compute_cycles, self._load_cycles(small))
        return own_cycles < WORTH * (self._conduct_cycles(last) + self._load_cycles(last))

    def _conduct_cycles(self, one: TiledNest) -> float:
        """What the conductor does to make a nest ready."""
        acts = [Act.BEGIN_FIRST, Act.FETCH, Act.WAIT_TABLE, *(Act.FIRST_LOAD for _ in one.nest.reads), Act.END]
        return sum(self.conduct.cycles(pair, GONE, is_beside=True) for pair in pairwise(acts))

    def _load_cycles(self, one: TiledNest) -> float:
        """What the engine takes to bring its first operands."""
        tile = nth_tile(one.nest, one.tiling.loops, 0)
        boxes = [None if tile is None else box_bytes(operand, tile, "", 0) for operand in one.nest.reads]
        return sum(box.run_bytes * len(box.starts) * self.timing.cycles_per_byte for box in boxes if box is not None)

    def may_come_together(self, suite: Sequence[TiledNest]) -> bool:
        """All but the last are one tile, L3 has nothing to do between them, and what one makes and another needs stays
        where it is."""
        *small, last = suite
        if len(suite) > MOST_TOGETHER or sum(one.size_bytes for one in suite) > self.capacity:
            return False
        if any(one.tiling.tile_count > 1 for one in small) or not all(map(self._is_plain, suite)):
            return False
        if any(number in self.moved for number in range(suite[0].launch + 1, last.launch + 1)):
            return False
        made: dict[Span, bool] = {}  # and whether it is whole
        for one in suite:
            loops = one.tiling.loops
            for operand in one.nest.reads:
                span = self._span(one, operand)
                met = [other for other in made if overlaps([span], [other])]
                if met and not (met == [span] and made[span] and is_read_in_place(operand, one.nest, loops)):
                    return False
            for operand in one.nest.results:
                span = self._span(one, operand)
                made = {other: is_whole for other, is_whole in made.items() if not overlaps([span], [other])}
                made[span] = is_held_whole(operand, one.nest, loops)
        return True

    def _is_plain(self, one: TiledNest) -> bool:
        """All of an operator's nest, run by the conductor of the entry."""
        launch = self.launches[one.launch]
        return launch.part is None and launch.width(one.number) is None

    def _span(self, one: TiledNest, operand: Operand) -> Span:
        assert operand.value is not None
        address = self.plan.address(self.entry, operand.value, one.launch)
        return address.region, address.offset, address.offset + operand.size_bytes
