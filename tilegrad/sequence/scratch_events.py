"""What an entry in tiles does, in order: nests, what they do for each other, and transfers between L2 and L3.

A mirror of the generated code and of runtime/cluster/tg_tile.c. A test proves by a trace that the C does exactly this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilegrad.analysis.lifetimes import temporaries
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.sequence.events import Event, Flow, NestRun
from tilegrad.sequence.plan_events import PlanEvent, RunLaunch, plan_events


@dataclass(frozen=True, slots=True)
class Fetch:
    """The call and the table of a nest are requested."""

    nest: int
    request: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """They are waited for, and read from then on."""

    nest: int
    request: int


@dataclass(frozen=True, slots=True)
class Enter:
    nest: int


@dataclass(frozen=True, slots=True)
class Done:
    """The nest has computed its last tile; its results may still be on their way."""

    nest: int


@dataclass(frozen=True, slots=True)
class OfNest:
    """Something of a nest: maybe before it begins."""

    nest: int
    event: Event


EntryEvent = Fetch | Fetched | Enter | Done | OfNest | PlanEvent


def entry_events(plan: Plan, entry: str) -> Iterator[EntryEvent]:
    """Nests are numbered as in the entry's `places`."""
    return _Walk(plan, entry).run()


class _Walk:
    def __init__(self, plan: Plan, entry: str) -> None:
        self.plan = plan
        self.entry = entry
        self.places = plan.entries[entry].places
        schedule = plan.schedule.entries[entry]
        scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(schedule.graph).items()}
        types = {**scratch, **schedule.graph.types}
        target = plan.schedule.target
        longest_bytes = target.engine(target.home, target.compute).longest_bytes
        self.flow = Flow()
        self.runs: list[NestRun] = []
        for place in self.places:
            launch = schedule.launches[place.launch]
            nest, tiling = launch.nests[place.nest], launch.tilings[place.nest]
            assert tiling is not None
            sizes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
            self.runs.append(NestRun(nest, tiling, sizes, longest_bytes, self.flow))
        self.fetching = 0

    def run(self) -> Iterator[EntryEvent]:
        if self.places:
            yield from self._fetch(0)
            yield from self._fetched(0)
        number = 0
        for event in plan_events(self.plan, self.entry):
            if not isinstance(event, RunLaunch):
                yield event
                continue
            while number < len(self.places) and self.places[number].launch == event.launch:
                yield from self._nest(number)
                number += 1
        for wait in self.flow.settle_stores(0):
            yield OfNest(len(self.places) - 1, wait)

    def _next(self, number: int) -> NestPlace | None:
        return self.places[number + 1] if number + 1 < len(self.places) else None

    def _nest(self, number: int) -> Iterator[EntryEvent]:
        place, following = self.places[number], self._next(number)
        yield Enter(number)
        is_early = following is not None and not following.is_fetched_late
        happens = self.runs[number].run(
            early=(*place.early, *place.taken),
            drains=place.drains,
            leaves=place.leaves,
            hands_over=following is not None and following.at_once,
            in_first=self._in_first(number, is_early),
            in_last=self._ahead(number + 1) if is_early else (),
        )
        for event in happens:
            yield event if isinstance(event, Fetch | Fetched | OfNest) else OfNest(number, event)
        yield Done(number)
        if following is not None and following.is_fetched_late:
            yield from self._fetch(number + 1)
            yield from self._fetched(number + 1)

    def _in_first(self, number: int, is_next_early: bool) -> Iterator[Fetch | OfNest]:
        if self.places[number].at_once:
            for event in self.runs[number - 1].last_stores():
                yield OfNest(number - 1, event)
        if is_next_early:
            yield from self._fetch(number + 1)

    def _ahead(self, number: int) -> Iterator[Fetched | OfNest]:
        yield from self._fetched(number)
        if self.places[number - 1].settles:
            for wait in self.flow.settle_stores(0):
                yield OfNest(number - 1, wait)
        for event in self.runs[number].first_loads(self.places[number].early):
            yield OfNest(number, event)

    def _fetch(self, number: int) -> Iterator[Fetch]:
        self.fetching = self.flow.open()
        yield Fetch(number, self.fetching)

    def _fetched(self, number: int) -> Iterator[Fetched]:
        yield Fetched(number, self.fetching)
