"""What is found is what trying everything finds: order, recomputation, memories and places, on small random graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegrad.analysis.lifetimes import align, analyse
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.fit.exact import cheapest, fewest_bytes
from tilegrad.fit.recompute import recomputed
from tilegrad.fit.tape import Facts, Far, Tape, facts_of, graph_of, node_cost, play, with_far
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.place.allocate import allocate

ALIGNMENT = 8
MOST_REPEATED = 2


def row(size: int) -> TensorType:
    return TensorType(DType.F32, (size,))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Elementwise operators (in place; of three operands with scratch), and such as enlarge and shrink; an update."""
    types = {"x": row(draw(st.sampled_from((2, 4, 8)))), "w": row(4)}
    nodes: list[Node] = []
    made = ["x"]
    for k in range(draw(st.integers(3, 4))):
        source = draw(st.sampled_from(made))
        size = types[source].shape[0]
        name = f"v{k}"
        kind = draw(st.sampled_from(("Relu", "Neg", "Add", "Max", "Concat", "Slice", "Reshape")))
        same = [other for other in made if types[other].shape == types[source].shape]
        other = draw(st.sampled_from(same if kind in ("Add", "Max") else made))
        if kind == "Concat" and size + types[other].shape[0] <= 16:
            types[name] = row(size + types[other].shape[0])
            nodes.append(Node(name, kind, (source, other), (name,), {"axis": 0}))
        elif kind == "Slice" and size >= 4:
            types[name] = row(size // 2)
            attributes = {"starts": (0,), "ends": (size // 2,), "axes": (0,), "steps": (1,)}
            nodes.append(Node(name, kind, (source,), (name,), attributes))
        elif kind == "Add":
            types[name] = row(size)
            nodes.append(Node(name, kind, (source, other), (name,)))
        elif kind == "Max":
            types[name] = row(size)
            nodes.append(Node(name, kind, (source, other, same[0]), (name,)))
        else:
            op = kind if kind in ("Relu", "Neg") else "Tanh"
            types[name] = row(size)
            nodes.append(Node(name, op, (source,), (name,)))
        made.append(name)
    ends = [name for name in made[1:] if not any(name in node.inputs for node in nodes)]
    writes: tuple[tuple[str, str], ...] = ()
    like_w = [name for name in made[1:] if types[name].shape == (4,)]
    if like_w and draw(st.booleans()):
        types["u"] = row(4)
        nodes.append(Node("update", "Sub", ("w", like_w[-1]), ("u",)))
        writes = (("u", "w"),)
        if draw(st.booleans()):
            types["z"] = row(4)
            nodes.insert(0, Node("z", "Exp", ("w",), ("z",)))
            ends.append("z")
    return Graph("step", ("x",), tuple(ends), tuple(nodes), types, {}, ("w",), writes)


@st.composite
def waists(draw: st.DrawFn) -> Graph:
    """Large between small, twice, and then the first large one again: it stays, goes away or is made once more."""
    small = draw(st.sampled_from((2, 4)))
    types, nodes = {"x": row(small)}, []

    def made(name: str, kind: str, sources: tuple[str, ...], size: int) -> str:
        ends = {"starts": (0,), "ends": (size,), "axes": (0,), "steps": (1,)}
        types[name] = row(size)
        nodes.append(Node(name, kind, sources, (name,), {"axis": 0} if kind == "Concat" else ends))
        return name

    def large(name: str, source: str) -> str:
        count = draw(st.integers(2, 4))
        return made(name, "Concat", (source,) * count, count * types[source].shape[0])

    first = large("a", "x")
    waist = made("b", "Slice", (first,), small)
    second = large("c", waist)
    again = made("d", "Slice", (second,), small)
    last = made("e", "Slice", (first,), 2 * small)
    made("y", "Concat", (again, last), 3 * small)
    return Graph("step", ("x",), ("y",), tuple(nodes), types)


def runs(graph: Graph, most: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of nodes in which each finds what it reads, and an update runs once, behind who reads the old."""
    updates = {i for i, node in enumerate(graph.nodes) if node.name == "update"}
    readers = {i for i, node in enumerate(graph.nodes) if "w" in node.inputs} - updates

    def extend(tape: tuple[int, ...], there: frozenset[str]) -> Iterator[tuple[int, ...]]:
        if set(tape) == set(range(len(graph.nodes))) and not is_wasteful(graph, tape):
            yield tape
        if len(tape) == most:
            return
        for i, node in enumerate(graph.nodes):
            done = updates & set(tape)
            if (i in done) or (i in readers and done) or not there.issuperset(set(node.inputs) - {"w"}):
                continue
            yield from extend((*tape, i), there.union(node.outputs))

    yield from extend((), frozenset(graph.inputs))


def is_wasteful(graph: Graph, tape: Tape) -> bool:
    """Something runs again, and nobody reads it: what is found without it is as good."""
    for at, i in enumerate(tape):
        (output,) = graph.nodes[i].outputs
        rest = tape[at + 1 : tape.index(i, at + 1)] if i in tape[at + 1 :] else None
        read = any(output in graph.nodes[j].inputs for j in (tape[at + 1 :] if rest is None else rest))
        if not read and (rest is not None or (i in tape[:at] and output not in graph.outputs)):
            return True
    return False


def bytes_and_cost(graph: Graph, facts: Facts, tape: Tape) -> tuple[int, float]:
    """Of a sequence, by the plan's own analysis and allocator."""
    made = graph_of(facts, tape)
    used = allocate(analyse(made, ALIGNMENT).buffers).size_bytes
    return used, sum(node_cost(graph, graph.nodes[node]) for node in tape)


@settings(max_examples=16, deadline=None, derandomize=True)
@given(graphs() | waists(), st.sampled_from((0.6, 0.8, 0.9)))
def test_the_least_bytes_and_the_least_cost_are_those_of_trying_everything(graph: Graph, share: float) -> None:
    most = len(graph.nodes) + (MOST_REPEATED if len(graph.nodes) < 6 else 1)
    facts = facts_of(graph, ALIGNMENT)
    tried = {tape: bytes_and_cost(graph, facts, tape) for tape in set(runs(graph, most))}
    fewest = min(used for used, _ in tried.values())
    least = fewest_bytes(facts)
    assert least is not None
    # What repeats more than was tried may need even less, never more.
    found, cost = bytes_and_cost(graph, facts, least)
    assert found <= fewest
    if found == fewest and len(least) <= most:
        assert cost == min(cost for used, cost in tried.values() if used == fewest)
    whole, _ = bytes_and_cost(graph, facts, facts.whole)
    budget = max(int(whole * share) // 8 * 8, fewest)
    made = recomputed(graph, budget, ALIGNMENT).graph
    used = allocate(analyse(made, ALIGNMENT).buffers).size_bytes
    assert used <= budget
    assert sum(node_cost(made, n) for n in made.nodes) <= min(cost for used, cost in tried.values() if used <= budget)


def unrolled(graph: Graph, actions: tuple[int | str, ...]) -> Graph:
    """Each run by itself, and what comes back as read from a tensor of the state: for the plan's own analysis."""
    types = {**graph.types, "away": row(64)}
    latest: dict[str, str] = {}
    nodes = []
    for at, action in enumerate(actions):
        name = action if isinstance(action, str) else graph.nodes[action].outputs[0]
        made = f"{name}@{at}"
        types[made] = types[name]
        if isinstance(action, str):
            ends = {"starts": (0,), "ends": types[name].shape, "axes": (0,), "steps": (1,)}
            nodes.append(Node(made, "Slice", ("away",), (made,), ends))
        else:
            node = graph.nodes[action]
            inputs = tuple(latest.get(source, source) for source in node.inputs)
            nodes.append(Node(made, node.op, inputs, (made,), node.attributes))
        latest[name] = made
    writes = tuple((latest[value], state) for value, state in graph.writes)
    outputs = tuple(latest[name] for name in graph.outputs)
    return Graph("step", graph.inputs, outputs, tuple(nodes), types, {}, (*graph.state, "away"), writes)


def paged_runs(graph: Graph, most: int) -> Iterator[tuple[int | str, ...]]:
    """Every sequence of runs and fetches, of values that were there before and that something behind reads."""
    updates = {i for i, node in enumerate(graph.nodes) if node.name == "update"}
    readers = {i for i, node in enumerate(graph.nodes) if "w" in node.inputs} - updates
    everything = set(range(len(graph.nodes)))

    def extend(found: tuple[int | str, ...], there: frozenset[str]) -> Iterator[tuple[int | str, ...]]:
        if everything.issubset(found) and not isinstance(found[-1], str):
            yield found
        if len(found) == most:
            return
        for i, node in enumerate(graph.nodes):
            done = updates.intersection(found)
            if i not in done and not (i in readers and done) and there.issuperset(set(node.inputs) - {"w"}):
                yield from extend((*found, i), there.union(node.outputs))
        for value in sorted(there - {"u"}):
            if value not in found:
                yield from extend((*found, value), there)

    yield from extend((), frozenset(graph.inputs))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(graphs() | waists(), st.sampled_from((0.6, 0.8, 0.9)), st.sampled_from((0.01, 0.3, 2.0)))
def test_staying_going_away_and_being_made_again_are_one_choice(graph: Graph, share: float, rate: float) -> None:
    """Costs of a farther memory are by bytes: where they are low, values go there, and where not, they are made."""
    store, fetch = (lambda size: 1.0 + rate * size), (lambda size: 2.0 + rate * size)
    facts = with_far(facts_of(graph, ALIGNMENT), Far(store, fetch))
    most = len(graph.nodes) + (2 if len(graph.nodes) < 5 else 1)

    def of(actions: tuple[int | str, ...]) -> tuple[int, float]:
        used = allocate(analyse(unrolled(graph, actions), ALIGNMENT).buffers).size_bytes
        away = [action for action in actions if isinstance(action, str)]
        size = {value: align(graph.types[value].size_bytes, ALIGNMENT) for value in away}
        moved = sum(store(own) for own in size.values()) + sum(fetch(size[value]) for value in away)
        return used, moved + sum(node_cost(graph, graph.nodes[i]) for i in actions if not isinstance(i, str))

    def actions_of(tape: Tape) -> tuple[int | str, ...]:
        return tuple(facts.names[facts.makes[node][0]] if facts.is_fetch(node) else node for node in tape)

    tried = [of(actions) for actions in paged_runs(graph, most)]
    fewest = min(used for used, _ in tried)
    least = fewest_bytes(facts)
    assert least is not None and of(actions_of(least))[0] <= fewest
    budget = max(int(of(facts.whole)[0] * share) // 8 * 8, fewest)
    found = cheapest(facts, budget)
    assert found is not None
    used, cost = of(actions_of(found))
    assert used <= budget and cost == pytest.approx(facts.cost(found))
    assert cost <= min(cost for used, cost in tried if used <= budget) + 1e-6


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graphs())
def test_what_is_alive_on_a_tape_is_what_the_plan_finds(graph: Graph) -> None:
    facts = facts_of(graph, ALIGNMENT)
    for tape in sorted(set(runs(graph, len(graph.nodes) + 1)))[:40]:
        played = play(facts, tape)
        assert played is not None
        made = graph_of(facts, tape)
        expect_same_results(graph, made)
        buffers = analyse(made, ALIGNMENT).buffers
        times = range(-1, len(tape) + 1)
        alive = [sum(b.size_bytes for b in buffers if b.first <= t <= b.last) for t in times]
        assert played.alive == alive
        assert max(alive) >= facts.bound_bytes()


def test_an_infeasible_budget_gives_the_fewest_bytes() -> None:
    types = dict.fromkeys(("x", "a", "b", "y"), row(4))
    nodes = (Node("a", "Relu", ("x",), ("a",)), Node("b", "Exp", ("a",), ("b",)), Node("y", "Add", ("a", "b"), ("y",)))
    graph = Graph("step", ("x",), ("y",), nodes, types)
    assert recomputed(graph, 8, ALIGNMENT).peak_bytes == 32
