"""What is read out of a trace, on traces written by hand, and what is fitted to it."""

from __future__ import annotations

import pytest

from tests.sequence.toy import ENTRY, begin, by_hand, end, fetch, load, store, wait
from tilegrad.calibration.aligned import align_trace
from tilegrad.calibration.chip import KernelCall, Samples, fit_conduct, fit_kernel, fit_kernels
from tilegrad.calibration.observed import parse_trace
from tilegrad.costs.conduct import Act
from tilegrad.costs.measured import KernelScale, Measured, as_json, from_json
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Enter

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
EVENTS = [fetch(0, 0, 40), wait(0), Enter(0), begin(), load(1, 16), end(), wait(1), store(2, 16)]


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


def test_a_trace_of_something_else_is_refused() -> None:
    ((_, events),) = parse_trace(DISPATCHED.splitlines())
    with pytest.raises(InternalError, match="the trace ends"):
        align_trace(by_hand([*EVENTS, load(3, 8)]).entries[ENTRY], events)


def test_acts_take_what_they_took() -> None:
    ((_, events),) = parse_trace(DISPATCHED.splitlines())
    listing = by_hand(EVENTS)
    samples = Samples()
    happened = align_trace(listing.entries[ENTRY], events)
    samples._add_conduct(happened, 100, 300, listing.plan.schedule.target)
    found = fit_conduct(samples)
    # Starting a transfer costs 5 cycles on the toy chip, which are not the conductor's.
    assert found.cycles(Act.START, Act.FETCH) == 110 - 100 - 5
    assert found.cycles(Act.ENTER, Act.BEGIN_FIRST) == 10 and found.cycles(Act.END, Act.WAIT_LOAD) == 250 - 240
    assert found.wakes == {Act.WAIT_TABLE: 3} and found.waits == {Act.WAIT_LOAD: 6}
    assert found.cycles(Act.STORE, Act.STOP) == 40


def test_a_kernel_is_fitted() -> None:
    """Calls that take 1.1 times their counts, 50 for the call and 300 more behind another kernel."""
    counts = (500.0, 1000.0, 2000.0, 4000.0, 8000.0) * 4
    calls = [
        KernelCall("k", "L1", count, round(1.1 * count + 50 + 300 * (i % 3 == 0)), i % 3 == 0, 1.0)
        for i, count in enumerate(counts)
    ]
    found = fit_kernel(calls, KernelScale(1.0, 0.0, 0.0), prior=0.0)
    assert found.factor == pytest.approx(1.1, rel=0.01)
    assert (found.call, found.cold) == (pytest.approx(50, abs=5), pytest.approx(300, abs=5))
    kernels, others = fit_kernels(calls)
    assert set(kernels) == {("k", "L1")} and others["L1"].calls == 0
    measured = Measured("here", kernels, others, fit_conduct(Samples()))
    assert from_json(as_json(measured)) == measured
    assert measured.scale("another", "L1") == others["L1"]
