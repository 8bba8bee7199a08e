"""How nests follow each other: what of one may happen while its neighbours compute.

That is a question of bytes: in scratchpad, and in L2, where no operand may be fetched before what writes it has
arrived. What is decided here is only seen in the order of the listing's events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tilegrad.analysis.footprint import is_held_whole, is_read_in_place, nth_tile
from tilegrad.analysis.overlap import SETTLED_BYTES, Bytes, Span, box_bytes, meet, one_run, overlaps
from tilegrad.ir.listing import SCRATCH, ListedNest, launch_before
from tilegrad.ir.nest import Operand
from tilegrad.ir.plan import NestPlace, Plan, Staging
from tilegrad.ir.schedule import Tiling


@dataclass(frozen=True)
class Handover:
    """Operands in `early` are requested before the nest before computes its last tile. If it `drains`, results of the
    nest before have arrived in L2 before this one requests anything; if it `leaves`, its own may be on their way when
    it ends. If it begins `at_once`, all it reads is there when the nest before ends, whose last results leave when this
    one's kernel has begun. Then operands in `taken` are read where the nest before made them, at these offsets; nests
    that come together also read what was brought for one of them, or made by one. If it `settles`, what is on its way
    out is waited for before the next one's `early` operands are requested, or, where that comes together with it, when
    it ends.
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


def suites_of(nests: Sequence[ListedNest]) -> list[range]:
    """Nests that come to scratchpad together, in order."""
    firsts = [i for i, one in enumerate(nests) if one.place is None or one.place.suite_index == 0]
    return [range(first, stop) for first, stop in pairwise([*firsts, len(nests)])]


def brought_ahead(plan: Plan, entry: str, nests: Sequence[ListedNest]) -> tuple[ListedNest, ...]:
    """With what blocks may ask for, of each nest that is launched behind another, before those of that launch have met:
    what none of them writes, whatever the width, nor a nest in between, and what has room beside them. None: not even
    its table has."""
    if not plan.schedule.carries:
        return tuple(nests)
    deciding = _Deciding(plan, entry, nests)
    ahead = [deciding.ahead(i) for i in range(len(nests))]
    beside = [own is not None and deciding.is_beside(i, own) for i, own in enumerate(ahead)]
    return tuple(replace(one, ahead=ahead[i], is_beside=beside[i]) for i, one in enumerate(nests))


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
        self.suites = suites_of(nests)
        self.late = [n > 0 and self._is_late(n) for n in range(len(self.suites))]
        self.done: list[Handover] = []
        self.known_homes: dict[tuple[int, int, str], Bytes | None] = {}

    def _is_late(self, n: int) -> bool:
        """Blocks bring what they need themselves, and leave nothing in scratchpad."""
        before, first = self.suites[n - 1], self.suites[n][0]
        if self.nests[first].blocks or self.nests[first - 1].blocks:
            return True
        return overlaps([self._tables(n)], [span for i in before for span in self._all_scratch(i)])

    def ahead(self, i: int) -> tuple[str, ...] | None:
        at = launch_before(self.nests, i)
        if at is None or any(one.is_joined for one in (self.nests[at], self.nests[i])):
            return None
        scratch = [span for k in range(at, i) for span in self._all_scratch(k)]
        if overlaps([self._table(i)], scratch):
            return None
        arriving = self._arriving_from_l3(self.nests[at].launch, self.nests[i].launch)
        written = [self._home(k, operand) for k in range(at, i) for operand in self.nests[k].nest.results]
        return tuple(
            operand.name
            for operand in self.nests[i].nest.reads
            if not overlaps(self._slots(i, [operand], first_only=True), scratch)
            and not overlaps([self._home(i, operand)], written)
            and not meet([one_run(*self._home(i, operand))], arriving)
        )

    def is_beside(self, i: int, ahead: Sequence[str]) -> bool:
        """Whether that takes longer than the last results take to leave, and the nest before computes for longer. Else
        it is asked for while these leave: a core that asks beside a tile is late for its own part of that."""
        at = launch_before(self.nests, i)
        assert at is not None
        slots = [self._tiling(i).slots[name].slot_bytes for name in ahead]
        results = [self._tiling(at).slots[operand.name].slot_bytes for operand in self.nests[at].nest.results]
        estimate = self._tiling(at).estimate
        return estimate.compute_cycles >= estimate.dma_cycles and sum(slots) > sum(results)

    def decide(self) -> list[Handover]:
        for n, suite in enumerate(self.suites):
            if self.plan.schedule.overlaps:
                self.done += self._overlapping(n)
            else:
                self.done += [Handover(self.late[n]) for _ in suite]
        return self.done

    def _overlapping(self, n: int) -> list[Handover]:
        """Of a suite. All but its first nest begin at once, whatever that one does."""
        suite, before = self.suites[n], self.suites[n][0] - 1
        leaving: tuple[Sequence[Span], Sequence[Bytes]] = ((), ())
        if self._settles(n):
            self.done[before] = replace(self.done[before], settles=True)
        elif self._may_still_store(n):
            leaving = self._still_on_their_way(n)
        early = [self._early(n, i, *leaving) for i in suite]
        leaves = [self._leaves(n, i) for i in suite]

        def taking(from_before: bool) -> list[Handover]:
            """What lies behind something that is requested late in the engine's queue is requested behind it."""
            found: list[Handover] = []
            is_late = False
            for i, own, does, taken in zip(suite, early, leaves, self._taken(n, from_before), strict=True):
                names = () if is_late else tuple(name for name in own if name not in taken)
                one = Handover(self.late[n] and i == suite[0], names, leaves=does, taken=taken)
                found.append(replace(one, at_once=from_before or i > suite[0]))
                is_late = is_late or bool(self._loads_late(i, one))
            return found

        found = taking(from_before=True)
        if not self._begins_at_once(n, found):
            found = taking(from_before=False)
            found[0] = replace(found[0], drains=self._drains(n, found))
        settles = [*self._overtake(n)[:-1], False]
        return [replace(one, settles=does) for one, does in zip(found, settles, strict=True)]

    def _place(self, i: int) -> NestPlace:
        place = self.nests[i].place
        assert place is not None
        return place

    def _tiling(self, i: int) -> Tiling:
        tiling = self.nests[i].tiling
        assert tiling is not None
        return tiling

    def _may_still_store(self, n: int) -> bool:
        """Whether results of the nest two before may be on their way when this suite's operands are requested."""
        before = self.suites[n][0] - 1
        is_short = before >= 0 and self.nests[before].tile_count == 1
        return is_short and (len(self.suites[n - 1]) > 1 or not self.done[before].drains)

    def _still_on_their_way(self, n: int) -> tuple[list[Span], list[Bytes]]:
        """What is stored while the last nest before a suite computes: that of those that came together with it, and of
        the one before them."""
        before = self.suites[n - 1]
        found = [self._on_their_way(i) for i in before[:-1]]
        if not self.done[before[0]].drains:
            found.append(self._on_their_way(before[0] - 1))
        return [span for spans, _ in found for span in spans], [one for _, own in found for one in own]

    def _overtake(self, n: int) -> list[bool]:
        """Of each nest of a suite, whether its results meet in L2 what those before it may still be storing; of the
        first one also, whether what the nest before stores is where the last one's second tile comes from, or leaves
        from where the next suite's tables go."""
        suite = self.suites[n]
        scratch, leaving = self._on_their_way(suite[0] - 1)
        following = [self._tables(n + 1)] if n + 1 < len(self.suites) else []
        second = self._homes(suite[-1], self.nests[suite[-1]].nest.reads, 1)
        is_soon = meet(second, leaving) or overlaps(scratch, following)
        found = []
        for i in suite:
            results = self._homes(i, self.nests[i].nest.results, -1)
            found.append(meet(results, leaving) or (is_soon and i == suite[0]))
            leaving = [*([] if found[-1] else leaving), *results]
        return found

    def _settles(self, n: int) -> bool:
        """Whether it helps these nests to wait for them then, and does not take long."""
        if not self._may_still_store(n):
            return False
        leaving, arriving = self._still_on_their_way(n)
        size_bytes = sum(stop - first for _, first, stop in leaving)
        return size_bytes <= SETTLED_BYTES and any(
            self._early(n, i, leaving, arriving) != self._early(n, i) for i in self.suites[n]
        )

    def _table(self, i: int) -> Span:
        place = self._place(i)
        return (SCRATCH, place.table_offset, place.table_offset + place.table_bytes)

    def _tables(self, n: int) -> Span:
        """Calls and tables of a suite, side by side."""
        suite = self.suites[n]
        return (SCRATCH, self._table(suite[0])[1], self._table(suite[-1])[2])

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

    def _homes(self, i: int, operands: Iterable[Operand], number: int) -> list[Bytes]:
        """Of the boxes that the tile of that number touches, where they live."""
        found = []
        for operand in operands:
            if (key := (i, number, operand.name)) not in self.known_homes:
                assert operand.value is not None
                address = self.plan.address(self.entry, operand.value, self.nests[i].launch)
                tile = nth_tile(self.nests[i].nest, self._tiling(i).loops, number)
                home = None if tile is None else box_bytes(operand, tile, address.region, address.offset)
                self.known_homes[key] = home
            found.append(self.known_homes[key])
        return [one for one in found if one is not None]

    def _on_their_way(self, i: int) -> tuple[list[Span], list[Bytes]]:
        """What nest `i` may still be storing when it ends: from scratchpad, to L2."""
        if i < 0 or not self.done[i].leaves:
            return [], []
        results = self.nests[i].nest.results
        return self._slots(i, results), self._homes(i, results, -1)

    def _early(self, n: int, i: int, leaving: Sequence[Span] = (), arriving: Sequence[Bytes] = ()) -> tuple[str, ...]:
        """Operands that need nothing that is not there before the last tile of the nest before the suite, and have
        room; beside what may be on its way."""
        at = self.suites[n][0] - 1
        if at < 0 or self.late[n]:
            return ()
        before = self.nests[at]
        scratch = [*self._all_scratch(at), *self._taken_spans(at, self.done[at].taken), *leaving]
        homes = [home for step in (-1, -2) for home in self._homes(at, before.nest.results, step)]
        homes += [*arriving, *self._arriving_from_l3(before.launch, self.nests[i].launch)]
        return tuple(
            operand.name
            for operand in self.nests[i].nest.reads
            if not overlaps(self._slots(i, [operand], first_only=True), scratch)
            and not meet(self._homes(i, [operand], 0), homes)
        )

    def _taken(self, n: int, from_before: bool) -> list[dict[str, int]]:
        """Of each nest of a suite, operands that are whole in scratchpad when its turn comes, and that it can read
        there: made or brought for a nest of the suite, or made by the one before it."""
        there: dict[Span, int] = {}
        found = []
        suite = self.suites[n]
        if from_before and suite[0] > 0:
            self._leave_there(suite[0] - 1, there)
        for i in suite:
            nest, loops = self.nests[i].nest, self._tiling(i).loops
            reads = [operand for operand in nest.reads if operand.continues is None]
            readable = [operand for operand in reads if is_read_in_place(operand, nest, loops)]
            homes = {operand.name: self._home(i, operand) for operand in readable}
            found.append({name: there[home] for name, home in homes.items() if home in there})
            for operand in reads:
                home = self._whole_home(i, operand)
                if home is not None:
                    ((_, first, _),) = self._slots(i, [operand])
                    there.setdefault(home, first)
            self._leave_there(i, there)
        return found

    def _leave_there(self, i: int, there: dict[Span, int]) -> None:
        """Results of a nest; what lived in their place is no more."""
        for operand in self.nests[i].nest.results:
            home = self._home(i, operand)
            for other in [other for other in there if overlaps([other], [home])]:
                del there[other]
            if self._whole_home(i, operand) is not None:
                ((_, first, _),) = self._slots(i, [operand])
                there[home] = first

    def _whole_home(self, i: int, operand: Operand) -> Span | None:
        """Where a tensor lives, if one slot of the nest holds all of it, for all of its tiles."""
        is_held = is_held_whole(operand, self.nests[i].nest, self._tiling(i).loops)
        return self._home(i, operand) if is_held else None

    def _home(self, i: int, operand: Operand) -> Span:
        assert operand.value is not None
        address = self.plan.address(self.entry, operand.value, self.nests[i].launch)
        return address.region, address.offset, address.offset + operand.size_bytes

    def _taken_spans(self, i: int, taken: Mapping[str, int]) -> list[Span]:
        reads = [operand for operand in self.nests[i].nest.reads if operand.name in taken]
        return [(SCRATCH, taken[o.name], taken[o.name] + o.size_bytes) for o in reads]

    def _begins_at_once(self, n: int, own: Sequence[Handover]) -> bool:
        """Whether nothing is left to do between the nest before and this suite."""
        suite, before = self.suites[n], self.suites[n][0] - 1
        if before < 0 or self.late[n] or not self.done[before].leaves:
            return False
        launches = range(self.nests[before].launch + 1, self.nests[suite[0]].launch + 1)
        has_moves = any(launch in self.starting or launch in self.arriving for launch in launches)
        if has_moves or self._loads_late(suite[0], own[0]):
            return False
        following = [self._tables(n + 1)] if n + 1 < len(self.suites) else []
        is_apart = not overlaps([span for i in suite for span in self._all_scratch(i)], [self._table(before)])
        taken = [span for i, one in zip(suite, own, strict=True) for span in self._taken_spans(i, one.taken)]
        return is_apart and not overlaps(taken, following) and not self._drains(n, own)

    def _loads_late(self, i: int, own: Handover) -> list[Operand]:
        """What is requested when the suite's turn has come, or, but for its first nest, when that has begun."""
        return [o for o in self.nests[i].nest.reads if o.name not in own.early and o.name not in own.taken]

    def _arriving_from_l3(self, after: int, launch: int) -> list[Bytes]:
        return [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for number in range(after + 1, launch + 1)
            for move in self.arriving.get(number, ())
            if move.inward
        ]

    def _leaves(self, n: int, i: int) -> bool:
        """Unless L3 takes the results, or fills their place where nobody needs them, or scratchpad has no room."""
        following = self.nests[i + 1].launch if i + 1 < len(self.nests) else self.launch_count
        results = self._homes(i, self.nests[i].nest.results, -1)
        taken = [
            one_run("arena", move.l2_offset, move.l2_offset + move.size_bytes)
            for number in range(self.nests[i].launch + 1, following + 1)
            for move in self.starting.get(number, ())
        ]
        is_next_late = i == self.suites[n][-1] and n + 1 < len(self.suites) and self.late[n + 1]
        return not is_next_late and not self.nests[i].blocks and not meet(results, taken)

    def _drains(self, n: int, own: Sequence[Handover]) -> bool:
        """Whether something of a suite, up to the end of its first tile, meets what the nest before still stores. Loads
        for all but its first nest come behind that."""
        suite = self.suites[n]
        leaving, arriving = self._on_their_way(suite[0] - 1)
        if not leaving:
            return False
        loads = self._homes(suite[0], self._loads_late(suite[0], own[0]), 0)
        scratch = [span for i in suite for span in self._all_scratch(i)]
        if len(suite) == 1:
            reads = [operand for operand in self.nests[suite[0]].nest.reads if operand.name not in own[0].taken]
            if self._tiling(suite[0]).is_double:
                loads += self._homes(suite[0], reads, 1)
            scratch += [self._tables(n + 1)] if n + 1 < len(self.suites) else []
        return meet(loads, arriving) or overlaps(scratch, leaving)
