"""Faults put into listings, each refused by the replay, which names the node and the event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.schedule.programs import KIB, compiled_for, siracusa
from tests.sequence.faults import CALLS, EVERYWHERE, MOVES, TILED, Case, Fault, check_fault, edited
from tests.sequence.toy import ENTRY, FAR, NO_ESTIMATE, Toy, chip, copy_nest, sum_nest, tiling_of, with_events
from tilegrad.ir.listing import Begin, End, Enter, Event, Fetch, Listing, Load, Move, Store, Wait, describe
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, Range, Tile, along, operand_range
from tilegrad.ir.schedule import Loop, Slot, Tiling
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence import nest_events as nest_events_module
from tilegrad.sequence.contents import Memory
from tilegrad.sequence.handover import Handover, handovers, suites_of
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.replay import MOST_TRANSFERS, ListingError, replay
from tilegrad.sequence.sequence import _Sequencing, sequence_plan
from tilegrad.targets.base import L3

WAYS = {
    "attention, double buffered, from L3": ("attention", 2 * KIB, ScheduleOptions(buffering="double", home="L3")),
    "odd_cnn, double buffered": ("odd_cnn", 4 * KIB, ScheduleOptions(buffering="double")),
    "odd_cnn, single buffered, from L3": ("odd_cnn", 6 * KIB, ScheduleOptions(buffering="single", home="L3")),
    "attention, untiled, from L3": ("attention", 128 * KIB, ScheduleOptions(is_tiled=False, home="L3")),
}
L3_QUEUE = 2  # moves that the engine takes, in all of these
PLACES = 3  # of each kind in each listing, from its beginning to its end; the slow test looks at many more
FAULTS = (*EVERYWHERE, *CALLS, *TILED, *MOVES)


@cache
def case_of(way: str, entry: str = "step") -> Case:
    name, l1_bytes, options = WAYS[way]
    target = siracusa(l1_bytes)
    engines = tuple(replace(one, queue_depth=L3_QUEUE) if one.far == L3 else one for one in target.engines)
    listing = compiled_for(name, replace(target, engines=engines), options).listing
    return Case(f"{way}, {entry}", listing, entry, Needs())


def test_cases_have_every_kind_of_event() -> None:
    kinds = {type(event) for way in WAYS for event in case_of(way).events}
    assert kinds == {Fetch, Load, Store, Move, Wait, Enter, Begin, End}
    tilings = [one.tiling for way in WAYS for one in case_of(way).own.nests if one.tiling is not None]
    assert any(len(tiling.loops) > 1 for tiling in tilings)
    assert any(
        one.nest.axis(loop.axis).kind is AxisKind.REDUCTION
        for way in WAYS
        for one in case_of(way).own.nests
        for loop in (one.tiling.loops if one.tiling is not None else ())
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found(fault: Fault) -> None:
    assert sum(check_fault(case_of(way), fault, PLACES) for way in WAYS) >= PLACES


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["step", "update", "infer"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found_everywhere(fault: Fault, entry: str) -> None:
    for way in WAYS:
        check_fault(case_of(way, entry), fault, 25)


def test_wrong_halo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that forgets the window's reach brings a box that is right for a kernel of size one."""

    def short(index: Index, extent: int, tile: Tile) -> Range:
        return operand_range(replace(index, terms=index.terms[:1]), extent, tile)

    listing = case_of("odd_cnn, double buffered").listing
    monkeypatch.setattr(nest_events_module, "operand_range", short)
    text = r"the box of '\w+' has \d+ to \d+ of dimension \d, the kernel's are|the transfer is not that of the box"
    for entry in ("step", "infer"):
        own = _Sequencing(listing.plan, entry).listing()
        with pytest.raises(ListingError, match=text) as caught:
            replay(replace(listing, entries={entry: own}))
        assert caught.value.node is not None


def test_a_listing_is_proved_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = case_of("attention, double buffered, from L3").listing.plan
    monkeypatch.setattr(nest_events_module.Flow, "settle_loads", lambda *_: iter(()))
    with pytest.raises(ListingError, match="has not arrived"):
        sequence_plan(plan)


# How nests follow each other: what is decided wrongly is found in what follows from it.


def with_handovers(listing: Listing, own: Sequence[Handover]) -> Listing:
    made = _Sequencing(listing.plan, "step")
    made.handovers = list(own)
    for run, handover in zip(made.runs, own, strict=True):
        run.handover = handover
    return replace(listing, entries={"step": made.listing()})


def wrong_handovers(case: Case, kind: str) -> list[Listing]:
    plan, nests = case.listing.plan, case.own.nests
    right = handovers(plan, "step", nests)
    found = []
    first_of = {i: suite[0] for suite in suites_of(nests) for i in suite}
    for i, own in enumerate(right):
        reads = tuple(operand.name for operand in nests[i].nest.reads)
        wrong = None
        # What comes together with others may be late for its place in the queue alone: then early does no harm.
        before = [one.value for listed in nests[max(first_of[i] - 2, 0) : first_of[i]] for one in listed.nest.results]
        is_due = first_of[i] in (0, i) or any(
            one.value in before for one in nests[i].nest.reads if one.name not in (*own.early, *own.taken)
        )
        if kind == "an operand requested before it is written" and i and is_due and set(own.early) != set(reads):
            wrong = replace(own, early=tuple(name for name in reads if name not in own.taken))
        elif kind == "results not waited for" and own.drains:
            wrong = replace(own, drains=False)
        elif kind == "results on their way when L3 takes them" and not own.leaves:
            wrong = replace(own, leaves=True)
        elif kind == "taken from elsewhere" and own.taken:
            wrong = replace(own, taken={name: at + 8 for name, at in own.taken.items()})
        elif kind == "taken from where it was never made" and own.at_once and own.early:
            place = nests[i - 1].place
            assert place is not None
            wrong = replace(own, early=own.early[1:], taken={**own.taken, own.early[0]: place.slots_offset})
        elif kind == "what is on its way not waited for" and own.settles:
            wrong = replace(own, settles=False)
        if wrong is not None and wrong != own:
            found.append(with_handovers(case.listing, [*right[:i], wrong, *right[i + 1 :]]))
    return found


@cache
def handed_over() -> Case:
    options = ScheduleOptions(buffering="double", home="L3")
    return Case("attention", compiled_for("attention", siracusa(16 * KIB), options).listing, "step", Needs())


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("an operand requested before it is written", 0.9),
        ("results not waited for", 0.9),
        ("results on their way when L3 takes them", 0.9),
        ("taken from elsewhere", 1.0),
        ("taken from where it was never made", 0.9),  # there may be the same tensor
    ],
)
def test_wrong_handovers_are_found(kind: str, share: float) -> None:
    """Not all changes do harm: the stage decides by the whole of what may be under way, the replay sees what is."""
    case = handed_over()
    right = handovers(case.listing.plan, "step", case.own.nests)
    assert with_handovers(case.listing, right).entries["step"] == case.own
    tried = wrong_handovers(case, kind)
    assert len(tried) >= 2
    tried = tried[:: -(-len(tried) // 12)]
    caught = 0
    for listing in tried:
        try:
            replay(listing)
        except ListingError as error:
            assert error.node is not None
            caught += 1
    assert caught >= share * len(tried), f"{caught} of {len(tried)}"


@pytest.mark.parametrize("kind", ["a table over the table in use", "slots over slots in use", "beyond the scratchpad"])
def test_wrong_places_are_found(kind: str) -> None:
    """Handed over as if nothing had changed. Slots over those of the nest before do harm where operands come early."""
    case = handed_over()
    plan, entry = case.listing.plan, case.listing.plan.entries["step"]
    right = handovers(plan, "step", case.own.nests)
    chosen = [i for i in range(1, len(right)) if right[i].early or kind != "slots over slots in use"]
    for i in chosen[:6]:
        place, before = entry.places[i], entry.places[i - 1]
        changed = {
            "a table over the table in use": replace(place, table_offset=before.table_offset),
            "slots over slots in use": replace(place, slots_offset=before.slots_offset),
            "beyond the scratchpad": replace(place, table_offset=plan.memory["L1"].used_bytes),
        }[kind]
        places = (*entry.places[:i], changed, *entry.places[i + 1 :])
        moved = replace(plan, entries={**plan.entries, "step": replace(entry, places=places)})
        with pytest.raises(ListingError) as caught:
            replay(with_handovers(replace(case.listing, plan=moved), right))
        assert caught.value.node is not None
    assert len(chosen) >= 6


# Nests made up for it.


def refused(toy: Toy, text: str, events: Sequence[Event] | None = None) -> ListingError:
    listing = toy.listing()
    if events is not None:
        listing = with_events(listing, events)
    with pytest.raises(ListingError, match=text) as caught:
        replay(listing)
    return caught.value


SUM = sum_nest()
SUM_TILING = Tiling(
    (Loop("m", 6, 3), Loop("k", 8, 4)), {"x": Slot(0, 48, 2), "y": Slot(96, 16, 2)}, True, 128, NO_ESTIMATE
)


def test_a_sum_cut_both_ways_is_right() -> None:
    listing = replay(Toy([(SUM, SUM_TILING)]).listing())
    assert sum(isinstance(event, Begin) for event in listing.entries[ENTRY].events) == 4


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("is brought to where something else is on its way", {"slots": {"x": Slot(0, 48, 2), "y": Slot(88, 16, 2)}}),
        ("where no kernel finds it", {"slots": {"x": Slot(0, 48, 2), "y": Slot(100, 16, 1)}, "scratch_bytes": 136}),
        ("is still being read|overwritten", {"slots": {"x": Slot(0, 40, 2), "y": Slot(96, 16, 2)}}),
        ("the result 'y' leaves before its last reduction tile", {"loops": (Loop("k", 8, 4), Loop("m", 6, 3))}),
        # Two slots are promised, one is there: the next tile's load goes where the kernel reads.
        ("is still being read", {"slots": {"x": Slot(0, 48, 1), "y": Slot(96, 16, 2)}}),
        ("the tiles are not the whole nest", {"loops": (Loop("m", 5, 3), Loop("k", 8, 4))}),
        ("the range of axis 'm' cannot be", {"loops": (Loop("m", 7, 3), Loop("k", 8, 4))}),
    ],
)
def test_wrong_tilings_are_found(text: str, changes: dict[str, object]) -> None:
    error = refused(Toy([(SUM, replace(SUM_TILING, **changes))]), text)  # type: ignore[arg-type]
    assert error.node == "/n0"


def test_slots_stay_in_the_scratchpad() -> None:
    toy = Toy([(SUM, SUM_TILING)])
    listing = toy.listing()
    used = listing.plan.memory["L1"]
    memory = {**listing.plan.memory, "L1": replace(used, used_bytes=used.used_bytes - 8)}
    with pytest.raises(ListingError, match="'y' lies beyond L1"):
        replay(replace(listing, plan=replace(listing.plan, memory=memory)))


def test_an_inner_axis_is_never_cut() -> None:
    nest = replace(SUM, axes=(Axis("m", 6), Axis("k", 8, AxisKind.INNER)))
    refused(Toy([(nest, SUM_TILING)]), "the range of axis 'k' cannot be")


def test_two_reduction_axes_keep_the_order_of_the_sum() -> None:
    """Cutting the inner one is right only if the outer one advances by single steps."""
    nest = Nest(
        "sum",
        (Axis("j", 4, AxisKind.REDUCTION), Axis("k", 6, AxisKind.REDUCTION)),
        (
            Operand("x", "X", Access.READ, (4, 6), (along("j"), along("k"))),
            Operand("y", "Y", Access.WRITE, (1,), (Index(),)),
        ),
    )
    replay(Toy([(nest, tiling_of(nest, {"j": 1, "k": 3}))]).listing())
    wrong = Toy([(nest, tiling_of(nest, {"j": 2, "k": 3}))])
    refused(wrong, "the reduction's tiles of 'y' are out of order .begin nest 0 tile 1")


def test_long_transfers_are_found() -> None:
    listing = replay(Toy([(SUM, SUM_TILING)]).listing())
    target = chip({"longest_bytes": 24})
    short = replace(listing.plan, schedule=replace(listing.plan.schedule, target=target))
    with pytest.raises(ListingError, match="a transfer of 48 bytes, the engine takes 24"):
        replay(replace(listing, plan=short))
    calls = [event for event in listing.entries[ENTRY].events if not isinstance(event, Fetch | Wait | Enter)]
    loads = [event for event in calls if isinstance(event, Load)]
    only = [Enter(0), *loads[:1], *[e for e in listing.entries[ENTRY].events if isinstance(e, Wait)][:1]]
    with pytest.raises(ListingError, match="a transfer of 48 bytes, the engine takes 24"):
        replay(with_events(replace(listing, plan=short), only))


def test_more_transfers_than_counters_are_found() -> None:
    """Seventeen loads, each with a place and a number of its own, none waited for."""
    nest = copy_nest(2)
    listing = Toy([(nest, tiling_of(nest, {}))]).listing()
    used = listing.plan.memory["L1"].used_bytes
    memory = {**listing.plan.memory, "L1": replace(listing.plan.memory["L1"], used_bytes=used + 8 * 17)}
    events = listing.entries[ENTRY].events
    at = next(i for i, event in enumerate(events) if isinstance(event, Load))
    load = events[at]
    assert isinstance(load, Load)
    for count in (MOST_TRANSFERS - 1, MOST_TRANSFERS):
        more = [replace(load, transfer=100 + k, near=used + 8 * k) for k in range(count)]
        waits = [Wait(load.queue, one.transfer, 0) for one in more]
        faulty = edited(events, {at: (load, *more, *waits)})
        wrong = with_events(replace(listing, plan=replace(listing.plan, memory=memory)), faulty)
        if count < MOST_TRANSFERS:
            replay(wrong)
            continue
        with pytest.raises(ListingError, match=f"more than {MOST_TRANSFERS} transfers are under way .*load 'x'"):
            replay(wrong)


@pytest.mark.parametrize("depth", [1, 3])
def test_more_moves_than_the_queue_takes_are_found(depth: int) -> None:
    """X moves to as many places in L3 as the queue takes, and to one more; in another way each is waited for first."""
    listing = Toy([(copy_nest(4), None)], chip(None, {"queue_depth": depth}), l3_bytes=16 * (depth + 1)).listing()
    events = listing.entries[ENTRY].events
    moves = [Move(FAR, k, "X", 0, 16 * k, 16, inward=False) for k in range(depth + 1)]
    waits = [Wait(FAR, k, 0) for k in range(depth + 1)]
    room = with_events(listing, edited(events, {0: (events[0], *moves[:-1], waits[0], moves[-1], *waits[1:])}))
    replay(room)
    wrong = with_events(listing, edited(events, {0: (events[0], *moves, *waits)}))
    with pytest.raises(ListingError) as caught:
        replay(wrong)
    text = f"more than {depth} moves between L3 and L2 are under way"
    assert text in caught.value.message and describe(moves[-1]) in caught.value.message


@pytest.mark.parametrize(
    ("is_part", "rows", "l2_offset", "l3_offset", "size_bytes", "text"),
    [
        (False, 1, 8, 16, 8, None),
        (False, 1, 4, 16, 8, "is not aligned"),
        (False, 1, 8, 20, 8, "is not aligned"),
        (True, 1, 4, 20, 8, None),  # a part of a tensor may begin at any of its words
        (True, 2, 4, 20, 8, None),
        (True, 2, 4, 18, 8, "is no whole words"),
        (True, 2, 4, 20, 12, "is no whole words"),  # rows of 6 bytes
        (False, 1, 8, 40, 8, None),
        (False, 1, 8, 48, 8, "lies beyond its region"),
        (False, 1, 24, 16, 16, "lies beyond its region"),
    ],
)
def test_moves_are_aligned(
    is_part: bool, rows: int, l2_offset: int, l3_offset: int, size_bytes: int, text: str | None
) -> None:
    """X and Y are 32 bytes of L2, and L3 has 48; both are aligned to eight."""
    listing = Toy([(copy_nest(4), None)], l3_bytes=48).listing()
    own = replace(listing.plan.entries[ENTRY], parts={"X": "W"} if is_part else {})
    listing = replace(listing, plan=replace(listing.plan, entries={ENTRY: own}))
    move = Move(FAR, 0, "X", l2_offset, l3_offset, size_bytes, False, rows, size_bytes)
    events = listing.entries[ENTRY].events
    moved = with_events(listing, (move, Wait(FAR, 0, 0), *events))
    if text is None:
        replay(moved)
        return
    with pytest.raises(ListingError, match=f"'X' {text}.* .move 'X'"):
        replay(moved)


def test_listings_wait_where_the_queue_is_full() -> None:
    """Two moves that nobody waits for yet are under way when a third could be: the first is waited for before it, and
    for that one only."""
    events = case_of("attention, double buffered, from L3").events
    under_way: list[int] = []
    made_room = 0
    for before, event in pairwise(events):
        if isinstance(event, Move):
            under_way.append(event.transfer)
            made_room += isinstance(before, Wait) and before.queue == FAR
        elif isinstance(event, Wait) and event.queue == FAR:
            under_way.remove(event.transfer)
        assert len(under_way) <= L3_QUEUE
    assert made_room and not under_way


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("reach", [-5, -1, 0, 1])
def test_in_place_needs_boxes_that_stay_apart(is_double: bool, reach: int) -> None:
    """y[m] = x[m + reach] may be in place if nothing is read where it was written, or is being written."""
    nest = copy_nest(12, reach=reach)
    toy = Toy([(nest, tiling_of(nest, {"m": 4}, is_double))], overlaps=is_double)
    replay(toy.listing())
    shared = replace(toy, at={"X": 0, "Y": 0})
    # Looking back, a tile reads what an earlier one wrote. With two slots, results leave when the next tile has come.
    if reach >= (-4 if is_double else 0):
        replay(shared.listing())
    else:
        refused(shared, "'x' finds 'Y' where 'X' should be|'x' reads 'X' before it has arrived")


def test_whole_calls_work_in_place_only_where_their_operator_may() -> None:
    nest = copy_nest(12)
    same = replace(Toy([(nest, None)], overlaps=False), at={"X": 0, "Y": 0})
    replay(same.listing())  # the toy's operator is Relu, which may
    refused(replace(same, at={"X": 0, "Y": 8}), "'y' overlaps 'x', which may not be in place")


@pytest.mark.parametrize(
    ("inward", "value", "text"),
    [
        (True, "X", "is brought to what is still being read"),
        (True, "Y", "is brought to where something else is on its way"),
        (False, "Y", "moves before it has arrived"),
        (False, "X", None),  # both read it
    ],
)
def test_whole_calls_are_not_disturbed(inward: bool, value: str, text: str | None) -> None:
    """By what moves while a kernel works where its operands live."""
    toy = Toy([(copy_nest(4), None)], l3_bytes=16)
    events = toy.listing().entries[ENTRY].events
    move = Move(FAR, 0, value, toy.offsets()[value], 0, 16, inward)
    for waited in ((move, Wait(FAR, 0, 0), events[2]), (move, events[2], Wait(FAR, 0, 0))):
        during = edited(events, {2: waited})
        if text is not None:
            assert refused(toy, text, during).node == "/n0"
        else:
            replay(with_events(toy.listing(), during))


def test_a_memory_ends_with_its_last_byte() -> None:
    """Two rows of 4 bytes, 4 apart, are 8: the last ones of 16 begin at 8."""
    memory = Memory(16, 1)
    for start, is_inside in ((-1, False), (0, True), (8, True), (9, False)):
        assert (memory.views(start, (2, 4), (4, 1)) is not None) == is_inside
        assert (memory.span(start, 8) is not None) == is_inside


def test_one_thing_at_a_time() -> None:
    toy = Toy([(copy_nest(4), tiling_of(copy_nest(4), {})), (copy_nest(4, "Y", "Z"), tiling_of(copy_nest(4), {}))])
    events = list(toy.listing().entries[ENTRY].events)
    begun = [i for i, event in enumerate(events) if isinstance(event, Begin)]
    over = [i for i, event in enumerate(events) if isinstance(event, End)]
    entered = [i for i, event in enumerate(events) if isinstance(event, Enter)]
    replay(toy.listing())
    refused(toy, "begins before the end of: begin nest 0 tile 0", edited(events, {over[0]: ()}))
    refused(toy, "the result 'y' is not there when it leaves", edited(events, {over[1]: ()}))
    refused(toy, "ends, but it did not begin", edited(events, {begun[0]: ()}))
    refused(toy, "ends, but it did not begin", edited(events, {over[0]: (replace(events[over[0]], tile=1),)}))  # type: ignore[call-arg]
    refused(toy, "nest 1 computes in the turn of nest 0", edited(events, {entered[1]: ()}))
    refused(toy, "nest 1 follows nest -1", edited(events, {entered[0]: (Enter(1),)}))
    whole = Toy([(copy_nest(4), None)])
    refused(whole, "never ended: begin nest 0 tile 0", whole.listing().entries[ENTRY].events[:-1])
    refused(toy, "nest 0 follows nest 0", edited(events, {entered[0]: (Enter(0), Enter(0))}))


def test_operands_are_those_of_the_nest() -> None:
    toy = Toy([(copy_nest(4), tiling_of(copy_nest(4), {}))])
    events = toy.listing().entries[ENTRY].events
    at = next(i for i, event in enumerate(events) if isinstance(event, Load))
    load = events[at]
    assert isinstance(load, Load)
    for changed, text in (
        (replace(load, operand="z"), "there is no operand 'z'"),
        (replace(load, operand="y"), "'y' goes the wrong way"),
        (replace(load, nest=7), "there is no nest 7"),
        (replace(load, region="l4"), "is at arena"),
        (replace(load, box=(Range(0, 5),)), r"the box \[0:5\] passes the tensor's end"),
        (replace(load, far=load.far + 4), r"\[0:4\] of 'x' is at arena\+0, not at arena\+4"),
    ):
        refused(toy, text, edited(events, {at: (changed,)}))


def test_messages_say_what_happened() -> None:
    case = case_of("odd_cnn, double buffered")
    for event in case.events:
        text = describe(event)
        assert text == text.strip() and re.match(r"(fetch|load|store|move|wait|enter|begin|end) ", text)
    assert len(FAULTS) == len({fault.__name__ for fault in FAULTS}) > 24
