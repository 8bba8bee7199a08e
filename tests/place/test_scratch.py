"""Neighbours in scratchpad: what they may do for each other happens, and every fault put into a plan is found."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from tests.schedule.programs import KIB, compiled_for, siracusa
from tilegrad.ir.nest import Access
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.place.validate import PlanError
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.validate_scratch import validate_scratch


@cache
def plan_of(home: str = "L2", buffering: str = "double") -> Plan:
    return compiled_for("attention", siracusa(16 * KIB), ScheduleOptions(buffering=buffering, home=home)).plan


def reads(plan: Plan, place: NestPlace) -> set[str]:
    nest = plan.schedule.entries["step"].launches[place.launch].nests[place.nest]
    return {o.name for o in nest.operands if o.value is not None and o.access is Access.READ}


def test_neighbours_help_each_other() -> None:
    places = plan_of().entries["step"].places
    assert sum(bool(place.early) for place in places) > len(places) // 2
    assert all(place.leaves for place in places)
    assert 0 < sum(place.drains for place in places) < len(places)
    assert 0 < sum(place.at_once for place in places) < len(places)
    assert any(place.taken for place in places) and any(place.settles for place in places)
    assert not any(place.is_fetched_late for place in places)
    for place in places:
        assert not place.at_once or not place.drains
        assert not place.taken or place.at_once


def test_single_buffering_means_no_overlap() -> None:
    for place in plan_of(buffering="single").entries["step"].places:
        assert not place.early and not place.leaves and not place.drains and not place.at_once and not place.taken


def test_what_goes_to_l3_has_arrived_in_l2() -> None:
    places = plan_of("L3").entries["step"].places
    assert any(place.leaves for place in places) and not all(place.leaves for place in places)


def with_place(plan: Plan, number: int, place: NestPlace) -> Plan:
    step = plan.entries["step"]
    places = (*step.places[:number], place, *step.places[number + 1 :])
    return replace(plan, entries={**plan.entries, "step": replace(step, places=places)})


def faults(plan: Plan, kind: str) -> list[tuple[int, NestPlace]]:
    places = plan.entries["step"].places
    found = []
    for i, place in enumerate(places[1:], 1):
        before = places[i - 1]
        if kind == "a table over the table in use":
            found.append((i, replace(place, table_offset=before.table_offset)))
        elif kind == "slots over slots in use" and place.early:
            found.append((i, replace(place, slots_offset=before.slots_offset)))
        elif kind == "beyond the scratchpad":
            found.append((i, replace(place, table_offset=plan.memory["L1"].used_bytes)))
        elif kind == "an operand fetched before it is written" and set(place.early) != reads(plan, place):
            found.append((i, replace(place, early=tuple(reads(plan, place)))))
        elif kind == "results not waited for" and place.drains:
            found.append((i, replace(place, drains=False)))
        elif kind == "results on their way to L3 too early" and not place.leaves:
            found.append((i, replace(place, leaves=True)))
        elif kind == "taken from elsewhere" and place.taken:
            found.append((i, replace(place, taken={name: at + 8 for name, at in place.taken.items()})))
        elif kind == "taken late" and place.taken:
            found.append((i, replace(place, at_once=False)))
        elif kind == "what was never made is taken" and place.early and place.at_once:
            name = place.early[0]
            taken = {**place.taken, name: before.slots_offset}
            found.append((i, replace(place, early=place.early[1:], taken=taken)))
        elif kind == "what is on its way not waited for" and place.settles:
            found.append((i, replace(place, settles=False)))
        elif kind == "at once although it has to wait" and place.drains:
            found.append((i, replace(place, at_once=True, drains=False)))
    return found


@pytest.mark.parametrize(
    ("kind", "home", "share", "text"),
    [
        ("a table over the table in use", "L2", 1.0, "lies where the table of nest|lies beyond L1"),
        ("slots over slots in use", "L2", 0.9, "lies where|lies beyond L1|is not what the nest before leaves"),
        ("beyond the scratchpad", "L2", 1.0, "lies beyond L1"),
        ("an operand fetched before it is written", "L2", 0.9, "was requested before|on its way in L2|lies where"),
        ("results not waited for", "L2", 0.9, "on its way in L2|lies where"),
        ("results on their way to L3 too early", "L3", 0.9, "on its way to or from L3"),
        ("taken from elsewhere", "L2", 1.0, "is not what the nest before leaves where it is taken"),
        ("taken late", "L2", 1.0, "takes what may have gone"),
        ("what was never made is taken", "L2", 1.0, "is not what the nest before leaves where it is taken"),
        ("what is on its way not waited for", "L2", 0.9, "on its way in L2|was requested before|lies where"),
        ("at once although it has to wait", "L2", 1.0, "is requested when it should be there"),
    ],
)
def test_faults_are_found(kind: str, home: str, share: float, text: str) -> None:
    """A few changes do no harm: the planner looks at the whole of what may be under way, the validator at what is."""
    plan = validate_scratch(plan_of(home))
    tried = faults(plan, kind)
    assert len(tried) >= 5
    caught = 0
    for number, place in tried:
        try:
            validate_scratch(with_place(plan, number, place))
        except PlanError as error:
            assert error.node is not None
            assert re.search(text, error.message), error.message
            caught += 1
    assert caught >= share * len(tried), f"{caught} of {len(tried)}"
