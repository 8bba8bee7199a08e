"""Random listings are right, and random faults in them are found.

A listing is an entry's. Random chains of nests (random_toys.py) are placed so that neighbours are in each other's way;
random models (random_programs.py) go through every stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tests.sequence import faults
from tests.sequence.faults import Case, Fault, may_be_left_out
from tests.sequence.random_programs import random_listing
from tests.sequence.random_toys import random_toy
from tests.support.often import first_always
from tilegrad.ir.listing import Begin, Listing, Load, Move, Store, Wait
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
            assert may_be_left_out(case, fault, edit), (case.name, fault.__name__, edit)
            continue
        assert error.node is not None and case.names_event(error, edit), error.message
        found[fault.__name__] += 1
    return found


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
