"""Random listings are right, and random faults in them are found.

A listing is an entry's. Random chains of nests (random_toys.py) are placed so that neighbours are in each other's way;
random models (random_programs.py) go through every stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from tests.sequence import faults
from tests.sequence.faults import Case, Fault
from tests.sequence.random_programs import random_listing
from tests.sequence.random_toys import random_toy
from tests.support.often import first_always
from tilegrad.ir.listing import Begin, Listing, Load, Move, Store, Wait
from tilegrad.ir.nest import Access, Range
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.replay import replay

QUICK_TOYS, QUICK_PROGRAMS = 250, 8
BATCHES, TOYS, PROGRAMS = 10, 50, 25  # of each batch of the slow test; a program has two listings at least
LISTINGS = 1000

KINDS: tuple[Fault, ...] = (
    faults.dropped_wait, faults.wait_for_the_wrong_transfer, faults.wait_twice, faults.missing_transfer,
    faults.begun_before_it_came, faults.computed_before_it_left, faults.stored_before_it_is_complete,
    faults.tile_left_out, faults.one_element_further, faults.narrow_box, faults.result_leaves_twice,
    faults.operand_from_elsewhere, faults.transfer_used_twice, faults.table_overwritten,
)  # fmt: skip


def cases(listing: Listing, name: str) -> Iterator[Case]:
    for entry, own in listing.entries.items():
        if own.nests:
            yield Case(f"{name}, {entry}", listing, entry, Needs())


def seeded(case: Case, seed: int) -> Counter[str]:
    """One fault of each kind, anywhere, refused with its event named."""
    random = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for fault in KINDS:
        edits = list(fault(case))
        if not edits:
            continue
        edit = edits[random.integers(len(edits))]
        error = case.refusal(edit)
        if error is None:
            assert is_already_there(case, fault, edit), (case.name, fault.__name__, edit)
            continue
        assert error.node is not None and case.names_event(error, edit), error.message
        found[fault.__name__] += 1
    return found


def is_already_there(case: Case, fault: Fault, edit: faults.Edit) -> bool:
    """A load that may be left out, or an operand that may be read from elsewhere: the same box of the same value came
    to those bytes before, and nothing has been brought or written there since."""
    (i, (*changed,)), *_ = edit.items()
    event = case.events[i]
    if fault is faults.missing_transfer and isinstance(event, Load):
        size_bytes = sum(part.size_bytes for part in event.parts)
        return has_come(case, i, event.near, size_bytes, event.box, case.operand(event).value)
    if fault is faults.operand_from_elsewhere and isinstance(event, Begin):
        moved = changed[0]
        assert isinstance(moved, Begin)
        operands = case.own.nests[event.nest].nest.operands
        for operand, place, before in zip(operands, moved.places, event.places, strict=True):
            if place is not None and place != before and operand.access is Access.READ:
                size_bytes = operand.element_bytes * prod(r.size for r in place.box)
                return has_come(case, i, place.offset, size_bytes, place.box, operand.value)
    return False


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


@pytest.mark.parametrize("batch", range(5))
def test_random_chains(batch: int) -> None:
    found: Counter[str] = Counter()
    kinds: Counter[type] = Counter()
    count = QUICK_TOYS // 5
    for seed in range(batch * count, (batch + 1) * count):
        listing = replay(random_toy(seed))
        for case in cases(listing, f"chain {seed}"):
            found["listings"] += 1
            kinds.update(map(type, case.events))
            if seed % 3 == 0:
                found += seeded(case, seed)
    assert found["listings"] == count
    assert all(kinds[kind] > count for kind in (Load, Store, Begin, Wait))
    assert all(found[fault.__name__] >= 3 for fault in KINDS), found


def test_random_models() -> None:
    """The stage proves its own."""
    found: Counter[str] = Counter()
    kinds: set[type] = set()
    for seed in range(QUICK_PROGRAMS):
        for case in cases(random_listing(seed), f"model {seed}"):
            found["listings"] += 1
            kinds |= set(map(type, case.events))
            found += seeded(case, seed)
    assert found["listings"] >= 2 * QUICK_PROGRAMS and Move in kinds
    assert all(found[fault.__name__] >= 3 for fault in KINDS), found


@pytest.mark.slow
@pytest.mark.parametrize("batch", first_always(range(BATCHES), 3))
def test_a_thousand_listings(batch: int) -> None:
    """A tenth of them; that these are ten is what the parameters say."""
    first = 10_000 + batch * 1000
    count = 0
    found: Counter[str] = Counter()
    for seed in range(first, first + TOYS):
        count += 1
        for case in cases(replay(random_toy(seed)), f"chain {seed}"):
            found += seeded(case, seed)
    for seed in range(first, first + PROGRAMS):
        for case in cases(random_listing(seed), f"model {seed}"):
            count += 1
            found += seeded(case, seed)
    assert count >= LISTINGS // BATCHES, count
    assert all(found[fault.__name__] >= 30 for fault in KINDS), found


def test_seeds_are_what_they_were() -> None:
    """A failure can be looked at again."""
    assert random_toy(7).entries == random_toy(7).entries and random_toy(7).entries != random_toy(8).entries
