"""Suites that were tried on the clock: faster than those of the rule, legal, and never slower."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import tilegrad as tg
from tilegrad.ir.plan import Plan
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.regroup import MOST_NESTS, _Regrouping, _suite_of, regrouped
from tilegrad.sequence.sequence import sequence_plan, unproved
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import L1, get

SIZES_KIB = (32, 128, 240)


def by_the_rule(model: str, kib: int, target: str = "siracusa") -> Plan:
    made = tg.compile(model, target=get(target).with_capacity(L1, kib * 1024), buffering="double")
    return plan_memory(made.plan.schedule, ScheduleOptions().home)


def timing(plan: Plan) -> EntryTiming:
    return time_listing(unproved(plan, ["step"]))["step"]


def joins(plan: Plan) -> list[bool]:
    return [place.suite_index > 0 for place in plan.entries["step"].places]


@pytest.mark.parametrize("model", ["simplemlp", "mlp", "autoencoder_tiny"])
@pytest.mark.parametrize("kib", SIZES_KIB)
def test_no_step_takes_longer(model: str, kib: int) -> None:
    before = by_the_rule(model, kib)
    after = regrouped(before)
    assert timing(after).cycles <= timing(before).cycles
    sequence_plan(after)  # the replay refuses what is not there in time, or has no room


def test_a_suite_that_fills_the_queue_is_cut() -> None:
    """Six layers of autoencoder_tiny bring twelve operands, and the queue takes eight: the first of them waited."""
    before = by_the_rule("autoencoder_tiny", 128)
    after = regrouped(before)
    assert len(_suite_of(1, joins(before))) == 6 and len(_suite_of(1, joins(after))) < 6
    assert timing(after).cycles < 0.97 * timing(before).cycles
    hop = timing(after).hops["L2-L1"]
    assert hop.hidden_cycles >= 0.85 * min(hop.busy_cycles, timing(after).compute_cycles)


def test_what_several_conductors_run_is_left_alone() -> None:
    for target in ("mppa", "npu"):
        plan = tg.compile("simplemlp", target=target).plan
        assert regrouped(plan) is plan


def test_long_entries_and_single_buffers_are_left_alone() -> None:
    single = tg.compile("autoencoder_tiny", target="siracusa", buffering="single").plan
    assert regrouped(single) is single
    long = by_the_rule("dscnn", 128)
    assert len(long.entries["step"].places) > MOST_NESTS and regrouped(long) is long


def test_what_is_slower_as_a_whole_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are timed apart: what they promise is held to the whole entry."""
    before = by_the_rule("autoencoder_tiny", 128)
    found = regrouped(before)
    seen = timing(before)

    def wrong(self: object, plan: Plan) -> EntryTiming:
        whole = sum(bool(launch.nests) for launch in plan.schedule.entries["step"].launches)
        is_whole = whole == sum(bool(launch.nests) for launch in before.schedule.entries["step"].launches)
        return replace(timing(plan), cycles=seen.cycles + 1.0) if is_whole and plan is not before else timing(plan)

    monkeypatch.setattr("tilegrad.sequence.regroup._Regrouping._timing", wrong)
    assert found is not before and regrouped(before) is before


JOINED = [False, True, False, False, True, True, False, True]  # suites of 2, 1, 3 and 2


@pytest.mark.parametrize(
    ("nest", "suite"),
    [(0, range(2)), (1, range(2)), (2, range(2, 3)), (3, range(3, 6)), (5, range(3, 6)), (7, range(6, 8))],
)
def test_suites_are_found(nest: int, suite: range) -> None:
    assert _suite_of(nest, JOINED) == suite


def regrouping(launches: list[int]) -> _Regrouping:
    """Of nests of these launches."""
    made = object.__new__(_Regrouping)
    made.nests = [SimpleNamespace(launch=launch) for launch in launches]  # type: ignore[misc]
    return made


def test_two_suites_on_each_side_are_timed() -> None:
    """Of ten nests, each alone: where number 5 may join number 4, two in front of 4 and two behind 5."""
    alone = [False] * 10
    assert regrouping(list(range(10)))._around(5, alone) == range(2, 8)
    assert regrouping(list(range(10)))._around(1, alone) == range(4)
    assert regrouping(list(range(10)))._around(9, alone) == range(6, 10)
    # Nests 2 and 1, and 7 and 8, are of one launch.
    assert regrouping([0, 1, 1, 2, 3, 4, 5, 6, 6, 7])._around(5, alone) == range(1, 9)
    # Number 2 is behind the suite of 0 and 1 and before those of 3 to 5 and of 6 and 7.
    assert regrouping(list(range(8)))._around(2, JOINED) == range(8)


def test_what_later_launches_read_leaves_a_part() -> None:
    """Each layer of simplemlp reads what the one before made."""
    plan = by_the_rule("simplemlp", 128)
    entry = plan.schedule.entries["step"]
    for last in range(len(entry.launches) - 1):
        outputs = _Regrouping(plan)._part(0, last).schedule.entries["step"].graph.outputs
        behind = {o.value for launch in entry.launches[last + 1 :] for nest in launch.nests for o in nest.reads}
        assert None not in outputs and set(outputs) == {*entry.graph.outputs, *(behind - {None})}
