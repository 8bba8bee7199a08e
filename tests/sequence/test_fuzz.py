"""Random listings are right, and random faults in them are found.

A listing is an entry's. Random chains of nests (random_toys.py) are placed so that neighbours are in each other's way;
random models (random_programs.py) go through every stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

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
BATCHES, TOYS, PROGRAMS = 10, 92, 4  # of each batch of the slow test; a program has two listings at least
LISTINGS = 1000
SEEDED = 4  # faults in each of these, in turn: what is long is to make programs, and to replay them up to a fault

KINDS: tuple[Fault, ...] = (
    faults.dropped_wait, faults.wait_for_the_wrong_transfer, faults.wait_twice, faults.missing_transfer,
    faults.begun_before_it_came, faults.computed_before_it_left, faults.stored_before_it_is_complete,
    faults.tile_left_out, faults.one_element_further, faults.narrow_box, faults.result_leaves_twice,
    faults.operand_from_elsewhere, faults.transfer_used_twice, faults.table_overwritten,
)  # fmt: skip
OF_MOVES: Fault = faults.more_moves_than_the_queue_takes


def in_turn(number: int) -> tuple[Fault, ...]:
    """The kinds for a listing: the next ones after those of the one before."""
    return tuple(KINDS[(number * SEEDED + k) % len(KINDS)] for k in range(SEEDED))


def cases(listing: Listing, name: str) -> Iterator[Case]:
    for entry, own in listing.entries.items():
        if own.nests:
            yield Case(f"{name}, {entry}", listing, entry, Needs())


def seeded(case: Case, seed: int, kinds: Sequence[Fault] = KINDS) -> Counter[str]:
    """One fault of each kind, anywhere, refused with its event named. Moves, which few have, have theirs always."""
    random = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for fault in (*kinds, OF_MOVES):
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
    assert all(found[fault.__name__] >= 3 for fault in (*KINDS, OF_MOVES)), found


@pytest.mark.parametrize("batch", first_always(range(25), 1))
def test_random_models(batch: int) -> None:
    """The stage proves its own."""
    found: Counter[str] = Counter()
    kinds: set[type] = set()
    for seed in range(batch * QUICK_PROGRAMS, (batch + 1) * QUICK_PROGRAMS):
        for case in cases(random_listing(seed), f"model {seed}"):
            found["listings"] += 1
            kinds |= set(map(type, case.events))
            found += seeded(case, seed)
    assert found["listings"] >= 2 * QUICK_PROGRAMS
    if batch == 0:
        assert Move in kinds and all(found[fault.__name__] >= 3 for fault in KINDS), found


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_thousand_listings(batch: int) -> None:
    """A tenth of them; that these are ten is what the parameters say."""
    first = 10_000 + batch * 1000
    count = 0
    found: Counter[str] = Counter()
    chains = (case for seed in range(first, first + TOYS) for case in cases(replay(random_toy(seed)), f"chain {seed}"))
    models = (case for seed in range(first, first + PROGRAMS) for case in cases(random_listing(seed), f"model {seed}"))
    for case in chain(chains, models):
        found += seeded(case, first + count, in_turn(count))
        count += 1
    assert count >= LISTINGS // BATCHES, count
    assert all(found[fault.__name__] > 10 for fault in KINDS), found


def test_seeds_are_what_they_were() -> None:
    """A failure can be looked at again."""
    assert random_toy(7).entries == random_toy(7).entries and random_toy(7).entries != random_toy(8).entries
