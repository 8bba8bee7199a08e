"""Away, or made again: what does not stay in L2 goes to L3 and comes back, or is computed again, by the same clock.

One cost model chooses for each activation (fit/recompute.py, as on flat targets): it stays, it is fetched for the
cycles of its transfers, or it is made again for those of its operators. How much of a transfer somebody waits for is
not known before there is a plan, so this is asked for several shares, and the clock of the whole program says which
choice is worth it. Where none is, single gaps that the plan gives up (place/homes.py) are closed if that saves cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from tilegrad.analysis.lifetimes import read_inputs
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import DoesNotFit
from tilegrad.fit.fitted import Fit
from tilegrad.fit.recompute import chain_at, cheapest_play, recomputed
from tilegrad.fit.tape import Facts, Far, Play, Tape, facts_of, graph_of, play, with_far
from tilegrad.ir.graph import Graph
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.place.plan import plan_memory
from tilegrad.place.tensors import launch_lifetimes
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.epilogues import with_epilogues
from tilegrad.sequence.fastest import fastest_schedule
from tilegrad.sequence.regroup import regrouped
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import L2, L3, Target

MOST_ROUNDS, MOST_CUTS = 2, 2
"""Bounds count plans: how often gaps are closed, and how often fewer of them are tried where all were too many."""
LEAST_WAIT = 0.03
"""Of a step's cycles: what waits less for L3 has little to gain, and is left as it is."""
_BUDGET_SHARES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)


@dataclass(frozen=True)
class _Timed:
    program: Program
    plan: Plan
    timing: EntryTiming
    repeated: int = 0

    @property
    def cycles(self) -> float:
        return self.timing.cycles


@dataclass(frozen=True)
class _Closing:
    """A transfer back to L2 that `chain` in front of a node would replace, and the cycles that it may save."""

    at: int
    chain: tuple[int, ...]
    saved_cycles: float


def fitted_levels(program: Program, split: Program, target: Target, options: ScheduleOptions) -> tuple[Program, Fit]:
    """The program with what is cheaper to make again than to fetch; what does not fit into L2 and L3 is made to, of
    the same program `split` (see passes.split_conv_grad)."""
    limit = target.memory(target.home).capacity_bytes or 0
    try:
        first = _timed(program, target, options)
    except DoesNotFit as error:
        first = _made_to_fit(split, target, options, error)
    is_waiting = first.timing.l3_wait_cycles > LEAST_WAIT * first.cycles
    best = min((first, *(_chosen(first, target, options) if is_waiting else ())), key=lambda one: one.cycles)
    for _ in range(MOST_ROUNDS if is_waiting and best is first else 0):
        better = _closed(best, target, options)
        if better is None:
            break
        best = better
    fit = Fit(
        limit,
        first.plan.memory[target.home].used_bytes,
        best.plan.memory[target.home].used_bytes,
        first.plan.schedule.macs("step"),
        best.plan.schedule.macs("step"),
        best.repeated,
        before_cycles=round(first.cycles),
        after_cycles=round(best.cycles),
    )
    return best.program, fit


def _timed(program: Program, target: Target, options: ScheduleOptions, repeated: int = 0) -> _Timed:
    chained = with_epilogues(program, target, options)
    plan = regrouped(plan_memory(fastest_schedule(chained, target, options), options.home))
    return _Timed(program, plan, time_listing(sequence_plan(plan))["step"], repeated)


def _made_to_fit(program: Program, target: Target, options: ScheduleOptions, error: DoesNotFit) -> _Timed:
    """With less alive at once than L2 and L3 have room for."""
    room = sum(target.memory(name).capacity_bytes or 0 for name in (L2, L3) if target.has_memory(name))
    room -= sum(tensor.type.size_bytes for tensor in program.state)
    for share in _BUDGET_SHARES:
        step = recomputed(program.entries["step"], max(int(share * room), 0), target.memory(L2).alignment_bytes)
        try:
            return _timed(program.with_step(step.graph), target, options, step.repeated)
        except DoesNotFit:
            continue
    raise error


def _chosen(first: _Timed, target: Target, options: ScheduleOptions) -> Iterator[_Timed]:
    """What the one cost model chooses for each activation, with transfers that count in part or in full."""
    engine, step = target.far_engine, first.plan.entries["step"]
    room = _room_bytes(first.plan)
    if engine is None or not any(one.inward and one.tensor not in first.plan.state_addresses for one in step.staging):
        return
    facts = facts_of(first.program.entries["step"], target.memory(L2).alignment_bytes, _cycles(first))
    seen = {facts.whole}
    for share in _WAITED_SHARES:
        enqueue = 2.0 * engine.enqueue_cycles
        far = Far(
            lambda size: share * (engine.outward.cycles(size) + enqueue),  # noqa: B023
            lambda size: share * (engine.inward.cycles(size) + enqueue),  # noqa: B023
        )
        tape = tuple(node for node in cheapest_play(with_far(facts, far), room).tape if not facts.is_fetch(node))
        if tape not in seen:
            seen.add(tape)
            with suppress(DoesNotFit):
                changed = first.program.with_step(_step(facts.graph, facts, tape))
                yield _timed(changed, target, options, first.repeated + len(tape) - len(facts.whole))


_WAITED_SHARES = (0.5, 0.25)
"""Of a transfer's cycles: the rest goes on beside computation."""


def _room_bytes(plan: Plan) -> int:
    """What L2 has for activations: all that state does not take that lives there."""
    there = (t for t in plan.schedule.program.state if plan.state_addresses[t.name].memory == L2)
    return (plan.memory[L2].capacity_bytes or 0) - sum(tensor.type.size_bytes for tensor in there)


def _cycles(now: _Timed) -> list[float]:
    """By node of the step, without what it waits for."""
    nodes = now.program.entries["step"].nodes
    found = dict.fromkeys((node.name for node in nodes), 0.0)
    for nest in now.timing.nests:
        found[nest.node] += nest.cycles
    return [found[node.name] for node in nodes]


def _closed(now: _Timed, target: Target, options: ScheduleOptions) -> _Timed | None:
    """With gaps closed that the plan gave up: all that promise something, or the best of them; None: nothing helps."""
    graph = now.program.entries["step"]
    facts = facts_of(graph, target.memory(L2).alignment_bytes, costs=())
    played = play(facts, facts.whole)
    assert played is not None
    found = sorted(_closings(now, facts, played), key=lambda one: (-one.saved_cycles, one.at))
    for _ in range(MOST_CUTS):
        tape = _with(facts, found)
        if not found or play(facts, tape) is None:
            return None
        step = _step(graph, facts, tape)
        try:
            trial = _timed(now.program.with_step(step), target, options, now.repeated + len(tape) - len(facts.whole))
        except DoesNotFit:
            trial = None
        if trial is not None and trial.cycles < now.cycles:
            return trial
        found = found[: len(found) // 3]
    return None


def _step(graph: Graph, facts: Facts, tape: Tape) -> Graph:
    made = graph_of(facts, tape)
    expect_same_results(graph, made)
    return verify_graph(made)


def _with(facts: Facts, closings: list[_Closing]) -> Tape:
    """The tape with each chain in front of its node; what several need there is made once."""
    there: dict[int, set[int]] = {}
    for one in closings:
        there.setdefault(one.at, set()).update(one.chain)
    return tuple(node for at in facts.whole for node in (*sorted(there.get(at, ())), at))


def _closings(now: _Timed, facts: Facts, played: Play) -> Iterator[_Closing]:
    """For each activation that comes back from L3: what would make it again, where that takes fewer cycles."""
    schedule = now.plan.schedule.entries["step"]
    engine = now.plan.schedule.target.far_engine
    if engine is None:
        return
    owner = launch_lifetimes(schedule, facts.alignment_bytes).owner
    place = {node.name: i for i, node in enumerate(facts.graph.nodes)}
    cycles = _cycles(now)
    numbers = {name: v for v, name in enumerate(facts.names)}
    seen: set[tuple[int, int]] = set()
    for one in now.plan.entries["step"].staging:
        if not one.inward or one.wait >= len(schedule.launches):
            continue
        node = schedule.launches[one.wait].node
        at = place[node.name]
        for name in read_inputs(facts.graph, node):
            if owner.get(name) != one.tensor or name not in numbers or (at, numbers[name]) in seen:
                continue
            seen.add((at, numbers[name]))
            chain = chain_at(played, numbers[name], at + 1)
            moved = engine.inward.cycles(one.size_bytes) + engine.outward.cycles(one.size_bytes)
            saved = moved + 4 * engine.enqueue_cycles - sum(cycles[k] for k in chain or ())
            if chain is not None and saved > 0:
                yield _Closing(at, chain, saved)
