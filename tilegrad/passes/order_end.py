"""Ends a step with the updates that move least: the results of a large one can leave while smaller ones compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops import registry


@dataclass(frozen=True)
class OrderEnd:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_ordered(program.entries["step"]))


def _ordered(graph: Graph) -> Graph:
    """The last nodes that nobody reads, largest first, behind the views that they read."""
    read = {name for node in graph.nodes for name in node.inputs}
    views: list[Node] = []
    leaves: list[Node] = []
    for node in reversed(graph.nodes):
        if registry.get(node.op).is_view:
            views.insert(0, node)
        elif not read & set(node.outputs):
            leaves.insert(0, node)
        else:
            break
    before = graph.nodes[: len(graph.nodes) - len(views) - len(leaves)]
    nodes = (*before, *views, *sorted(leaves, key=lambda node: -_size_bytes(graph, node)))
    if nodes == graph.nodes or not _are_independent(graph, leaves):
        return graph
    return verify_graph(replace(graph, nodes=nodes))


def _size_bytes(graph: Graph, node: Node) -> int:
    return sum(graph.types[name].size_bytes for name in (*node.inputs, *node.outputs) if name)


def _are_independent(graph: Graph, nodes: Sequence[Node]) -> bool:
    """That none reads state which another one is to overwrite."""
    targets = dict(graph.writes)
    for node in nodes:
        written = {targets[name] for name in node.outputs if name in targets}
        if any(written & set(other.inputs) for other in nodes if other is not node):
            return False
    return True
