"""Every way to spoil a plan is refused with its own message; whatever is accepted runs right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.place.arena import random_feeds, run_apart, run_planned
from tests.place.graphs import f32, prefix, random_schedule
from tilegrad.analysis.lifetimes import temporaries
from tilegrad.ir.plan import Address, MemoryUse, Plan
from tilegrad.ir.program import Program, Role, StateTensor
from tilegrad.passes.builder import GraphBuilder
from tilegrad.place.plan import plan_memory
from tilegrad.place.validate import PlanError, is_valid, validate_plan
from tilegrad.recipe import Recipe
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets import base as targets

NEW = "new.1"


@cache
def good_plan() -> Plan:
    build = GraphBuilder("step")
    build.add_input("x", f32(8, 8))
    build.add_input("t", f32(8, 8))
    build.add_state("w", f32(8, 8))
    build.add_state("g", f32(8, 8))
    build.emit("Gemm", ["x", "w"], hint="a")
    build.emit("Reshape", ["a"], {"shape": (64,)}, hint="view")
    build.emit("Relu", ["view"], hint="early")
    build.emit("Gemm", ["a", "x"], hint="c")
    build.emit("Add", ["c", "t"], hint="d")
    build.emit("Sum", ["d", "c", "d", "t"], hint="s")
    build.emit("Relu", ["s"], hint="r")
    build.emit("InPlaceAccumulatorV2", ["g", "r"], outputs=(False, True), hint="new")
    build.writes.append((NEW, "g"))
    step = build.finish(["early", "d"])
    infer = replace(prefix(step, 4, "infer"), state=("w",))
    infer = replace(infer, types={name: t for name, t in infer.types.items() if name != "g"})
    state = tuple(StateTensor(name, f32(8, 8), Role.PARAMETER) for name in ("w", "g"))
    entries = {"infer": infer, "step": step, "update": prefix(step, 0, "update")}
    program = Program("small", Recipe(), "d", state, entries, "t", None)
    return plan_memory(schedule_program(program, targets.get("host")))


def moved(plan: Plan, value: str, to: Address | str, entry: str = "step", *, with_aliases: bool = True) -> Plan:
    """The plan with a value (and what shares its bytes) at another address, or where another value is."""
    old = plan.entries[entry]
    address = plan.address(entry, to) if isinstance(to, str) else to
    here = plan.address(entry, value)
    members = next((b.members for b in old.buffers if value in b.members), (value,))
    values = [name for name in members if plan.address(entry, name) == here] if with_aliases else [value]
    addresses = {**old.addresses, **dict.fromkeys(values, address)}
    return replace(plan, entries={**plan.entries, entry: replace(old, addresses=addresses)})


def at(plan: Plan, value: str, offset: int, region: str | None = None) -> Address:
    old = plan.address("step", value)
    return replace(old, offset=offset, region=region or old.region)


def shifted(plan: Plan, value: str) -> Address:
    return at(plan, value, plan.address("step", value).offset + 64)


def roomy(plan: Plan) -> Plan:
    """With an arena that is larger than it need be."""
    memory = {name: replace(use, used_bytes=10**6 + plan.state_bytes) for name, use in plan.memory.items()}
    return replace(plan, arena_bytes=10**6, memory=memory)


def with_state(plan: Plan, name: str, offset: int) -> Plan:
    address = replace(plan.state_addresses[name], offset=offset)
    return replace(plan, state_addresses={**plan.state_addresses, name: address})


def with_use(plan: Plan, use: MemoryUse) -> Plan:
    return replace(plan, memory=dict.fromkeys(plan.memory, use))


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "two live buffers overlap": (lambda p: moved(p, "early", "a"), "finds 'a' overwritten"),
    "a value over one read later": (lambda p: moved(p, "early", "x"), "finds 'x' overwritten"),
    "an input reused before its last reader": (lambda p: moved(p, "a", "t"), "finds 't' overwritten"),
    "partly over a live value": (
        lambda p: moved(moved(roomy(p), "t", at(p, "t", 64_000)), "a", at(p, "a", 64_064)),
        "finds 't' overwritten",
    ),
    "in place where the operator does not allow it": (
        lambda p: moved(p, "c", "a"),
        "'c' overlaps the input 'a' of node 'step/Gemm.1', which may not be in place",
    ),
    "in place, but shifted": (
        lambda p: moved(roomy(p), "r", shifted(p, "s"), with_aliases=False),
        "'r' overlaps the input 's' of node 'step/Relu.1', which may not be in place",
    ),
    "a view at another address": (
        lambda p: moved(p, "view", "t", with_aliases=False),
        "view 'view' of step is not where 'a' is",
    ),
    "a buffer beyond its region": (lambda p: moved(p, "d", at(p, "d", p.arena_bytes)), "'d' of step lies beyond"),
    "a buffer before its region": (lambda p: moved(p, "d", at(p, "d", -256)), "'d' of step lies beyond"),
    "misalignment": (lambda p: moved(p, "d", at(p, "d", p.address("step", "d").offset + 4)), "'d' of step is not alig"),
    "state tensors overlap": (lambda p: with_state(p, "g", 0), "finds 'w' overwritten"),
    "state before its region": (lambda p: with_state(p, "w", -64), "'w' of infer lies beyond"),
    "state beyond its region": (lambda p: with_state(p, "g", p.state_bytes), "'g' of infer lies beyond"),
    "a state write that lands elsewhere": (
        lambda p: moved(p, NEW, "c", with_aliases=False),
        f"state 'g' does not hold '{NEW}' when step ends",
    ),
    "an output overwritten before the end": (
        lambda p: moved(p, "d", "early"),
        "the caller of step finds 'early' overwritten",
    ),
    "scratch over an output": (lambda p: moved(p, "s.tmp0", "s"), "'s' and 's.tmp0' of node 'step/Sum' overlap"),
    "scratch over an input": (lambda p: moved(p, "s.tmp0", "t"), "'s.tmp0' overlaps the input 't'"),
    "scratch over what lives on": (lambda p: moved(p, "s.tmp1", "early"), "the caller of step finds 'early'"),
    "activations over state": (lambda p: moved(p, "c", at(p, "c", 0, "state")), "state 'w|'c' of step"),
    "activations over another entry's state": (
        lambda p: moved(p, "c", p.state_addresses["g"], "infer"),
        "state 'g' does not hold 'g' when infer ends",
    ),
    "more than the memory has": (lambda p: with_use(p, MemoryUse(10**6, 10**6 - 1, 0)), "holds 999999 bytes"),
    "less than the regions need": (lambda p: with_use(p, MemoryUse(1, None, 0)), "is said to need 1 bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused(fault: str) -> None:
    plan = good_plan()
    spoil, message = FAULTS[fault]
    assert validate_plan(plan) is plan
    with pytest.raises(PlanError, match=message):
        validate_plan(spoil(plan))


def test_validity_of_one_entry() -> None:
    spoilt = moved(good_plan(), "d", "early")
    assert is_valid(spoilt, "infer")
    assert not is_valid(spoilt, "step")


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(2, 15), st.integers(1, 3))
def test_whatever_is_accepted_gives_the_right_bits(seed: int, operators: int, changes: int) -> None:
    """Buffers are thrown about at random: the validator may refuse, but never accept what computes nonsense."""
    draw = random.Random(seed)
    plan = plan_memory(random_schedule(seed, operators))
    graph = plan.schedule.entries["step"].graph
    values = [*graph.inputs, *temporaries(graph), *(v for node in graph.nodes for v in node.outputs if v)]
    for _ in range(changes):
        offset = draw.randrange(0, plan.arena_bytes + 1, 64)
        plan = moved(plan, draw.choice(values), Address("RAM", draw.choice(["arena", "arena", "state"]), offset))
    try:
        validate_plan(plan)
    except PlanError:
        return
    feeds = random_feeds(plan, "step", seed)
    assert run_planned(plan, "step", feeds) == run_apart(plan, "step", feeds)


def test_random_faults_are_both_refused_and_accepted() -> None:
    """Otherwise the property above would say nothing."""
    accepted = refused = 0
    for seed in range(60):
        draw = random.Random(seed)
        plan = plan_memory(random_schedule(seed, 10))
        graph = plan.schedule.entries["step"].graph
        values = [v for node in graph.nodes for v in node.outputs if v]
        offset = draw.randrange(0, plan.arena_bytes + 1, 64)
        changed = moved(plan, draw.choice(values), Address("RAM", "arena", offset))
        if is_valid(changed, "step"):
            accepted += changed != plan
        else:
            refused += 1
    assert accepted >= 3 and refused >= 10
