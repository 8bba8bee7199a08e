"""Plans of random programs: accepted by the validator, and the same bits as with an array for every value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.place.arena import random_feeds, run_apart, run_planned
from tests.place.graphs import SHAPES, f32, random_schedule
from tests.place.validator import Verdict, judge
from tilegrad.analysis.lifetimes import analyse
from tilegrad.errors import InternalError
from tilegrad.ir.graph import Graph
from tilegrad.passes.builder import GraphBuilder
from tilegrad.place.plan import plan_memory
from tilegrad.place.validate import validate_plan

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=80)
@given(SEEDS, st.integers(0, 25))
def test_planned_programs_give_the_same_bits_as_values_apart(seed: int, operators: int) -> None:
    plan = plan_memory(random_schedule(seed, operators))
    assert validate_plan(plan) is plan
    for entry in plan.schedule.entries:
        feeds = random_feeds(plan, entry, seed)
        assert run_planned(plan, entry, feeds) == run_apart(plan, entry, feeds)


@settings(max_examples=80)
@given(SEEDS, st.integers(0, 40))
def test_buffers_of_plans_do_not_overlap(seed: int, operators: int) -> None:
    plan = plan_memory(random_schedule(seed, operators))
    for entry in plan.entries.values():
        assert judge(entry.buffers, entry.offsets, entry.arena_bytes) is Verdict.GOOD
        assert entry.arena_bytes >= entry.lower_bound_bytes
    assert plan.arena_bytes == max(entry.arena_bytes for entry in plan.entries.values())


@settings(max_examples=50)
@given(SEEDS, st.integers(1, 30))
def test_lifetimes_cover_every_use(seed: int, operators: int) -> None:
    """From first principles: a value's bytes live from where they are made to their last reader, views included."""
    graph = random_schedule(seed, operators).entries["step"].graph
    lifetimes = analyse(graph, 64)
    buffers = {buffer.name: buffer for buffer in lifetimes.buffers}
    state = set(graph.state)
    for i, node in enumerate(graph.nodes):
        for value in filter(None, (*node.inputs, *node.outputs)):
            owner = lifetimes.owner.get(value, value)
            assert owner in state or buffers[owner].first <= i <= buffers[owner].last
    for value in graph.outputs:
        owner = lifetimes.owner[value]
        assert owner in state or buffers[owner].last == len(graph.nodes)
    for value, tensor in graph.writes:
        assert lifetimes.owner[value] == tensor
    for value, owner in lifetimes.owner.items():
        if owner in buffers and value in graph.types:
            assert buffers[owner].size_bytes >= graph.types[value].size_bytes


def _chain() -> tuple[GraphBuilder, str]:
    build = GraphBuilder("entry")
    return build, build.add_input("x", f32(4, 4))


def _buffer_of(graph: Graph, value: str) -> str:
    return analyse(graph, 64).owner[value]


def test_an_output_takes_over_an_input_that_dies() -> None:
    build, x = _chain()
    (a,) = build.emit("Relu", [x])
    (b,) = build.emit("Relu", [a])
    graph = build.finish([b])
    assert _buffer_of(graph, x) == _buffer_of(graph, a) == _buffer_of(graph, b)


def test_an_input_read_later_is_not_taken_over() -> None:
    build, x = _chain()
    (a,) = build.emit("Relu", [x])
    (b,) = build.emit("Add", [a, x])
    graph = build.finish([b])
    assert _buffer_of(graph, x) != _buffer_of(graph, a)


def test_an_output_of_the_entry_is_not_taken_over() -> None:
    build, x = _chain()
    (a,) = build.emit("Relu", [x])
    (b,) = build.emit("Neg", [a])
    graph = build.finish([a, b])
    assert _buffer_of(graph, a) != _buffer_of(graph, b)


def test_a_view_keeps_its_source_alive() -> None:
    build, x = _chain()
    (view,) = build.emit("Reshape", [x], {"shape": (16,)})
    (a,) = build.emit("Relu", [x])
    (b,) = build.emit("Relu", [view])
    graph = build.finish([a, b])
    assert _buffer_of(graph, view) == _buffer_of(graph, x) != _buffer_of(graph, a)


def test_operators_that_may_not_run_in_place_do_not() -> None:
    build, x = _chain()
    (a,) = build.emit("Relu", [x])
    (b,) = build.emit("Gemm", [a, a])
    graph = build.finish([b])
    assert _buffer_of(graph, a) != _buffer_of(graph, b)


@pytest.mark.parametrize("case", ["read later", "not in place", "view of state", "two states", "input", "early view"])
def test_state_that_cannot_be_written_is_refused(case: str) -> None:
    build, x = _chain()
    w, v = build.add_state("w", f32(4, 4)), build.add_state("v", f32(4, 4))
    if case == "read later":
        (new,) = build.emit("Neg", [x])
        (y,) = build.emit("Relu", [w])
        build.writes = [(new, w)]
    elif case == "not in place":
        (new,) = build.emit("Gemm", [w, x])
        y, build.writes = new, [(new, w)]
    elif case == "view of state":
        (new,) = build.emit("Identity", [v])
        (y,) = build.emit("Relu", [x])
        build.writes = [(new, w)]
    elif case == "two states":
        (new,) = build.emit("Relu", [x])
        y, build.writes = new, [(new, w), (new, v)]
    elif case == "input":
        (y,) = build.emit("Relu", [x])
        build.writes = [(x, w)]
    else:  # the bytes are there before the old content is read, though the view comes behind
        (early,) = build.emit("Neg", [x])
        (y,) = build.emit("Relu", [w])
        (new,) = build.emit("Identity", [early])
        build.writes = [(new, w)]
    with pytest.raises(InternalError, match=r"state 'w'|state 'v'"):
        analyse(build.finish([y]), 64)


def test_an_empty_entry_has_no_buffers_but_its_inputs() -> None:
    build, x = _chain()
    graph = build.finish([x])
    (buffer,) = analyse(graph, 64).buffers
    assert (buffer.first, buffer.last, buffer.size_bytes) == (-1, 0, 64)


def test_graphs_of_the_tests_use_every_feature() -> None:
    """A generator that never drew an in-place write or scratch would prove nothing."""
    seen = set()
    for seed in range(40):
        schedule = random_schedule(seed, 20)
        for entry in schedule.entries.values():
            lifetimes = analyse(entry.graph, 64)
            seen |= {node.op for node in entry.graph.nodes}
            seen |= {"in place" for b in lifetimes.buffers if len(b.members) > 1}
            seen |= {"scratch" for b in lifetimes.buffers if ".tmp" in b.name}
            seen |= {"write" for _ in entry.graph.writes}
    assert {"in place", "scratch", "write", "Gemm", "Reshape", "Sum", "InPlaceAccumulatorV2"} <= seen
    assert len(SHAPES) == len(set(SHAPES))
