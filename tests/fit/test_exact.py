"""What is found is what trying everything finds: order, recomputation and places, on small random graphs."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from tilegrad.analysis.lifetimes import analyse
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.fit.exact import fewest_bytes
from tilegrad.fit.recompute import recomputed
from tilegrad.fit.tape import Facts, Tape, facts_of, graph_of, node_cost, play
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.place.allocate import allocate

ALIGNMENT = 8
MOST_REPEATED = 2


def row(size: int) -> TensorType:
    return TensorType(DType.F32, (size,))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Elementwise operators (in place), and such as enlarge and shrink; the last may update a parameter."""
    types = {"x": row(draw(st.sampled_from((2, 4, 8)))), "w": row(4)}
    nodes: list[Node] = []
    made = ["x"]
    for k in range(draw(st.integers(3, 4))):
        source = draw(st.sampled_from(made))
        size = types[source].shape[0]
        name = f"v{k}"
        kind = draw(st.sampled_from(("Relu", "Neg", "Add", "Concat", "Slice", "Reshape")))
        same = [other for other in made if types[other].shape == types[source].shape]
        other = draw(st.sampled_from(same if kind == "Add" else made))
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


@settings(max_examples=12, deadline=None, derandomize=True)
@given(graphs(), st.sampled_from((0.6, 0.8, 0.9)))
def test_the_least_bytes_and_the_least_cost_are_those_of_trying_everything(graph: Graph, share: float) -> None:
    most = len(graph.nodes) + MOST_REPEATED
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
