"""The order in which an entry's launches and its transfers between L2 and L3 happen: what a plan means.

The generated code follows it, and the validators replay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilegrad.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class StartMove:
    """Transfer number `move` of the entry's plan starts."""

    move: int


@dataclass(frozen=True, slots=True)
class WaitMove:
    move: int


@dataclass(frozen=True, slots=True)
class RunLaunch:
    launch: int


PlanEvent = StartMove | WaitMove | RunLaunch


def plan_events(plan: Plan, entry: str) -> Iterator[PlanEvent]:
    """What an entry does, in the order of the generated code.

    Launches without nests emit nothing, so what is due before one happens before the next that has some: arrivals from
    earlier, then departures, then what comes in.
    """
    launches = plan.schedule.entries[entry].launches
    moves = list(enumerate(plan.entries[entry].staging))
    passed = -1
    for number in range(len(launches) + 1):
        if number < len(launches) and not launches[number].nests:
            yield RunLaunch(number)
            continue
        yield from (WaitMove(i) for i, move in moves if move.start <= passed < move.wait <= number)
        for inward in (False, True):
            starting = [(i, move) for i, move in moves if passed < move.start <= number and move.inward is inward]
            yield from (StartMove(i) for i, _ in starting)
            yield from (WaitMove(i) for i, move in starting if move.wait <= number)
        if number < len(launches):
            yield RunLaunch(number)
        passed = number
