"""How nests follow each other: what of one may happen while its neighbours compute.

That is a question of bytes: in scratchpad, and in L2, where no operand may be fetched before what writes it has
arrived. What is decided here is only seen in the order of the listing's events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilegrad.analysis.footprint import is_held_whole, nth_tile
from tilegrad.analysis.overlap import SETTLED_BYTES, Bytes, box_bytes, meet, one_run
from tilegrad.ir.listing import SCRATCH, ListedNest
from tilegrad.ir.nest import Operand, Tile
from tilegrad.ir.plan import NestPlace, Plan, Staging
from tilegrad.ir.schedule import Tiling

Span = tuple[str, int, int]  # region, first byte, behind the last one


@dataclass(frozen=True)
class Handover:
    """Operands in `early` are requested before the nest before computes its last tile. If it `drains`, results of the
    nest before have arrived in L2 before this one requests anything; if it `leaves`, its own may be on their way when
    it ends. If it begins `at_once`, all it reads is there when the nest before ends, whose last results leave when this
    one's kernel has begun. Then operands in `taken` are read where the nest before made them, at these offsets. If it
    `settles`, what is on its way out is waited for before the next one's `early` operands are requested.
    """

    is_fetched_late: bool = False
    early: tuple[str, ...] = ()
    drains: bool = False
    leaves: bool = False
    at_once: bool = False
    settles: bool = False
    taken: Mapping[str, int] = field(default_factory=dict)


def handovers(plan: Plan, entry: str, nests: Sequence[ListedNest]) -> list[Handover]:
    """Of an entry's nests in tiles, in order."""
    return _Deciding(plan, entry, nests).decide()


def overlaps(a: Iterable[Span], b: Iterable[Span]) -> bool:
    others = list(b)
    return any(r == s and start < last and first < stop for r, start, stop in a for s, first, last in others)


class _Deciding:
    def __init__(self, plan: Plan, entry: str, nests: Sequence[ListedNest]) -> None:
        self.plan = plan
        self.entry = entry
        self.nests = nests
        self.launch_count = len(plan.schedule.entries[entry].launches)
        self.starting: dict[int, list[Staging]] = {}
        self.arriving: dict[int, list[Staging]] = {}
        for move in plan.entries[entry].staging:
            self.starting.setdefault(move.start, []).append(move)
            self.arriving.setdefault(move.wait, []).append(move)
        self.late = [i > 0 and self._is_late(i) for i in range(len(nests))]
        self.done: list[Handover] = []

    def _is_late(self, i: int) -> bool:
        """Blocks bring what they need themselves, and leave nothing in scratchpad."""
        over_blocks = self.nests[i].blocks or self.nests[i - 1].blocks
        return bool(over_blocks) or overlaps([self._table(i)], self._all_scratch(i - 1))

    def decide(self) -> list[Handover]:
        for i in range(len(self.nests)):
            own = Handover(self.late[i])
            if self.plan.schedule.overlaps:
                own = self._overlapping(i, own)
            self.done.append(own)
        return self.done

    def _overlapping(self, i: int, own: Handover) -> Handover:
        early, settles = self._early(i), self._settles(i)
        if settles:
            self.done[i - 1] = replace(self.done[i - 1], settles=True)
        elif self._may_still_store(i):
            early = self._early(i, *self._on_their_way(i - 2))
        own = replace(own, early=early, leaves=self._leaves(i))
        taking = replace(own, taken=self._taken(i))
        if self._begins_at_once(i, taking):
            own = replace(taking, at_once=True)
        return replace(own, drains=self._drains(i, own))

    def _place(self, i: int) -> NestPlace:
        place = self.nests[i].place
        assert place is not None
        return place

    def _tiling(self, i: int) -> Tiling:
        tiling = self.nests[i].tiling
        assert tiling is not None
        return tiling

    def _tile(self, i: int, number: int) -> Tile | None:
        return nth_tile(self.nests[i].nest, self._tiling(i).loops, number)

    def _may_still_store(self, i: int) -> bool:
        """Whether results of the nest two before may be on their way when this one's operands are requested."""
        return i > 0 and self.nests[i - 1].tile_count == 1 and not self.done[i - 1].drains

    def _settles(self, i: int) -> bool:
        """Whether it helps this nest to wait for them then, and does not take long."""
        if not self._may_still_store(i):
            return False
        leaving, arriving = self._on_their_way(i - 2)
        size_bytes = sum(stop - first for _, first, stop in leaving)
        return size_bytes <= SETTLED_BYTES and self._early(i, leaving, arriving) != self._early(i)

    def _table(self, i: int) -> Span:
        place = self._place(i)
        return (SCRATCH, place.table_offset, place.table_offset + place.table_bytes)

    def _all_scratch(self, i: int) -> list[Span]:
        start = self._place(i).slots_offset
        return [self._table(i), (SCRATCH, start, start + self._tiling(i).scratch_bytes)]

    def _slots(self, i: int, operands: Iterable[Operand], first_only: bool = False) -> list[Span]:
        start, slots = self._place(i).slots_offset, self._tiling(i).slots
        found = []
        for operand in operands:
            slot = slots[operand.name]
            first = start + slot.offset_bytes
            found.append((SCRATCH, first, first + (1 if first_only else slot.count) * slot.slot_bytes))
        return found

    def _homes(self, i: int, operands: Iterable[Operand], tile: Tile | None) -> list[Bytes]:
        """Of the boxes that a tile touches, where they live."""
        if tile is None:
            return []
        found = []
        for operand in operands:
            assert operand.value is not None
            address = self.plan.address(self.entry, operand.value, self.nests[i].launch)
            found.append(box_bytes(operand, tile, address.region, address.offset))
        return [one for one in found if one is not None]

    def _on_their_way(self, i: int) -> tuple[list[Span], list[Bytes]]:
        """What nest `i` may still be storing when it ends: from scratchpad, to L2."""
        if i < 0 or not self.done[i].leaves:
            return [], []
        results = self.nests[i].nest.results
        return self._slots(i, results), self._homes(i, results, self._tile(i, -1))

    def _early(self, i: int, leaving: Sequence[Span] = (), arriving: Sequence[Bytes] = ()) -> tuple[str, ...]:
        """Operands that need nothing that is not there before the last tile of the nest before, and have room; beside
        what may be on its way."""
        if i == 0 or self.late[i]:
            return ()
        before = self.nests[i - 1]
        taken = self.done[i - 1].taken
        scratch = [*self._all_scratch(i - 1), *self._taken_spans(i - 1, taken), *leaving]
        homes = [home for step in (-1, -2) for home in self._homes(i - 1, before.nest.results, self._tile(i - 1, step))]
        homes += [*arriving, *self._arriving_from_l3(before.launch, self.nests[i].launch)]
        return tuple(
            operand.name
            for operand in self.nests[i].nest.reads
            if not overlaps(self._slots(i, [operand], first_only=True), scratch)
            and not meet(self._homes(i, [operand], self._tile(i, 0)), homes)
        )

    def _taken(self, i: int) -> dict[str, int]:
        """Operands that are whole in scratchpad when the nest before ends, as this nest needs them all the time."""
        if i == 0:
            return {}
        made = {}
        for operand in self.nests[i - 1].nest.results:
            whole = self._whole_home(i - 1, operand)
            if whole is not None:
                ((_, first, _),) = self._slots(i - 1, [operand])
                made[whole] = first
        reads = [operand for operand in self.nests[i].nest.reads if operand.continues is None]
        found = {operand.name: self._whole_home(i, operand) for operand in reads}
        return {name: made[whole] for name, whole in found.items() if whole in made}

    def _whole_home(self, i: int, operand: Operand) -> Span | None:
        """Where a tensor lives, if one slot of the nest holds all of it, for all of its tiles."""
        assert operand.value is not None
        if not is_held_whole(operand, self.nests[i].nest, self._tiling(i).loops):
            return None
        address = self.plan.address(self.entry, operand.value, self.nests[i].launch)
        return address.region, address.offset, address.offset + operand.size_bytes

    def _taken_spans(self, i: int, taken: Mapping[str, int]) -> list[Span]:
        reads = [operand for operand in self.nests[i].nest.reads if operand.name in taken]
        return [(SCRATCH, taken[o.name], taken[o.name] + o.size_bytes) for o in reads]

    def _begins_at_once(self, i: int, own: Handover) -> bool:
        """Whether nothing is left to do between the nest before and this one."""
        if i == 0 or self.late[i] or not self.done[i - 1].leaves:
            return False
        reads = {operand.name for operand in self.nests[i].nest.reads}
        launches = range(self.nests[i - 1].launch + 1, self.nests[i].launch + 1)
        has_moves = any(launch in self.starting or launch in self.arriving for launch in launches)
        if has_moves or reads - {*own.early, *own.taken}:
            return False
        following = [self._table(i + 1)] if i + 1 < len(self.nests) else []
        is_apart = not overlaps(self._all_scratch(i), [self._table(i - 1)])
        return is_apart and not overlaps(self._taken_spans(i, own.taken), following) and not self._drains(i, own)

    def _arriving_from_l3(self, after: int, launch: int) -> list[Bytes]:
        return [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for number in range(after + 1, launch + 1)
            for move in self.arriving.get(number, ())
            if move.inward
        ]

    def _leaves(self, i: int) -> bool:
        """Unless L3 takes the results, or fills their place where nobody needs them, or scratchpad has no room."""
        following = self.nests[i + 1].launch if i + 1 < len(self.nests) else self.launch_count
        results = self._homes(i, self.nests[i].nest.results, self._tile(i, -1))
        taken = [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for number in range(self.nests[i].launch + 1, following + 1)
            for move in self.starting.get(number, ())
        ]
        is_next_late = i + 1 < len(self.nests) and self.late[i + 1]
        return not is_next_late and not self.nests[i].blocks and not meet(results, taken)

    def _drains(self, i: int, own: Handover) -> bool:
        """Whether something of nest `i`, up to its first tile, meets what the nest before still stores."""
        leaving, arriving = self._on_their_way(i - 1)
        if not leaving:
            return False
        reads = [operand for operand in self.nests[i].nest.reads if operand.name not in own.taken]
        loads = self._homes(i, [o for o in reads if o.name not in own.early], self._tile(i, 0))
        if self._tiling(i).is_double:
            loads += self._homes(i, reads, self._tile(i, 1))
        scratch = self._all_scratch(i)
        if i + 1 < len(self.nests):
            scratch.append(self._table(i + 1))
        return meet(loads, arriving) or overlaps(scratch, leaving)
