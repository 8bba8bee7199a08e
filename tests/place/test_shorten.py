"""Stays that are shortened until they have their places: as long as they must be, apart, and within the room."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tilegrad import frontend
from tilegrad.ir.plan import Buffer
from tilegrad.pipeline import compile_model
from tilegrad.place.allocate import allocate, lower_bound
from tilegrad.place.shorten import Span, shorten
from tilegrad.place.stays import Stay
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.timing import time_listing
from tilegrad.targets.base import L1, L2, get


def instance(seed: int) -> tuple[list[Buffer], dict[str, Span]]:
    """Three hundred stays; some are what their launches need, others begin earlier and end later."""
    draw = random.Random(seed)
    buffers, least = [], {}
    for i in range(300):
        first = draw.randrange(200)
        last = first + draw.randrange(3)
        least[f"b{i}"] = first, last
        more = draw.choice((0, 0, 5, 12))
        buffers.append(
            Buffer(f"b{i}", 8 * draw.randrange(1, 200), max(first - more, 0), last + draw.randrange(more + 1))
        )
    return buffers, least


@pytest.mark.parametrize("seed", range(8))
def test_everything_is_apart_within_the_room(seed: int) -> None:
    buffers, least = instance(seed)
    room = int(0.8 * lower_bound(buffers))
    found = shorten(buffers, least, allocate(buffers).offsets, room)
    assert found is not None
    shortened, offsets = found
    for old, new in zip(buffers, shortened, strict=True):
        assert (new.name, new.size_bytes) == (old.name, old.size_bytes)
        assert old.first <= new.first <= least[new.name][0] <= least[new.name][1] <= new.last <= old.last
        assert 0 <= offsets[new.name] <= room - new.size_bytes
    for a, b in combinations(shortened, 2):
        if a.first <= b.last and b.first <= a.last:
            assert (
                offsets[a.name] + a.size_bytes <= offsets[b.name] or offsets[b.name] + b.size_bytes <= offsets[a.name]
            )
    assert any(old != new for old, new in zip(buffers, shortened, strict=True))
    assert shorten(buffers, least, allocate(buffers).offsets, room) == found


def test_what_is_needed_all_the_time_finds_no_place() -> None:
    buffers = [Buffer("a", 64, 0, 9), Buffer("b", 64, 5, 9)]
    assert shorten(buffers, {}, {"a": 0, "b": 64}, 100) is None


def test_a_store_that_waited_for_the_queue_leaves_before_its_bytes_are_given_away() -> None:
    stay = Stay(first=3, used=5, changed=6, last=12, load=True, store=True, later=4)
    assert stay.within(4, 12) == Stay(4, 5, 6, 12, True, True, 4)
    assert stay.within(5, 8) == Stay(5, 5, 6, 8, True, True, 2)
    assert stay.within(5, 6).leaves == 7


@pytest.mark.slow
def test_the_time_of_a_step_does_not_hang_on_how_well_the_allocator_did() -> None:
    """Where not all stays have their place at once, transfers are nearly as early as if they had: 1.32 times what the
    slower of cores and engine takes alone, and 1.49 if no other moves were tried (sequence/fastest.py)."""
    target = get("siracusa").with_capacity(L1, 64 * 1024).with_capacity(L2, 256 * 1024)
    compiled = compile_model(frontend.load("mobilenetv1"), Recipe(), target, options=ScheduleOptions(home="L3"))
    step = time_listing(compiled.listing)["step"]
    assert step.cycles <= 1.35 * max(step.compute_cycles, step.hops["L3-L2"].busy_cycles)
