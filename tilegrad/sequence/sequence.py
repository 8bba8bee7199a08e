"""Plan to listing: when each transfer starts and what is waited for is decided here, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, product

from tilegrad.analysis.footprint import units_of
from tilegrad.analysis.tables import CALL_WORDS, table_of
from tilegrad.ir.blocks import share
from tilegrad.ir.listing import (
    Barrier,
    Enter,
    EntryListing,
    Event,
    Fetch,
    ListedNest,
    Listing,
    Move,
    Part,
    Queue,
    Wait,
    ring_offset,
)
from tilegrad.ir.nest import Nest, whole
from tilegrad.ir.pipes import groups
from tilegrad.ir.plan import Address, Plan
from tilegrad.sequence.handover import Handover, brought_ahead, handovers, suites_of
from tilegrad.sequence.kept import kept_results
from tilegrad.sequence.nest_events import CONDUCTING, Flow, NestEvents, ahead_of, pieces, whole_call
from tilegrad.sequence.piped_events import PipedEvents, PipeEnd
from tilegrad.sequence.replay import replay
from tilegrad.targets.base import L2, L3

WORD_BYTES = 4


def sequence_plan(plan: Plan) -> Listing:
    """One flat memory needs no listing: its code is the order."""
    if plan.schedule.target.is_flat:
        return Listing(plan, {})
    return replay(unproved(plan, plan.entries))


def unproved(plan: Plan, entries: Iterable[str]) -> Listing:
    """Of some entries, without the replay: good enough to be timed."""
    return Listing(plan, {entry: _Sequencing(plan, entry).listing() for entry in entries})


def listed_nests(plan: Plan, entry: str) -> tuple[ListedNest, ...]:
    """An entry's nests in order, each with its place and its table."""
    target = plan.schedule.target
    longest_bytes = target.engine(target.home, target.compute).longest_bytes
    places = {(place.launch, place.nest): place for place in plan.entries[entry].places}
    found = []
    joined = _joined_lanes(plan, entry)
    for number, launch in enumerate(plan.schedule.entries[entry].launches):
        tilings = launch.tilings or (None,) * len(launch.nests)
        for k, (nest, tiling) in enumerate(zip(launch.nests, tilings, strict=True)):
            table = None if tiling is None else table_of(launch.node.op, nest, tiling, longest_bytes)
            width = launch.width(k)
            blocks = 0 if width is None else width.at(plan.schedule.blocks)
            member, members, lanes = joined.get((number, k)) or _lanes(plan, [(nest, launch.lane_count(k))])[0]
            own = (places.get((number, k)), table, blocks * members, member, members, lanes)
            found.append(ListedNest(number, k, nest, tiling, *own))
    return tuple(found)


_Lanes = tuple[int, int, tuple[tuple[str, int], ...]]


def _lanes(plan: Plan, nests: Sequence[tuple[Nest, int]]) -> list[_Lanes]:
    """Of nests that are launched together, each on so many lanes: which of all lanes is its first one, how many these
    are, and which it has."""
    target = plan.schedule.target
    engines = [(target.compute_engine(nest.counts_macs), lanes) for nest, lanes in nests]
    every = target.places_of([(engine, lanes) for engine, lanes in engines if engine is not None])
    firsts = accumulate((lanes for _, lanes in nests), initial=0)
    total = sum(lanes for _, lanes in nests)
    return [(first, total, tuple(every[first : first + n])) for first, (_, n) in zip(firsts, nests, strict=False)]


def _joined_lanes(plan: Plan, entry: str) -> dict[tuple[int, int], _Lanes]:
    """The same of all nests that pipes join, by launch and nest."""
    schedule = plan.schedule.entries[entry]
    found: dict[tuple[int, int], _Lanes] = {}
    for first, last in groups(schedule.pipes):
        numbers = [number for number in range(first, last + 1) if schedule.launches[number].nests]
        keys = [(number, len(schedule.launches[number].nests) - 1 if number == first else 0) for number in numbers]
        nests = [(schedule.launches[i].nests[k], schedule.launches[i].lane_count(k)) for i, k in keys]
        found |= dict(zip(keys, _lanes(plan, nests), strict=True))
    return found


class _Sequencing:
    """One entry."""

    def __init__(self, plan: Plan, entry: str) -> None:
        target = plan.schedule.target
        engine = target.engine(target.home, target.compute)
        self.plan = plan
        self.entry = entry
        self.longest_bytes = engine.longest_bytes
        self.flow = Flow(Queue(CONDUCTING, engine.hop))
        self.flows = {CONDUCTING: self.flow}  # by block
        self.l3_queue = Queue(CONDUCTING, f"{L3}-{L2}")
        self.l3_depth = 0 if target.far_engine is None else target.far_engine.queue_depth
        self.moving: list[int] = []  # between L3 and L2, the one that was started first in front
        self.nests = listed_nests(plan, entry)
        self.handovers: list[Handover] = []
        self.runs: list[NestEvents] = []
        self.suites: dict[int, range] = {}
        # Blocks that have brought the table of the nest that is launched next, and by which transfer operands come.
        self.carried: dict[int, int | None] = {}
        if plan.entries[entry].places:
            self.nests = brought_ahead(plan, entry, self.nests)
            self.handovers = handovers(plan, entry, self.nests)
            self.set_runs()
        self.fetching = 0
        self.started: dict[int, list[int]] = {}
        self.waited: dict[int, list[int]] = {}
        for i, move in enumerate(plan.entries[entry].staging):
            self.started.setdefault(move.start, []).append(i)
            self.waited.setdefault(move.wait, []).append(i)

    def set_runs(self) -> None:
        """From how nests follow each other. Blocks of a launch bring what they need themselves."""
        kept = kept_results(self.plan, self.entry, self.nests, self.handovers)
        self.suites = {suite[0]: suite for suite in suites_of(self.nests)}
        ahead = {i: ahead_of(k, i == suite[-1]) for suite in self.suites.values() for k, i in enumerate(suite[1:])}
        for i, listed in enumerate(self.nests):
            handover = Handover(early=listed.ahead or ()) if listed.blocks else self.handovers[i]
            own = (i, listed, handover, self._homes(listed), self.flow, self.longest_bytes)
            self.runs.append(NestEvents(*own, ahead=ahead.get(i), kept=kept[i]))

    def _homes(self, listed: ListedNest) -> dict[str, Address]:
        address = self.plan.address
        return {o.name: address(self.entry, o.value, listed.launch) for o in listed.nest.present if o.value is not None}

    def listing(self) -> EntryListing:
        return EntryListing(self.nests, tuple(self._events()))

    def _events(self) -> Iterator[Event]:
        """Launches without nests do nothing, so what is due before one happens before the next that has some."""
        if self.runs and not self.nests[0].blocks:
            yield from self._fetch(0, self.flow)
            yield from self._fetched(0, self.flow)
        passed, end = -1, len(self.plan.schedule.entries[self.entry].launches)
        lasts = dict(groups(self.plan.schedule.entries[self.entry].pipes))
        for number, listed in enumerate(self.nests):
            # What is due before any of those that run at once is before the first of them.
            launch = lasts[listed.launch] if listed.is_joined and listed.member == 0 else listed.launch
            if launch > passed:
                yield from self._moves(passed, launch, number)
                passed = launch
            yield Enter(number)
            yield from self._nest(number, listed)
        yield from self._moves(passed, end, len(self.nests) - 1)
        yield from self.flow.settle_stores(len(self.nests) - 1)

    def _moves(self, passed: int, launch: int, nest: int) -> Iterator[Event]:
        """Between two launches: arrivals from earlier, departures whose room is needed, then what this launch needs.
        The engine has all else behind that: what is large and not urgent is in nobody's way."""
        staging = self.plan.entries[self.entry].staging
        due = sorted(i for number in range(passed + 1, launch + 1) for i in self.waited.get(number, ()))
        yield from self._arrived((i for i in due if staging[i].start <= passed), nest)
        begun = sorted(i for number in range(passed + 1, launch + 1) for i in self.started.get(number, ()))
        urgent = {i for i in begun if staging[i].wait <= launch}
        leaving = [i for i in begun if i in urgent and not staging[i].inward]
        yield from self._departing(leaving, nest)
        yield from self._arrived(leaving, nest)
        needed = [i for i in begun if i in urgent and staging[i].inward]
        others = (i for inward in (False, True) for i in begun if i not in urgent and staging[i].inward is inward)
        yield from self._departing(chain(needed, others), nest)
        yield from self._arrived(needed, nest)

    def _departing(self, moves: Iterable[int], nest: int) -> Iterator[Event]:
        """Where the engine's queue is full, the first move in it is waited for: nobody could start another before it is
        done."""
        for i in moves:
            if len(self.moving) == self.l3_depth:
                yield from self._arrived((self.moving[0],), nest)
            self.moving.append(i)
            yield self._move(i)

    def _arrived(self, moves: Iterable[int], nest: int) -> Iterator[Event]:
        """Waits for those that nobody has waited for."""
        for i in moves:
            if i in self.moving:
                self.moving.remove(i)
                yield Wait(self.l3_queue, i, nest)

    def _move(self, i: int) -> Move:
        move = self.plan.entries[self.entry].staging[i]
        offsets, rows = (move.l2_offset, move.l3_offset), (move.rows, move.l3_stride)
        return Move(self.l3_queue, i, move.tensor, *offsets, move.size_bytes, move.inward, *rows)

    def _nest(self, number: int, listed: ListedNest) -> Iterator[Event]:
        if not self.runs:
            yield from whole_call(number, listed, self._homes(listed), whole(listed.nest))
            return
        if listed.blocks:
            yield from self._launch(number, listed)
        else:
            yield from self._run(number)
        following = number + 1
        is_last = following == len(self.nests)
        if not is_last and self.handovers[following].is_fetched_late and not self.nests[following].blocks:
            yield from self._fetch(following, self.flow)
            yield from self._fetched(following, self.flow)

    def _launch(self, number: int, listed: ListedNest) -> Iterator[Event]:
        """Over blocks. Each brings the table and what it needs, unless it has brought that before the barrier, and
        waits for its results: none is late for what comes behind."""
        if listed.is_joined:
            yield from self._member(number, listed)
            return
        carried, self.carried = self.carried, {}
        behind = self._behind(number)
        for block in range(listed.blocks):
            own = self._share(listed, block)
            if not own:
                continue
            flow = self.flows.setdefault(block, Flow(Queue(block, self.flow.queue.engine)))
            events = self.runs[number].of_block(flow, own)
            flow.loading = carried.get(block)
            if block not in carried:
                yield from self._fetch(number, flow)
                yield from self._fetched(number, flow)
            following = None if behind is None else self._of_block(behind, flow)
            loads: Iterable[Event] = ()
            if behind is not None and following is not None:
                yield from self._fetch(behind, flow)
                loads = chain(self._fetched(behind, flow), following.first_loads(self.nests[behind].ahead or ()))
            if block not in carried:
                yield from events.first_loads(listed.ahead or ())
            in_last, at_end = (loads, ()) if behind is not None and self.nests[behind].is_beside else ((), loads)
            yield from events.run(hands_over=False, in_last=in_last, at_end=at_end)
            if following is not None:
                self.carried[block], flow.loading = flow.loading, None
        yield Barrier(number, listed.blocks)

    def _behind(self, number: int) -> int | None:
        """The next launch, if its blocks bring what they can before those of this one meet: where each has a cluster to
        itself."""
        found = next((i for i in range(number + 1, len(self.nests)) if self.nests[i].blocks), None)
        if found is None or self.nests[found].ahead is None:
            return None
        clusters = self.plan.schedule.target.clusters
        return found if max(self.nests[i].blocks for i in (number, found)) <= clusters else None

    def _share(self, listed: ListedNest, block: int) -> range:
        """The tiles that a block takes."""
        assert listed.tiling is not None
        units, tiles = units_of(listed.nest, listed.tiling.loops)
        first, stop = share(units, block, listed.blocks) if block < listed.blocks else (0, 0)
        return range(first * tiles, stop * tiles)

    def _of_block(self, number: int, flow: Flow) -> NestEvents | None:
        """What a block does of a nest, if anything."""
        share = self._share(self.nests[number], flow.queue.block)
        return self.runs[number].of_block(flow, share) if share else None

    def _member(self, number: int, listed: ListedNest) -> Iterator[Event]:
        """Of nests that pipes join. The last of them meets the others at the barrier."""
        assert listed.tiling is not None
        units, tiles = units_of(listed.nest, listed.tiling.loops)
        every = PipedEvents(number, listed, self._homes(listed), self.longest_bytes, self._ends_of(listed))
        blocks, lanes = listed.blocks // listed.members, len(listed.lanes)
        for block, lane in product(range(blocks), range(lanes)):
            first, stop = share(units, block, blocks)
            own = range(first * tiles + lane, stop * tiles, lanes)
            if not own:
                continue
            worker = block * listed.members + listed.member + lane
            flow = self.flows.setdefault(worker, Flow(Queue(worker, self.flow.queue.engine)))
            yield from self._fetch(number, flow)
            yield from self._fetched(number, flow)
            yield from every.at(flow, own, block, lane).events()
        if not listed.joins:
            yield Barrier(number, listed.blocks)

    def _ends_of(self, listed: ListedNest) -> dict[str, PipeEnd]:
        """The pipes of a nest, by operand."""
        found = {}
        for pipe in self.plan.schedule.entries[self.entry].pipes:
            for launch, operands in ((pipe.producer, listed.nest.results), (pipe.consumer, listed.nest.reads)):
                if launch == listed.launch:
                    end = PipeEnd(pipe, ring_offset(pipe, self.nests) if pipe.is_near else None)
                    found.update({one.name: end for one in operands if one.value == pipe.value})
        return {one.name: found[one.name] for one in listed.nest.operands if one.name in found}

    def _run(self, number: int) -> Iterator[Event]:
        following = self.handovers[number + 1] if number + 1 < len(self.nests) else None
        is_early = following is not None and not following.is_fetched_late and number + 1 in self.suites
        yield from self.runs[number].run(
            hands_over=following is not None and following.at_once,
            goes_on=following is not None and number + 1 not in self.suites and not self.handovers[number].settles,
            in_first=self._in_first(number, is_early),
            in_last=self._ahead(number + 1) if is_early else (),
        )

    def _in_first(self, number: int, is_next_early: bool) -> Iterator[Event]:
        if self.handovers[number].at_once:
            yield from self.runs[number - 1].last_stores()
        further = self.suites.get(number, range(0))[1:]
        if further and any(self.runs[i].has_late_loads for i in (number, *further)):
            yield from self.flow.settle_stores(number)
        for i in further:
            yield from self.runs[i].late_loads()
        if is_next_early:
            yield from self._fetch(number + 1, self.flow)

    def _ahead(self, number: int) -> Iterator[Event]:
        yield from self._fetched(number, self.flow)
        if self.handovers[number - 1].settles:
            yield from self.flow.settle_stores(number - 1)
        for i in self.suites[number]:
            yield from self.runs[i].first_loads(self.handovers[i].early)

    def _fetch(self, number: int, flow: Flow) -> Iterator[Fetch]:
        """The call and the table behind it; those of nests that come together lie side by side."""
        sizes: list[int] = []
        for listed in (self.nests[i] for i in self.suites[number]):
            assert listed.table is not None
            sizes += [WORD_BYTES * (CALL_WORDS + len(listed.nest.operands)), WORD_BYTES * len(listed.table)]
        place = self.nests[number].place
        assert place is not None
        self.fetching = flow.open()
        at = place.table_offset
        parts: list[Part] = []
        for size_bytes in sizes if len(self.suites[number]) == 1 else [sum(sizes)]:
            parts += pieces(at, 0, size_bytes, 1, 0, self.longest_bytes)
            at += size_bytes
        yield Fetch(flow.queue, self.fetching, number, tuple(parts), len(self.suites[number]))

    def _fetched(self, number: int, flow: Flow) -> Iterator[Wait]:
        yield Wait(flow.queue, self.fetching, number)
