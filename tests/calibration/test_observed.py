"""What is read out of a trace, on traces written by hand, and what is fitted to it."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from unittest import mock

import pytest

from tests.sequence.toy import ENTRY, begin, by_hand, end, fetch, load, move, store, wait, wait_far
from tilegrad.calibration import chip
from tilegrad.calibration.aligned import align_trace
from tilegrad.calibration.chip import (
    Between,
    KernelCall,
    Samples,
    fit_conduct,
    fit_kernel,
    fit_pair,
    fit_walks,
    walk,
)
from tilegrad.calibration.observed import parse_trace
from tilegrad.calibration.transfers import Moved, fit_moved
from tilegrad.costs.conduct import DISPLACING_CYCLES, Act, CodeCache
from tilegrad.costs.measured import KernelScale, Measured, as_json, from_json
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Enter, Event

# The ninth core conducts: work is dispatched at 140, cores come to the barrier at 230 and 240, the conductor at 200.
DISPATCHED = """\
B 100 8 0 step
d 110 8 40 1
w 115 8 0 0
D 125 8 1 0
W 128 8 0 0
E 130 8 0 a nest
f 140 8 255 0
d 150 8 16 1
D 170 8 1 0
j 200 8 0 0
b 230 3 0 0
b 240 5 0 0
p 240 -1 0 0
w 250 8 0 0
W 256 8 0 0
d 260 8 16 0
D 290 8 0 0
X 300 8 0 step
"""
EVENTS: list[Event] = [fetch(0, 0, 40), wait(0), Enter(0), begin(), load(1, 16), end(), wait(1), store(2, 16)]


def test_a_trace_beside_its_listing() -> None:
    ((name, events),) = parse_trace(DISPATCHED.splitlines())
    assert name == "step" and (events[0].cycle, events[-1].cycle) == (100, 300)
    happened = align_trace(by_hand(EVENTS).entries[ENTRY], events)
    assert [(one.came, one.went) for one in happened] == [
        (110, 110), (115, 128), (130, 130), (140, 140), (150, 150), (200, 240), (250, 256), (260, 260),
    ]  # fmt: skip
    assert [one.act for one in happened][:4] == [Act.FETCH, Act.WAIT_TABLE, Act.ENTER, Act.BEGIN_FIRST]
    assert happened[5].computed == 240
    assert (happened[1].arrived, happened[6].arrived) == (125, 170)


def test_rows_of_a_move_are_one_event() -> None:
    """The driver starts a transfer for each; the conductor goes on behind the last."""
    lines = "B 100 8 0 step|s 110 8 0 0|S 120 8 0 0|s 130 8 0 0|S 145 8 0 0|l 150 8 0 0|L 160 8 0 0|E 165 8 0 a"
    ((_, events),) = parse_trace([*lines.split("|"), "X 170 8 0 step"])
    moved = replace(move(0, 16), rows=2, l3_stride=64)
    happened = align_trace(by_hand([moved, wait_far(0), Enter(0)]).entries[ENTRY], events)
    assert [(one.came, one.went) for one in happened] == [(110, 145), (150, 160), (165, 165)]


def test_a_trace_of_something_else_is_refused() -> None:
    ((_, events),) = parse_trace(DISPATCHED.splitlines())
    with pytest.raises(InternalError, match="the trace ends"):
        align_trace(by_hand([*EVENTS, load(3, 8)]).entries[ENTRY], events)


def test_acts_take_what_they_took() -> None:
    ((_, events),) = parse_trace(DISPATCHED.splitlines())
    listing = by_hand(EVENTS)
    samples = Samples()
    happened = align_trace(listing.entries[ENTRY], events)
    target = listing.plan.schedule.target
    known = {"counted.return_value.cycles": 90.0, "measured_as.return_value": "a kernel"}
    with mock.patch.object(chip, "KernelCosts", lambda target: mock.Mock(**known)):
        samples.walks.append(list(walk(target, listing.entries[ENTRY], happened, 100, 300)))
    found = fit_conduct(samples, fit_walks(samples.walks)[2])

    def took(before: Act, act: Act) -> float:
        return found.cycles((before, act), gone=1.0)

    # Starting a transfer costs 5 cycles on the toy chip, which are not the conductor's.
    assert took(Act.START, Act.FETCH) == pytest.approx(110 - 100 - 5, abs=0.2)
    assert took(Act.ENTER, Act.BEGIN_FIRST) == pytest.approx(10, abs=0.4)
    assert took(Act.END, Act.WAIT_LOAD) == pytest.approx(250 - 240, abs=0.4)
    # Behind a wait it counts from where the transfer was done, at 125, or from where the conductor came, at 250.
    assert took(Act.WAIT_TABLE, Act.ENTER) == pytest.approx(130 - 125, abs=0.4)
    assert took(Act.WAIT_LOAD, Act.STORE) == pytest.approx(260 - 250 - 5, abs=0.4)
    assert took(Act.STORE, Act.STOP) == pytest.approx(40, abs=1)
    between = {one.pair: one for one in samples.walks[0] if isinstance(one, Between)}
    beside = {pair for pair, one in between.items() if one.is_beside}
    assert beside == {(Act.BEGIN_FIRST, Act.FIRST_LOAD), (Act.FIRST_LOAD, Act.END)}
    assert between[Act.FETCH, Act.WAIT_TABLE].transfer_cycles == 125 - 110
    (call,) = (one for one in samples.walks[0] if isinstance(one, KernelCall))
    assert (call.counted, call.cycles) == (90.0, 240 - 140)


def test_what_is_in_the_way_is_told_apart() -> None:
    """30 cycles alone, 20 more with all code gone, 40 beside cores, 80 behind 300 cycles of a transfer."""
    pair = Act.STORE, Act.FETCH
    values = [
        (Between(pair, 30 + 20 * gone + 40 * beside + 80 * min(max(left, 0), 300) / 300, 1.0, beside, left), gone)
        for gone in (0.0, 0.3, 1.0)
        for beside in (False, True)
        for left in (-50.0, 0.0, 150.0, 900.0)
        for _ in range(5)
    ]
    assert fit_pair(values) == pytest.approx((30, 20, 40, 80), abs=1.5)


def test_what_transfers_lose_is_told_apart() -> None:
    """Inward 6 % of their time for each access in a cycle, and 5 % beside one that leaves; outward 4 % and 20 %."""
    found = [
        Moved(inward, cycles - lost[0] * rate * cycles - lost[1] * both * cycles, cycles, rate * cycles, both * cycles)
        for inward, lost in ((True, (0.06, 0.05)), (False, (0.04, 0.2)))
        for cycles in (300.0, 1000.0, 4000.0)
        for rate in (0.0, 1.0, 4.0)
        for both in (0.0, 0.5, 1.0)
    ]
    crowded, opposed = fit_moved(found)
    assert crowded == pytest.approx((0.06, 0.04), abs=1e-3) and opposed == pytest.approx((0.05, 0.2), abs=1e-3)
    assert fit_moved([]) == ((0.0, 0.0), (0.0, 0.0))


def test_code_is_displaced_by_what_others_fetch() -> None:
    cache = CodeCache()
    assert cache.run("a", 100) == 1.0 and cache.run("a", 100) == 0.0
    assert cache.run("b", DISPLACING_CYCLES) == 1.0
    assert cache.run("a", 100) == pytest.approx(1 - exp(-1)) and cache.run("b") < 0.1


def test_a_kernel_is_fitted() -> None:
    """Calls that take 1.1 times their counts, 50 for the call and 300 more behind another kernel."""
    counts = (500.0, 1000.0, 2000.0, 4000.0, 8000.0) * 4
    calls = [
        (KernelCall("k", "L1", count, round(1.1 * count + 50 + 300 * (i % 3 == 0)), 1.0), float(i % 3 == 0))
        for i, count in enumerate(counts)
    ]
    found = fit_kernel(calls, KernelScale(1.0, 0.0, 0.0), prior=0.0)
    assert found.factor == pytest.approx(1.1, rel=0.01)
    assert found.call == pytest.approx(50, abs=5) and found.cold == pytest.approx(300, abs=5)
    off = [(KernelCall("k", "L1", count, round(0.9 * count + 3000), 1.0), 0.0) for count in counts]
    assert fit_kernel(off, KernelScale(1.0, 0.0, 0.0)).call == chip.MOST_CALL_CYCLES
    kernels, others, pairs = fit_walks([[call for call, _ in calls]])
    assert set(kernels) == {("k", "L1")} and others["L1"].calls == 0 and not pairs
    measured = Measured("here", kernels, others, fit_conduct(Samples(), pairs))
    assert from_json(as_json(measured)) == measured
    assert measured.scale("another", "L1") == others["L1"]
