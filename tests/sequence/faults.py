"""Faults to put into a listing's events: each is an edit, which gives for some positions what comes in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from tilegrad.ir.listing import (
    Begin,
    End,
    EntryListing,
    Event,
    Fetch,
    ListedNest,
    Listing,
    Load,
    Move,
    Part,
    Queue,
    Store,
    Wait,
    describe,
)
from tilegrad.ir.nest import Access, AxisKind, Operand, Range
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.replay import ListingError, _Replay

Edit = Mapping[int, Sequence[Event]]
Key = tuple[Queue, int]


def edited(events: Sequence[Event], edit: Edit) -> tuple[Event, ...]:
    return tuple(one for i, event in enumerate(events) for one in edit.get(i, (event,)))


@dataclass(frozen=True)
class Case:
    """One entry of a listing, with what is known about its events."""

    name: str
    listing: Listing
    entry: str
    needs: Needs

    @property
    def own(self) -> EntryListing:
        return self.listing.entries[self.entry]

    @property
    def events(self) -> tuple[Event, ...]:
        return self.own.events

    @cached_property
    def waits(self) -> dict[Key, int]:
        """Where each transfer is waited for."""
        return {(e.queue, e.transfer): i for i, e in enumerate(self.events) if isinstance(e, Wait)}

    @cached_property
    def members(self) -> dict[Key, list[int]]:
        """Which events each transfer consists of."""
        found: dict[Key, list[int]] = {}
        for i, event in self.all(Fetch, Load, Store, Move):
            found.setdefault((event.queue, event.transfer), []).append(i)
        return found

    def all(self, *kinds: type) -> Iterator[tuple[int, Event]]:  # type: ignore[misc]
        return ((i, event) for i, event in enumerate(self.events) if isinstance(event, kinds))

    def wait_of(self, i: int) -> int:
        return self.waits[key_of(self.events[i])]

    def operand(self, event: Load | Store) -> Operand:
        return self.own.nests[event.nest].nest.operand(event.operand)

    def next(self, kind: type, after: int) -> int | None:
        return next((k for k in range(after, len(self.events)) if isinstance(self.events[k], kind)), None)

    def last(self, kind: type, before: int) -> int:
        return max(k for k in range(before) if isinstance(self.events[k], kind))

    def end_of(self, begun: int) -> int:
        found = self.next(End, begun)
        assert found is not None
        return found

    def behind(self, i: int, to: int) -> Edit:
        """Event `i` comes later: right behind `to`."""
        return {i: (), to: (self.events[to], self.events[i])}

    def before(self, i: int, to: int) -> Edit:
        return {i: (), to: (self.events[i], self.events[to])}

    def replay(self, edit: Edit | None = None) -> None:
        own = self.own if edit is None else replace(self.own, events=edited(self.events, edit))
        _Replay(replace(self.listing, entries={self.entry: own}), self.entry, self.needs).run()

    def refusal(self, edit: Edit) -> ListingError | None:
        try:
            self.replay(edit)
        except ListingError as error:
            return error
        return None

    def names_event(self, error: ListingError, edit: Edit) -> bool:
        """An event of the entry, or of the fault, by its description; or what is missed when all is over."""
        message = error.message
        if any(text in message for text in MISSED):
            return True
        return any(f"({describe(event)})" in message for event in edited(self.events, edit))


# What is said at the end of an entry, of what should have happened: there is no event then. The nest or the value that
# misses it is named instead.
MISSED = ("never waited for: ", "the tiles are not the whole nest", "at the end", "the caller finds")

Fault = Callable[[Case], Iterator[Edit]]


def key_of(event: Event) -> Key:
    assert isinstance(event, Fetch | Load | Store | Move | Wait)
    return event.queue, event.transfer


def dropped_wait(case: Case) -> Iterator[Edit]:
    yield from ({i: ()} for i, _ in case.all(Wait))


def wait_for_the_wrong_transfer(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Wait):
        assert isinstance(event, Wait)
        for other in (event.transfer + 1, event.transfer - 1, event.transfer + 1000):
            yield {i: (replace(event, transfer=other),)}


def wait_on_the_wrong_queue(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Wait):
        assert isinstance(event, Wait)
        yield {i: (replace(event, queue=Queue(event.queue.block, "L4-L3")),)}


def wait_twice(case: Case) -> Iterator[Edit]:
    yield from ({i: (event, event)} for i, event in case.all(Wait))


def missing_transfer(case: Case) -> Iterator[Edit]:
    """It is not waited for either."""
    for i, event in case.all(Fetch, Load, Store):
        alone = case.members[key_of(event)] == [i]
        yield {i: (), case.wait_of(i): ()} if alone else {i: ()}


def transfer_used_twice(case: Case) -> Iterator[Edit]:
    """With the number of one that is over, also where it is waited for."""
    for i, event in case.all(Fetch, Load, Store):
        done = [k for k, at in case.waits.items() if at < i and k[0] == key_of(event)[0]]
        if done:
            assert isinstance(event, Fetch | Load | Store)
            wait = case.events[case.wait_of(i)]
            number = done[-1][1]
            yield {i: (replace(event, transfer=number),), case.wait_of(i): (replace(wait, transfer=number),)}  # type: ignore[call-arg]


def two_ways_in_one_transfer(case: Case) -> Iterator[Edit]:
    """A store with the number of a load that is under way."""
    for i, event in case.all(Store):
        assert isinstance(event, Store)
        under_way = [
            key
            for key, members in case.members.items()
            if key[0] == event.queue and isinstance(case.events[members[0]], Load) and members[0] < i < case.waits[key]
        ]
        if under_way:
            yield {i: (replace(event, transfer=under_way[0][1]),)}


def slot_reused_early(case: Case) -> Iterator[Edit]:
    """A load goes where the tile before still lies: into its slot, or before its kernel ran."""
    for i, event in case.all(Load):
        assert isinstance(event, Load)
        tiling, place = case.own.nests[event.nest].tiling, case.own.nests[event.nest].place
        assert tiling is not None and place is not None
        slot = tiling.slots[event.operand]
        first = place.slots_offset + slot.offset_bytes
        if event.tile == 0:
            continue
        if slot.count == 2:
            yield {i: (replace(event, near=2 * first + slot.slot_bytes - event.near),)}
        else:
            yield case.before(i, case.last(End, i))


def computed_before_it_left(case: Case) -> Iterator[Edit]:
    """The wait for a result that frees its slot comes behind a kernel that writes there: its beginning, or its end."""
    for i, event in case.all(Store):
        assert isinstance(event, Store)
        settled = case.wait_of(i)
        for k in range(settled, len(case.events)):
            begun = case.events[k]
            if isinstance(begun, Begin) and writes_to(case, begun, event.near):
                yield case.behind(settled, k)
                yield case.behind(settled, case.end_of(k))
                break


def writes_to(case: Case, begun: Begin, near: int) -> bool:
    operands = case.own.nests[begun.nest].nest.operands
    pairs = zip(operands, begun.places, strict=True)
    return any(p is not None and o.access is Access.WRITE and (p.region, p.offset) == ("L1", near) for o, p in pairs)


def begun_before_it_came(case: Case) -> Iterator[Edit]:
    """The wait for what a kernel reads comes behind its beginning."""
    loaded: dict[int, set[int]] = {}  # for which nests each transfer brings something
    for i, event in case.all(Load):
        loaded.setdefault(case.wait_of(i), set()).add(event.nest)  # type: ignore[union-attr]
    for i, _ in case.all(Load):
        settled = case.wait_of(i)
        begun = next((k for k, e in case.all(Begin) if k > settled and e.nest in loaded[settled]), None)  # type: ignore[union-attr]
        if begun is not None:
            yield case.behind(settled, begun)


def table_begun_before_it_came(case: Case) -> Iterator[Edit]:
    """The first use of a table comes before the wait for it."""
    for i, event in case.all(Fetch):
        settled = case.wait_of(i)
        users = (k for k in range(settled, len(case.events)) if getattr(case.events[k], "nest", -1) == event.nest)  # type: ignore[union-attr]
        used = next(k for k in users if isinstance(case.events[k], Load | Begin))
        yield case.behind(settled, used)


def stored_before_it_is_complete(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Store):
        assert isinstance(event, Store)
        ends = [k for k, e in case.all(End) if k < i and (e.nest, e.tile) == (event.nest, event.tile)]  # type: ignore[union-attr]
        yield case.before(i, ends[-1])


def tile_left_out(case: Case) -> Iterator[Edit]:
    yield from ({i: (), case.end_of(i): ()} for i, _ in case.all(Begin))


def tile_twice(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Begin):
        over = case.end_of(i)
        yield {over: (case.events[over], event, case.events[over])}


def tiles_swapped(case: Case) -> Iterator[Edit]:
    for (a, first), (b, second) in pairwise(case.all(Begin)):
        assert isinstance(first, Begin) and isinstance(second, Begin)
        if first.nest == second.nest:
            changed = replace(first, tile=second.tile), replace(second, tile=first.tile)
            yield {a: (changed[1],), b: (changed[0],)}


def one_row_more(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Load, Store):
        assert isinstance(event, Load | Store)
        last = event.parts[-1]
        yield {i: (replace(event, parts=(*event.parts[:-1], replace(last, rows=last.rows + 1))),)}


def one_element_further(case: Case) -> Iterator[Edit]:
    """In all of what moves, in its parts, or in the box."""
    for i, event in case.all(Load, Store):
        assert isinstance(event, Load | Store)
        size = case.operand(event).element_bytes
        yield {i: (replace(event, far=event.far + size),)}
        yield {i: (replace(event, parts=tuple(shifted(part, size) for part in event.parts)),)}
        if event.box:
            further = Range(event.box[0].start + 1, event.box[0].stop + 1)
            yield {i: (replace(event, box=(further, *event.box[1:])),)}


def shifted(part: Part, size: int) -> Part:
    return replace(part, far_offset=part.far_offset + size)


def narrow_box(case: Case) -> Iterator[Edit]:
    """The box of one operand is short by one in what the kernel is told."""
    for i, event in case.all(Begin):
        assert isinstance(event, Begin)
        for number, place in enumerate(event.places):
            for d, r in enumerate(place.box if place is not None else ()):
                if r.size > 1:
                    assert place is not None
                    box = (*place.box[:d], Range(r.start, r.stop - 1), *place.box[d + 1 :])
                    places = (*event.places[:number], replace(place, box=box), *event.places[number + 1 :])
                    yield {i: (replace(event, places=places),)}


def short_transfer(case: Case) -> Iterator[Edit]:
    """The last row stays away; the box says so too, where it has a dimension that does."""
    for i, event in case.all(Load, Store):
        assert isinstance(event, Load | Store)
        last = event.parts[-1]
        if last.rows > 1:
            yield {i: (replace(event, parts=(*event.parts[:-1], replace(last, rows=last.rows - 1))),)}
        elif len(event.parts) > 1:
            yield {i: (replace(event, parts=event.parts[:-1]),)}


def result_leaves_twice(case: Case) -> Iterator[Edit]:
    yield from ({i: (event, event)} for i, event in case.all(Store))


def table_overwritten(case: Case) -> Iterator[Edit]:
    """An operand, or the next table, comes to where the table of the nest at work lies."""
    for i, event in case.all(Load):
        assert isinstance(event, Load)
        place = case.own.nests[event.nest].place
        assert place is not None
        yield {i: (replace(event, near=place.table_offset),)}
    for i, event in case.all(Fetch):
        assert isinstance(event, Fetch)
        before = case.own.nests[event.nest - 1].place if event.nest else None
        if before is not None and case.events[i - 1].__class__ is Begin:
            move = before.table_offset - event.parts[0].near_offset
            parts = tuple(replace(part, near_offset=part.near_offset + move) for part in event.parts)
            if move:
                yield {i: (replace(event, parts=parts),)}


def short_table(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Fetch):
        assert isinstance(event, Fetch)
        yield {i: (replace(event, parts=event.parts[:-1]),)}


def operand_from_elsewhere(case: Case) -> Iterator[Edit]:
    """Of each kernel call one operand, read or written, is 8 bytes away; among them are those that are taken."""
    for i, event in case.all(Begin):
        assert isinstance(event, Begin)
        for number, place in enumerate(event.places):
            if place is not None and all(r.size for r in place.box):
                moved = replace(place, offset=place.offset + 8)
                yield {i: (replace(event, places=(*event.places[:number], moved, *event.places[number + 1 :])),)}


def sum_out_of_order(case: Case) -> Iterator[Edit]:
    """Two tiles of one sum, the later one first, each with its operands."""
    for (a, first), (b, second) in pairwise(case.all(Begin)):
        assert isinstance(first, Begin) and isinstance(second, Begin)
        nest = case.own.nests[first.nest].nest
        summed = [axis.name for axis in nest.axes if axis.kind is AxisKind.REDUCTION]
        others = [axis.name for axis in nest.axes if axis.kind is not AxisKind.REDUCTION]
        if first.nest == second.nest and all(first.ranges[x] == second.ranges[x] for x in others):
            assert any(first.ranges[x] != second.ranges[x] for x in summed)
            yield {a: (replace(first, ranges=second.ranges),), b: (replace(second, ranges=first.ranges),)}


# Between L3 and L2.


def move_missing(case: Case) -> Iterator[Edit]:
    yield from ({i: (), case.wait_of(i): ()} for i, _ in case.all(Move))


def move_short(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Move):
        assert isinstance(event, Move)
        yield {i: (replace(event, size_bytes=event.size_bytes - 8),)}


def move_elsewhere(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Move):
        assert isinstance(event, Move)
        yield {i: (replace(event, l2_offset=event.l2_offset + 8),)}
        yield {i: (replace(event, l3_offset=event.l3_offset + 8),)}


def move_the_wrong_way(case: Case) -> Iterator[Edit]:
    for i, event in case.all(Move):
        assert isinstance(event, Move)
        yield {i: (replace(event, inward=not event.inward),)}


def moved_too_early(case: Case) -> Iterator[Edit]:
    """A result goes to L3 before it has arrived in L2: before the wait for its store, or before its kernel's end."""
    for i, event in case.all(Move):
        assert isinstance(event, Move)
        if event.inward:
            continue
        stored = [k for k, e in case.all(Store) if k < i and lands_in(e, event)]
        if stored:
            yield case.before(i, case.wait_of(stored[-1]))
            continue
        computed = [k for k, e in case.all(Begin) if k < i and computes_in(case, e, event)]
        if computed:
            yield case.before(i, case.end_of(computed[-1]))


def more_moves_than_the_queue_takes(case: Case) -> Iterator[Edit]:
    """Where all that the engine between L3 and L2 takes is under way, what makes room comes behind the next move."""
    engine = case.listing.plan.schedule.target.far_engine
    under_way, settled = 0, None  # where the queue had been full
    for i, event in case.all(Move, Wait):
        if isinstance(event, Move):
            if settled is not None:
                yield case.behind(settled, i)
            under_way, settled = under_way + 1, None
        elif isinstance(case.events[case.members[key_of(event)][0]], Move):
            assert engine is not None
            settled = i if under_way == engine.queue_depth else None
            under_way -= 1


def lands_in(event: Event, move: Move) -> bool:
    assert isinstance(event, Store)
    return event.region == "arena" and move.l2_offset <= event.far < move.l2_offset + move.size_bytes


def computes_in(case: Case, event: Event, move: Move) -> bool:
    assert isinstance(event, Begin)
    pairs = zip(case.own.nests[event.nest].nest.operands, event.places, strict=True)
    stop = move.l2_offset + move.size_bytes
    return any(
        p is not None and o.access is Access.WRITE and p.region == "arena" and move.l2_offset <= p.offset < stop
        for o, p in pairs
    )


EVERYWHERE: tuple[Fault, ...] = (dropped_wait, wait_for_the_wrong_transfer, wait_on_the_wrong_queue, wait_twice)
CALLS: tuple[Fault, ...] = (tile_left_out, tile_twice, narrow_box, operand_from_elsewhere)
TILED: tuple[Fault, ...] = (
    missing_transfer, transfer_used_twice, two_ways_in_one_transfer, slot_reused_early, computed_before_it_left,
    begun_before_it_came, table_begun_before_it_came, stored_before_it_is_complete, tiles_swapped, one_row_more,
    one_element_further, short_transfer, result_leaves_twice, table_overwritten, short_table, sum_out_of_order,
)  # fmt: skip
MOVES: tuple[Fault, ...] = (
    move_missing, move_short, move_elsewhere, move_the_wrong_way, moved_too_early, more_moves_than_the_queue_takes,
)  # fmt: skip


def is_harmless(case: Case, edit: Edit) -> bool:
    """Where a move between L3 and L2 is missing, short or turned round: its other bytes are the same on both sides, as
    an earlier move of the tensor between the same places left them, and nothing was written there since."""
    (i, replaced), *_ = edit.items()
    event = case.events[i]
    if not isinstance(event, Move) or not event.inward:
        return False
    first = event.l2_offset
    if replaced and isinstance(replaced[0], Move) and replaced[0].inward:
        first += replaced[0].size_bytes
    stop = event.l2_offset + event.size_bytes
    same = (event.tensor, event.l2_offset, event.l3_offset)
    before = [k for k, e in case.all(Move) if k < i and (e.tensor, e.l2_offset, e.l3_offset) == same]  # type: ignore[union-attr]
    return bool(before) and not any(
        writes_arena(case, k, first, stop) for k in range(before[-1] + 1, case.wait_of(i) + 1) if k != i
    )


def writes_arena(case: Case, k: int, first: int, stop: int) -> bool:
    event = case.events[k]
    if isinstance(event, Move):
        return event.inward and event.l2_offset < stop and first < event.l2_offset + event.size_bytes
    if isinstance(event, Store):
        ends = max(event.far + part.far_stop for part in event.parts)
        return event.region == "arena" and event.far < stop and first < ends
    if isinstance(event, Begin) and case.own.nests[event.nest].tiling is None:
        pairs = zip(case.own.nests[event.nest].nest.operands, event.places, strict=True)
        results = [(o, p) for o, p in pairs if p is not None and o.access is Access.WRITE and p.region == "arena"]
        return any(place.offset < stop and first < place.offset + o.size_bytes for o, place in results)
    return False


def may_be_left_out(case: Case, fault: Fault, edit: Edit) -> bool:
    """A load that may be left out, or an operand that may be read from elsewhere: the same box of the same value came
    to those bytes before, and nothing has been brought or written there since. Or a store of what nobody wants."""
    (i, (*changed,)), *_ = edit.items()
    event = case.events[i]
    if fault is missing_transfer and isinstance(event, Load):
        size_bytes = sum(part.size_bytes for part in event.parts)
        return has_come(case, i, event.near, size_bytes, event.box, case.operand(event).value)
    if fault is missing_transfer and isinstance(event, Store):
        graph, value = case.listing.plan.schedule.entries[case.entry].graph, case.operand(event).value
        is_wanted = (event.nest, event.operand) in loaded_later(case.events, case.own.nests)
        return not is_wanted and value not in graph.outputs and value not in dict(graph.writes)
    if fault is operand_from_elsewhere and isinstance(event, Begin):
        moved = changed[0]
        assert isinstance(moved, Begin)
        operands = case.own.nests[event.nest].nest.operands
        for operand, place, before in zip(operands, moved.places, event.places, strict=True):
            if place is not None and place != before and operand.access is Access.READ:
                size_bytes = operand.element_bytes * prod(r.size for r in place.box)
                return has_come(case, i, place.offset, size_bytes, place.box, operand.value)
    return False


def loaded_later(events: Sequence[Event], nests: Sequence[ListedNest]) -> frozenset[tuple[int, str]]:
    """Results, by nest and operand, that come to scratchpad again before another nest writes the same value."""
    found: set[tuple[int, str]] = set()
    wanted: set[str | None] = set()
    for event in reversed(events):
        if isinstance(event, Load):
            wanted.add(nests[event.nest].nest.operand(event.operand).value)
        elif isinstance(event, End):
            for operand in nests[event.nest].nest.results:
                if operand.value in wanted:
                    found.add((event.nest, operand.name))
                    wanted.discard(operand.value)
    return frozenset(found)


def has_come(case: Case, i: int, near: int, size_bytes: int, box: tuple[Range, ...], value: str | None) -> bool:
    """Whether that box of a value is at those bytes of L1 in front of event `i`, brought by a load."""
    stop = near + size_bytes
    for event in reversed(case.events[:i]):
        if isinstance(event, Load):
            if (event.near, event.box, case.operand(event).value) == (near, box, value):
                return True
            if event.near < stop and near < event.near + sum(part.size_bytes for part in event.parts):
                return False
        if isinstance(event, Begin):
            operands = case.own.nests[event.nest].nest.operands
            if any(
                operand.access is Access.WRITE and place is not None and near <= place.offset < stop
                for operand, place in zip(operands, event.places, strict=True)
            ):
                return False
    return False


def spread(edits: Sequence[Edit], count: int) -> list[Edit]:
    """So many of them, from the first to the last."""
    if len(edits) <= count:
        return list(edits)
    return [edits[round(k * (len(edits) - 1) / (count - 1))] for k in range(count)]


def check_fault(case: Case, fault: Fault, places: int) -> int:
    """Every edit is refused with node and event named; how many were tried."""
    tried = 0
    for edit in spread(list(fault(case)), places):
        error = case.refusal(edit)
        if error is None:
            is_right = is_harmless(case, edit) if fault in MOVES else may_be_left_out(case, fault, edit)
            assert is_right, (case.name, fault.__name__, edit)
            continue
        assert error.node in {launch.node.name for launch in case.listing.plan.schedule.entries[case.entry].launches}
        assert case.names_event(error, edit), error.message
        tried += 1
    return tried
