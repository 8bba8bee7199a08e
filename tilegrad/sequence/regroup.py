"""Which nests come to scratchpad together, tried on the clock.

A rule says which do (place/suites.py), from what two neighbours compute and bring. What it does not see is that a suite
with more operands than the engine's queue takes keeps its first nest waiting, or that what has no room beside one suite
has it beside half of it. So where cores wait for a nest, it joins the suite before or leaves it, and its own suite is
cut in two, if that is faster. What happens farther away is nearly the same: only suites around it are listed and timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tilegrad.costs.kernel_cost import kernel_costs
from tilegrad.ir.listing import Begin, End
from tilegrad.ir.plan import Plan
from tilegrad.place.scratch import place_nests, tiled_nests
from tilegrad.place.suites import Suites
from tilegrad.sequence.sequence import unproved
from tilegrad.sequence.timing import EntryTiming, time_listing

ENTRY = "step"
# Entries with more nests take long to plan as it is, and wait for a small part of their time: trying all of
# autoencoder, dscnn, resnet8 and mobilenetv1 gained 0.1 to 0.5 % of their cycles for seconds of planning.
MOST_NESTS = 32
# The waits that are looked at, and their least cycles.
MOST_WAITS, LEAST_WAIT_CYCLES = 8, 600.0
# How many suites are timed on each side of one that changes (with one, what was found was slower as a whole), and what
# a change must gain.
AROUND, LEAST_GAIN_CYCLES = 2, 20.0


def regrouped(plan: Plan) -> Plan:
    """The plan with a step's suites as they are best, where nests are few and one conductor runs them all."""
    schedule = plan.schedule
    if not schedule.overlaps or schedule.target.clusters > 1 or schedule.target.compute_engines:
        return plan
    before = [place.suite_index > 0 for place in plan.entries[ENTRY].places] if ENTRY in plan.entries else []
    if not 1 < len(before) <= MOST_NESTS:
        return plan
    found = _Regrouping(plan).joined(before)
    return plan if found == before else place_nests(plan, {ENTRY: found})


class _Regrouping:
    """Of each nest, whether it comes together with the one before it, is `joined` throughout."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.costs = kernel_costs(plan.schedule.target)
        self.nests = tiled_nests(plan, ENTRY)
        self.suites = Suites(plan, ENTRY, self.costs)
        self.known: dict[tuple[range, tuple[bool, ...]], float] = {}

    def joined(self, before: list[bool]) -> list[bool]:
        timing, joined = self._timing(self.plan), before
        for nest in _waited_for(timing):
            suite = _suite_of(nest, joined)
            for number in dict.fromkeys((nest, suite[len(suite) // 2])):
                joined = self._better(joined, number)
        return joined if joined == before or self._timing(self._placed(joined)).cycles < timing.cycles else before

    def _better(self, joined: list[bool], number: int) -> list[bool]:
        """With one nest joined that was not, or the other way round, where that is possible and faster."""
        other = [*joined[:number], not joined[number], *joined[number + 1 :]]
        together = _suite_of(number, other)
        suite = self.nests[together.start : together.stop]
        if len(suite) > 1 and not self.suites.may_come_together(suite):
            return joined
        around = self._around(number, joined)
        gain_cycles = self._cycles(around, joined) - self._cycles(around, other)
        return other if gain_cycles > LEAST_GAIN_CYCLES else joined

    def _around(self, number: int, joined: Sequence[bool]) -> range:
        """The nests that are timed where one changes: suites, and whole launches."""
        first, last = number - 1, number
        for _ in range(AROUND):
            first = max(_suite_of(first, joined).start - 1, 0)
            last = min(_suite_of(last, joined).stop, len(joined) - 1)
        first, last = _suite_of(first, joined).start, _suite_of(last, joined)[-1]
        launches = [one.launch for one in self.nests]
        return range(launches.index(launches[first]), len(launches) - launches[::-1].index(launches[last]))

    def _cycles(self, around: range, joined: Sequence[bool]) -> float:
        """Of these nests alone."""
        own = tuple(joined[around.start : around.stop])
        if (around, own) not in self.known:
            part = self._part(self.nests[around[0]].launch, self.nests[around[-1]].launch)
            self.known[around, own] = self._timing(place_nests(part, {ENTRY: (False, *own[1:])})).cycles
        return self.known[around, own]

    def _placed(self, joined: Sequence[bool]) -> Plan:
        return place_nests(self.plan, {ENTRY: joined})

    def _timing(self, plan: Plan) -> EntryTiming:
        return time_listing(unproved(plan, [ENTRY]), self.costs)[ENTRY]

    def _part(self, first: int, last: int) -> Plan:
        """The plan of some launches. What later ones read leaves scratchpad."""
        entry, own = self.plan.schedule.entries[ENTRY], self.plan.entries[ENTRY]
        behind = [nest for launch in entry.launches[last + 1 :] for nest in launch.nests]
        read = (operand.value for nest in behind for operand in nest.reads if operand.value is not None)
        launches = tuple(
            launch if first <= i <= last else replace(launch, nests=(), tilings=())
            for i, launch in enumerate(entry.launches)
        )
        graph = replace(entry.graph, outputs=(*entry.graph.outputs, *read))
        staging = tuple(move for move in own.staging if first <= move.start and move.wait <= last)
        schedule = replace(self.plan.schedule, entries={ENTRY: replace(entry, graph=graph, launches=launches)})
        return replace(self.plan, schedule=schedule, entries={ENTRY: replace(own, staging=staging)})


def _waited_for(timing: EntryTiming) -> list[int]:
    """Nests that cores wait for longest, in order: what has room beside a nest depends on those before it."""
    began = {one.event.nest: one.start for one in reversed(timing.events) if isinstance(one.event, Begin)}
    ended = {one.event.nest: one.end for one in timing.events if isinstance(one.event, End)}
    waits = {nest: began[nest] - ended[before] for before, nest in pairwise(sorted(began))}
    longest = sorted(waits, key=lambda nest: -waits[nest])[:MOST_WAITS]
    return sorted(nest for nest in longest if waits[nest] >= LEAST_WAIT_CYCLES)


def _suite_of(nest: int, joined: Sequence[bool]) -> range:
    """The nests that come together with one."""
    first = next(i for i in range(nest, -1, -1) if not joined[i])
    return range(first, next((i for i in range(nest + 1, len(joined)) if not joined[i]), len(joined)))
