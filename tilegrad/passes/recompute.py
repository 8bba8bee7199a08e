"""Computes activations again instead of keeping them, until what is alive at once fits.

While more is alive than there is room for, the cheapest gap is given up: of all values that are alive where most is,
and are not needed there, one is computed again in front of its next use, by a copy of what made it and of as much
before that as is gone by then. Later uses read the copy, which may be given up in its turn. The bits are the same: it
is the same operators on the same inputs, none of which an update may have changed by then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tilegrad.analysis.lifetimes import Lifetimes, analyse, read_inputs
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

LONGEST_CHAIN = 24
MOST_TRIALS = 2_000
"""Bounds count work, so that the same program gives the same result."""
MOVED_PER_MAC = 2.0
"""What reading or writing an element costs in comparison: an operator without MACs is not free."""


@dataclass(frozen=True)
class Recomputed:
    """`peak_bytes` are alive at once; `macs` are those that were added."""

    graph: Graph
    peak_bytes: int
    macs: int


@dataclass(frozen=True)
class _Gap:
    """A value that is computed again in front of node `use`, by copies of `chain`, for all its uses from there on."""

    value: str
    use: int
    chain: tuple[int, ...]
    cost: float
    size_bytes: int


@dataclass
class _Facts:
    """What the choice of a gap asks of a graph."""

    graph: Graph
    alignment_bytes: int
    lifetimes: Lifetimes = field(init=False)
    live: list[int] = field(init=False)
    uses: dict[str, list[int]] = field(init=False)
    producer: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.lifetimes = analyse(graph, self.alignment_bytes)
        count = len(graph.nodes)
        change = [0] * (count + 2)
        for buffer in self.lifetimes.buffers:
            change[max(buffer.first, 0)] += buffer.size_bytes
            change[min(buffer.last, count) + 1] -= buffer.size_bytes
        self.live = []
        alive = 0
        for position in range(count):
            alive += change[position]
            self.live.append(alive)
        self.uses = {}
        self.producer = {}
        for i, node in enumerate(graph.nodes):
            for name in dict.fromkeys(read_inputs(graph, node)):
                self.uses.setdefault(name, []).append(i)
            for name in filter(None, node.outputs):
                self.producer[name] = i
        for name in graph.outputs:
            self.uses.setdefault(name, []).append(count)

    @property
    def peak_bytes(self) -> int:
        return max(self.live, default=0)

    def excess(self, budget_bytes: int) -> tuple[int, int]:
        """How far it is from fitting: the peak, then all that is above the budget."""
        return self.peak_bytes, sum(max(0, alive - budget_bytes) for alive in self.live)

    def next_use(self, value: str, position: int) -> int | None:
        """The first use behind a node, unless that node uses it."""
        uses = self.uses.get(value, [])
        k = bisect_right(uses, position)
        if k and uses[k - 1] == position:
            return None
        return uses[k] if k < len(uses) else None


def recomputed(graph: Graph, budget_bytes: int, alignment_bytes: int) -> Recomputed:
    """The graph with as little computed again as brings it under the budget, or as near as it gets.

    Gaps are given up by several rules, and what turns out not to be needed is taken back; the cheapest result counts.
    """
    start = _macs(graph)
    found: list[tuple[int, float, int, _Facts, Graph]] = []
    for rank in range(len(_RANKINGS)):
        for is_masked in (False, True):
            begin = masked_by_input(graph) if is_masked else graph
            facts = _taken_back(_greedy(_Facts(begin, alignment_bytes), budget_bytes, rank), budget_bytes)
            cost = _cost(facts.graph, tuple(range(len(facts.graph.nodes))))
            found.append((max(facts.peak_bytes, budget_bytes), cost, len(found), facts, begin))
    *_, facts, begin = min(found, key=lambda each: each[:3])
    expect_same_results(begin, facts.graph)
    return Recomputed(verify_graph(facts.graph), facts.peak_bytes, _macs(facts.graph) - start)


_RANKINGS: tuple[Callable[[_Gap], float], ...] = (
    lambda gap: gap.cost / gap.size_bytes,
    lambda gap: gap.cost,
    lambda gap: gap.cost / gap.size_bytes**2,
    lambda gap: gap.cost / gap.size_bytes / (gap.use - gap.chain[-1]),
)
"""Which gap is tried first: by its cost for each byte, by its cost, by how much it frees, by how long."""


def _greedy(facts: _Facts, budget_bytes: int, rank: int) -> _Facts:
    refused: set[tuple[str, int]] = set()
    trials = 0
    while facts.peak_bytes > budget_bytes and trials < MOST_TRIALS:
        better = None
        for value, use, change in _changes(facts, rank):
            if (value, use) in refused:
                continue
            trials += 1
            trial = _Facts(change(), facts.alignment_bytes)
            if trial.excess(budget_bytes) < facts.excess(budget_bytes):
                better = trial
                break
            refused.add((value, use))
        if better is None:
            break
        facts = better
        refused.clear()
    return facts


def _taken_back(facts: _Facts, budget_bytes: int) -> _Facts:
    """Without copies that later ones made needless: their readers read the version before, as far as that fits."""
    limit = max(facts.peak_bytes, budget_bytes)
    copies = [name for name in facts.producer if _stem(name) != name]
    costs = {name: _cost(facts.graph, (facts.producer[name],)) for name in copies}
    for name in sorted(copies, key=lambda name: (-costs[name], name)):
        previous = _previous(facts, name)
        if previous is None or name not in facts.uses:
            continue
        trial = _Facts(_without(facts.graph, name, previous), facts.alignment_bytes)
        if trial.peak_bytes <= limit:
            facts = trial
    return facts


def _previous(facts: _Facts, name: str) -> str | None:
    """The last version of a value in front of a copy that is still there."""
    own = facts.producer.get(name, -1)
    before = [other for other, i in facts.producer.items() if i < own and _stem(other) == _stem(name)]
    return max(before, key=facts.producer.__getitem__, default=None)


def _without(graph: Graph, name: str, previous: str) -> Graph:
    """The graph whose readers of `name` read `previous`, without what nobody reads any more."""
    nodes = [
        node.with_inputs(tuple(previous if source == name else source for source in node.inputs))
        for node in graph.nodes
    ]
    needed = {*graph.outputs, *(value for value, _ in graph.writes)}
    kept = []
    for node in reversed(nodes):
        if needed.intersection(filter(None, node.outputs)):
            kept.append(node)
            needed.update(node.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))


def _changes(facts: _Facts, rank: int) -> Iterator[tuple[str, int, Callable[[], Graph]]]:
    """What might help where most is alive, the cheapest first: a value that is made later, or made again."""
    yield from _delays(facts)
    for gap in sorted(_gaps(facts), key=lambda gap: (_RANKINGS[rank](gap), -gap.size_bytes, gap.value)):
        yield gap.value, gap.use, partial(_closed, facts.graph, gap)


def _delays(facts: _Facts) -> Iterator[tuple[str, int, Callable[[], Graph]]]:
    """Values that nobody has needed yet, with what would keep more alive than it makes left where it is."""
    graph = facts.graph
    peak = facts.live.index(facts.peak_bytes)
    for buffer in facts.lifetimes.buffers:
        if not 0 <= buffer.first < peak <= buffer.last:
            continue
        value = buffer.members[0]
        i, use = facts.producer.get(value), min(facts.uses.get(value, [0]))
        if i is None or not peak < use < len(graph.nodes):
            continue
        if sum(bool(output) for output in graph.nodes[i].outputs) == 1:
            yield value, -use, partial(_delayed, graph, i, use)


def _delayed(graph: Graph, i: int, use: int) -> Graph:
    """The graph with node `i` in front of node `use`, and what changes state that it reads behind it."""
    node = graph.nodes[i]
    written = _written(graph)
    changing = {written[name] for name in node.inputs if name in written}
    behind = [k for k in sorted(changing) if i < k < use]
    read = {name for k in range(i + 1, use) for name in graph.nodes[k].inputs if k not in behind}
    if any(output in read for k in behind for output in graph.nodes[k].outputs):
        return graph
    before = [graph.nodes[k] for k in range(use) if k != i and k not in behind]
    return replace(graph, nodes=(*before, node, *(graph.nodes[k] for k in behind), *graph.nodes[use:]))


def masked_by_input(graph: Graph) -> Graph:
    """The graph in which a normalisation's gradient reads what was normalised, and not the Relu's output too."""
    producers = graph.producers()
    types = dict(graph.types)
    nodes: list[Node] = []
    for node in graph.nodes:
        forward = producers.get(node.inputs[5]) if node.op == _NORM_GRAD and len(node.inputs) == 6 else None
        if forward is None or forward.op != _NORM or not node.inputs[2]:
            nodes.append(node)
            continue
        dy, scale, x, mean, inverse, _ = node.inputs
        masked = _fresh(f"{dy}.masked", types)
        types[masked] = types[dy]
        bias = forward.inputs[2]
        nodes.append(Node(f"{node.name}.mask", _MASK, (dy, x, scale, bias, mean, inverse), (masked,)))
        nodes.append(replace(node, inputs=(masked, scale, x, mean, inverse)))
    return verify_graph(replace(graph, nodes=tuple(nodes), types=types))


_NORM, _NORM_GRAD, _MASK = "FrozenBatchNormalization", "FrozenBatchNormalizationGrad", "FrozenReluGrad"


def _gaps(facts: _Facts) -> Iterator[_Gap]:
    """Of the values that are alive where most is and that this node does not need."""
    graph = facts.graph
    peak = facts.live.index(facts.peak_bytes)
    written = _written(graph)
    for buffer in facts.lifetimes.buffers:
        if not max(buffer.first, 0) <= peak <= buffer.last:
            continue
        values = [value for value in buffer.members if facts.producer.get(value, peak) < peak]
        wanted = {value: use for value in values if (use := facts.next_use(value, peak)) is not None}
        if len(wanted) != 1 or any(peak in facts.uses.get(value, ()) for value in values):
            continue
        (value, use), = wanted.items()
        if use >= len(graph.nodes) or value in graph.outputs or value in written:
            continue
        chain = _chain(facts, value, peak, use, written)
        if chain is not None:
            yield _Gap(value, use, chain, _cost(graph, chain), buffer.size_bytes)


def _written(graph: Graph) -> dict[str, int]:
    """State and the values that become it, with the node that changes it."""
    producer = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    found = {}
    for value, state in graph.writes:
        found[value] = found[state] = producer.get(value, len(graph.nodes))
    return found


def _chain(facts: _Facts, value: str, peak: int, use: int, written: Mapping[str, int]) -> tuple[int, ...] | None:
    """The nodes to copy, in order: what made a value, and what made its inputs as far as those are gone at the peak."""
    graph = facts.graph
    found: set[int] = set()
    pending = [value]
    while pending:
        name = pending.pop()
        i = facts.producer[name]
        if i in found:
            continue
        node = graph.nodes[i]
        if len([output for output in node.outputs if output]) != 1 or name in written or len(found) == LONGEST_CHAIN:
            return None
        found.add(i)
        for source in read_inputs(graph, node):
            if source in graph.state:
                if written.get(source, use) < use:
                    return None  # it is not what it was
            elif source in graph.inputs:
                if max(facts.uses[source]) < peak:
                    return None
            elif max(facts.uses[source]) < peak:
                pending.append(source)
    return tuple(sorted(found))


def _cost(graph: Graph, chain: tuple[int, ...]) -> float:
    nodes = [graph.nodes[i] for i in chain]
    moved = sum(graph.types[name].size for node in nodes for name in (*node.inputs, *node.outputs) if name)
    return sum(_node_macs(graph, node) for node in nodes) + MOVED_PER_MAC * moved


def _node_macs(graph: Graph, node: Node) -> int:
    operator = registry.get(node.op)
    return 0 if operator.is_view else sum(nest.macs for nest in operator.nests(NodeView(node, graph.types)))


def _macs(graph: Graph) -> int:
    return sum(_node_macs(graph, node) for node in graph.nodes)


def _closed(graph: Graph, gap: _Gap) -> Graph:
    """The graph with a value computed again: copies in front of its next use, and later uses read them."""
    taken = {node.name for node in graph.nodes}
    types = dict(graph.types)
    again: dict[str, str] = {}
    copies = []
    for i in gap.chain:
        node = graph.nodes[i]
        outputs = []
        for name in node.outputs:
            fresh = _fresh(name, types) if name else ""
            if name:
                again[name] = fresh
                types[fresh] = types[name]
            outputs.append(fresh)
        copy_name = _fresh(node.name, taken)
        taken.add(copy_name)
        inputs = tuple(again.get(name, name) for name in node.inputs)
        copies.append(replace(node, name=copy_name, inputs=inputs, outputs=tuple(outputs)))
    later = [
        node.with_inputs(tuple(again[gap.value] if name == gap.value else name for name in node.inputs))
        for node in graph.nodes[gap.use :]
    ]
    return replace(graph, nodes=(*graph.nodes[: gap.use], *copies, *later), types=types)


def _fresh(name: str, taken: set[str] | dict[str, object] | Mapping[str, object]) -> str:
    stem = _stem(name)
    count = 1
    while f"{stem}.again{count}" in taken:
        count += 1
    return f"{stem}.again{count}"


def _stem(name: str) -> str:
    """Of a value and all its copies."""
    return name.split(".again")[0]
