"""Element-wise operators that become epilogues: each tile of a product or convolution goes on through their kernels in
L1, and what lies between is neither stored nor loaded.

Which operators may be chained is declared by them (`Operator.goes_on_with`, `goes_on_from`). Whether it pays is seen on
whole programs, kind by kind (`sequence/epilogues.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import NestKind
from tilegrad.ir.program import Program
from tilegrad.ops import registry
from tilegrad.ops._chain import chained, may_chain
from tilegrad.ops.base import NodeView

PairKey = tuple[str, str, str]
ChainKind = tuple[NestKind, ...]
"""The nests of a chain: what pays for one pays for all of the kind."""


@dataclass(frozen=True)
class Pair:
    """Two nodes of a graph, of which the second goes on with a value that the first makes."""

    graph: Graph
    first: Node
    then: Node
    value: str

    @property
    def key(self) -> PairKey:
        return self.first.name, self.then.name, self.value

    @cached_property
    def is_read_elsewhere(self) -> bool:
        kept = {*self.graph.outputs, *(value for value, _ in self.graph.writes)}
        return self.value in kept or any(self.value in n.inputs for n in self.graph.nodes if n.name != self.then.name)

    def _view(self, node: Node) -> NodeView:
        return NodeView(node, self.graph.types, self.graph.constants)

    def chained(self, keeps: bool) -> Node | None:
        return chained(self._view(self.first), self._view(self.then), self.value, keeps)

    def kind(self, keeps: bool) -> ChainKind | None:
        node = self.chained(keeps)
        if node is None:
            return None
        return tuple(nest.kind for nest in registry.get(node.op).typed_nests(self._view(node)))


@dataclass(frozen=True)
class Candidates:
    """Of a program: pairs by entry, and the kind of each, with whether what lies between is kept."""

    pairs: Mapping[str, Mapping[PairKey, Pair]]
    kinds: Mapping[PairKey, tuple[ChainKind, bool]]


def candidates(program: Program) -> Candidates:
    """All pairs that may be chained. What several entries have is in all of them, since they share its code."""
    pairs = {name: {pair.key: pair for pair in _pairs(graph)} for name, graph in program.entries.items()}
    names = {name: {node.name for node in graph.nodes} for name, graph in program.entries.items()}
    kinds: dict[PairKey, tuple[ChainKind, bool]] = {}
    for own in pairs.values():
        for key, pair in own.items():
            having = [name for name, nodes in names.items() if nodes.intersection(key[:2])]
            if key in kinds or not all(key in pairs[name] for name in having):
                continue
            keeps = any(pairs[name][key].is_read_elsewhere for name in having)
            kind = pair.kind(keeps)
            if kind is not None:
                kinds[key] = kind, keeps
    return Candidates(pairs, kinds)


def _pairs(graph: Graph) -> Iterator[Pair]:
    """All that the second reads is there when the first has its turn."""
    producers = graph.producers()
    made_at = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    for then in graph.nodes:
        operator, view = registry.get(then.op), NodeView(then, graph.types, graph.constants)
        for value in {} if operator.is_view else {then.inputs[k]: None for k in operator.goes_on_from(view)}:
            first = producers.get(value)
            others = (made_at.get(name, -1) for name in then.inputs if name != value)
            if first is None or max(others, default=-1) >= made_at[value]:
                continue
            if may_chain(registry.get(first.op), NodeView(first, graph.types, graph.constants), operator, view, value):
                yield Pair(graph, first, then, value)
                break


def with_chains(program: Program, found: Candidates, kinds: Collection[ChainKind]) -> Program:
    """The program with every pair of these kinds as one node: valid in, valid out, the same bits."""
    made: dict[PairKey, bool] = {}
    taken: set[str] = set()
    for key, (of, keeps) in found.kinds.items():
        if of in kinds and not taken.intersection(key[:2]):
            made[key] = keeps
            taken |= set(key[:2])
    entries = {name: _replaced(graph, found.pairs[name], made) for name, graph in program.entries.items()}
    return replace(program, entries=entries)


def _replaced(graph: Graph, pairs: Mapping[PairKey, Pair], made: Mapping[PairKey, bool]) -> Graph:
    own = {key: pair for key, pair in pairs.items() if key in made}
    if not own:
        return graph
    chains = {pair.first.name: pair.chained(made[key]) for key, pair in own.items()}
    gone = {pair.then.name for pair in own.values()}
    between = {pair.value for key, pair in own.items() if not made[key]}
    nodes = tuple(chains.get(node.name) or node for node in graph.nodes if node.name not in gone)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in between}
    return verify_graph(replace(graph, nodes=nodes, types=types))
