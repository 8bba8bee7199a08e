"""Computes activations again, or fetches them, instead of keeping them, until what is alive at once fits.

While more is alive than there is room for, the cheapest gap is given up: of all values that are alive where most is,
and are not needed there, one is computed again in front of its next use, by what made it and as much before that as is
gone by then, or comes back from a farther memory where there is one, whichever is cheaper by the same costs. Later uses
read the new one, which may be given up in its turn. The bits are the same: it is the same operators on the same inputs,
none of which an update may have changed by then (`analysis/same_results.py` proves it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tilegrad.analysis.same_results import expect_same_results
from tilegrad.analysis.verify import verify_graph
from tilegrad.fit.exact import cheapest
from tilegrad.fit.tape import Facts, Play, Tape, facts_of, graph_of, node_macs, play
from tilegrad.ir.graph import Graph, Node

LONGEST_CHAIN = 24
MOST_TRIALS = 800
MOST_SOLVED = 16
"""Bounds count work, so that the same program gives the same result."""


@dataclass(frozen=True)
class Recomputed:
    """`peak_bytes` are alive at once; `macs` are those that were added; `repeated` operators run more than once."""

    graph: Graph
    peak_bytes: int
    macs: int
    repeated: int


@dataclass(frozen=True)
class _Gap:
    """A version of a value that is made again in front of position `use` of the tape, by running `chain`."""

    value: int
    use: int
    chain: tuple[int, ...]
    cost: float
    size_bytes: int
    first: int


@dataclass(frozen=True)
class _Rule:
    """Which gap is tried first, and whether what is alive where most is may be kept until the gap's end."""

    rank: Callable[[_Gap], float]
    keeps: bool


_RANKS: tuple[Callable[[_Gap], float], ...] = (
    lambda gap: gap.cost / gap.size_bytes,
    lambda gap: gap.cost,
    lambda gap: gap.cost / gap.size_bytes**2,
    lambda gap: gap.cost / gap.size_bytes / max(gap.use - gap.first, 1),
)
"""By its cost for each byte, by its cost, by how much it frees, by how long."""
_RULES = tuple(_Rule(rank, keeps) for rank, keeps in product(_RANKS, (True, False)))


def recomputed(graph: Graph, budget_bytes: int, alignment_bytes: int) -> Recomputed:
    """The graph with as little computed again as brings it under the budget, or as near as it gets.

    A small graph is solved exactly. Else gaps are given up by several rules, and what turns out not to be needed is
    taken back; the cheapest result counts.
    """
    asked = (graph, budget_bytes, alignment_bytes)
    for known, result in _KNOWN:
        if known == asked:
            return result
    result = _searched(*asked)
    _KNOWN.append((asked, result))
    return result


_KNOWN: deque[tuple[tuple[Graph, int, int], Recomputed]] = deque(maxlen=4)
"""What was asked last: an answer and the program that follows it ask the same."""


def _searched(graph: Graph, budget_bytes: int, alignment_bytes: int) -> Recomputed:
    start = sum(node_macs(graph, node) for node in graph.nodes)
    found: list[tuple[int, float, int, Play]] = []
    for begin in dict.fromkeys((_Same(graph), _Same(masked_by_input(graph)))):
        played = cheapest_play(facts_of(begin.graph, alignment_bytes), budget_bytes)
        cost = played.facts.cost(played.tape)
        found.append((max(played.peak_bytes, budget_bytes), cost, len(found), played))
    *_, best = min(found, key=lambda each: each[:3])
    made = graph_of(best.facts, best.tape)
    expect_same_results(best.facts.graph, made)
    macs = sum(node_macs(made, node) for node in made.nodes) - start
    return Recomputed(verify_graph(made), best.peak_bytes, macs, len(best.tape) - len(best.facts.whole))


@dataclass(frozen=True, eq=False)
class _Same:
    graph: Graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.graph.nodes == other.graph.nodes

    def __hash__(self) -> int:
        return len(self.graph.nodes)


def cheapest_play(facts: Facts, budget_bytes: int) -> Play:
    """The tape of least cost within the budget, or the nearest to it, of all that are found."""
    found = []
    for tape in _tapes(facts, budget_bytes):
        played = play(facts, tape)
        assert played is not None
        found.append(played)
    return min(found, key=lambda one: (max(one.peak_bytes, budget_bytes), facts.cost(one.tape)))


def _tapes(facts: Facts, budget_bytes: int) -> Iterator[Tape]:
    exact = cheapest(facts, budget_bytes) if len(facts.graph.nodes) <= MOST_SOLVED else None
    if exact is not None:
        yield exact
        return
    first = play(facts, facts.whole)
    assert first is not None
    least = None
    for rule in _RULES:
        found = _greedy(first, budget_bytes, rule)
        peak = max(found.peak_bytes, budget_bytes)
        if least is None or peak <= least:  # one that is farther from fitting is not chosen, whatever it costs
            least = peak
            yield _taken_back(found, budget_bytes).tape


def _greedy(played: Play, budget_bytes: int, rule: _Rule) -> Play:
    refused: set[_Change] = set()
    trials = 0
    while played.peak_bytes > budget_bytes and trials < MOST_TRIALS:
        better = None
        for change, tape in _changes(played, rule):
            if change in refused:
                continue
            trials += 1
            trial = play(played.facts, tape)
            if trial is not None and trial.excess(budget_bytes) < played.excess(budget_bytes):
                better = trial
                break
            refused.add(change)
        if better is None:
            break
        played = better
        refused.clear()
    return played


def _taken_back(played: Play, budget_bytes: int) -> Play:
    """Without runs that later ones made needless, as far as that fits: the dearest first."""
    limit, facts = max(played.peak_bytes, budget_bytes), played.facts
    pending = sorted(_again(facts, played.tape), key=lambda at: (-facts.costs[played.tape[at]], at))
    marked = [(node, at) for at, node in enumerate(played.tape)]
    for at in pending:
        rest = [pair for pair in marked if pair[1] != at]
        tape = _pruned(facts, tuple(node for node, _ in rest))
        if len(tape) < len(rest):
            kept = _positions(tape, rest)
            rest = [rest[k] for k in kept]
        trial = play(facts, tape)
        if trial is not None and trial.peak_bytes <= limit:
            played, marked = trial, rest
    return played


def _positions(tape: Tape, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Where the nodes of a shorter tape are, from the end: what is pruned is never the last run that is read."""
    found: list[int] = []
    k = len(pairs) - 1
    for node in reversed(tape):
        while pairs[k][0] != node:
            k -= 1
        found.append(k)
        k -= 1
    return found[::-1]


def _again(facts: Facts, tape: Tape) -> Iterator[int]:
    seen: set[int] = set()
    for at, node in enumerate(tape):
        if node in seen or facts.is_fetch(node):
            yield at
        seen.add(node)


def _pruned(facts: Facts, tape: Tape) -> Tape:
    """Without runs of which nobody reads anything."""
    needed = set(facts.outputs)
    kept = []
    for node in reversed(tape):
        if node in facts.once or needed.intersection(facts.makes[node]):
            kept.append(node)
            needed.difference_update(facts.makes[node])
            needed.update(facts.named[node])
    return tuple(reversed(kept))


_Change = tuple[int, int, bool]
"""A value, where it is used, and whether it is fetched there."""


def _changes(played: Play, rule: _Rule) -> Iterator[tuple[_Change, Tape]]:
    """What might help where most is alive, the cheapest first: a value that is made later, or made again."""
    yield from _delays(played)
    tape = played.tape
    for gap in sorted(_gaps(played, rule.keeps), key=lambda gap: (rule.rank(gap), -gap.size_bytes, gap.value)):
        is_fetch = played.facts.is_fetch(gap.chain[-1])
        yield (gap.value, gap.use, is_fetch), (*tape[: gap.use], *gap.chain, *tape[gap.use :])


def _delays(played: Play) -> Iterator[tuple[_Change, Tape]]:
    """Values that nobody has needed yet, made in front of their first use."""
    facts, tape = played.facts, played.tape
    peak = played.alive.index(played.peak_bytes)
    for version, value in enumerate(played.value):
        first, uses = played.first[version], played.uses[version]
        if not 0 < first < peak or not uses or not peak < uses[0] <= len(tape) or not facts.sizes[value]:
            continue
        if len(facts.makes[tape[first - 1]]) == 1:
            yield (value, -uses[0], False), _delayed(facts, tape, first - 1, uses[0] - 1)


def _delayed(facts: Facts, tape: Tape, at: int, use: int) -> Tape:
    """The tape with what is at `at` in front of `use`, and what changes state that it reads behind it."""
    bars = facts.bars[tape[at]]
    behind = tuple(node for node in tape[at + 1 : use] if node in bars)
    before = tuple(node for node in tape[at + 1 : use] if node not in bars)
    return (*tape[:at], *before, tape[at], *behind, *tape[use:])


def _gaps(played: Play, keeps: bool) -> Iterator[_Gap]:
    """Of the values that are alive where most is and that are not needed there."""
    facts = played.facts
    peak = played.alive.index(played.peak_bytes)
    members: dict[int, list[int]] = {}
    for version, value in enumerate(played.value):
        if facts.sizes[value]:
            members.setdefault(played.root(version), []).append(version)
    done = dict.fromkeys(facts.once, 0)
    done.update({node: time for time, node in enumerate(played.tape, 1) if node in facts.once})
    for root, versions in members.items():
        if not played.first[root] < peak <= played.root_last[root]:
            continue
        made = [version for version in versions if played.first[version] < peak]
        wanted = [(v, later[0]) for v in made if (later := [use for use in played.uses[v] if use > peak])]
        if len(wanted) != 1 or any(peak in played.uses[version] for version in made):
            continue
        version, use = wanted[0]
        value = played.value[version]
        if use > len(played.tape):
            continue
        size = max(facts.sizes[played.value[v]] for v in versions)
        for chain in _chains(played, value, peak, use, keeps, done):
            there = {node for node in chain if facts.is_fetch(node)}.intersection(played.tape)
            cost = facts.cost(chain) - sum(facts.stores[facts.makes[node][0]] for node in there)
            yield _Gap(value, use - 1, chain, cost, size, played.first[version])


def _chains(
    played: Play, value: int, peak: int, use: int, keeps: bool, done: dict[int, int]
) -> Iterator[tuple[int, ...]]:
    """What would bring a value back: running what made it, or fetching it."""
    facts = played.facts
    chain = None if value in facts.inputs else _chain(played, value, peak, use, keeps, done)
    if chain is not None:
        yield chain
    if value in facts.fetches:
        yield (facts.fetches[value],)


def chain_at(played: Play, value: int, use: int) -> tuple[int, ...] | None:
    """What would make a value again at a time, from what is alive then."""
    facts = played.facts
    done = {node: time for time, node in enumerate(played.tape, 1) if node in facts.once}
    return None if value in facts.inputs else _chain(played, value, use, use, False, done)


def _chain(
    played: Play, value: int, peak: int, use: int, keeps: bool, done: dict[int, int]
) -> tuple[int, ...] | None:
    """The nodes to run again, in order: what made a value, and what made its inputs as far as those are gone."""
    facts = played.facts
    found: set[int] = set()
    pending = [value]
    while pending:
        node = facts.makers.get(pending.pop())
        if node in found:
            continue
        if node is None or node in facts.once or len(found) == LONGEST_CHAIN:
            return None
        if any(done[changer] < use for changer in facts.bars[node]):
            return None  # state that it reads is not what it was
        found.add(node)
        for source in facts.reads[node]:
            version = played.version_at(source, use)
            if version is None:
                return None
            needed_since = peak if keeps or source in facts.inputs else use
            if facts.sizes[source] and played.last[version] < needed_since:
                fetch, maker = facts.fetches.get(source), facts.makers.get(source)
                if fetch is not None and (maker is None or facts.cost((fetch,)) < facts.costs[maker]):
                    found.add(fetch)
                else:
                    pending.append(source)
    return tuple(sorted(found, key=lambda node: (not facts.is_fetch(node), node)))


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
        masked = f"{dy}.masked"
        while masked in types:
            masked += "1"
        types[masked] = types[dy]
        bias = forward.inputs[2]
        nodes.append(Node(f"{node.name}.mask", _MASK, (dy, x, scale, bias, mean, inverse), (masked,)))
        nodes.append(replace(node, inputs=(masked, scale, x, mean, inverse)))
    return verify_graph(replace(graph, nodes=tuple(nodes), types=types))


_NORM, _NORM_GRAD, _MASK = "FrozenBatchNormalization", "FrozenBatchNormalizationGrad", "FrozenReluGrad"
