"""Puts an SGD step on the weight of a product behind the next node of the backward pass.

A step moves more than it computes. Right behind the product that makes its gradient it waits for the last of that; a
node later, all of it is in L2, and what the node reads has not made way for it. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops import registry

_PRODUCTS = ("Gemm", "FusedMatMul", "MatMul")
_UPDATES = ("SGD", "SGDGroup")
FEWEST_ELEMENTS = 4096
"""Of a weight whose step moves for long."""


@dataclass(frozen=True)
class OrderUpdates:
    """A program pass, behind those that group updates and fuse them: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_ordered(program.entries["step"]))


def _ordered(graph: Graph) -> Graph:
    """Steps keep their order; one whose weight is read behind it stays before that."""
    gradients = _only_updated_along(graph)
    nodes: list[Node] = []
    waiting: list[Node] = []
    for node in graph.nodes:
        if node.op == "SGD" and node.inputs[1] in gradients:
            waiting.append(node)
            continue
        if any({step.inputs[0], *step.outputs} & set(node.inputs) for step in waiting):
            nodes += waiting
            waiting = []
        nodes.append(node)
        if node.op not in _UPDATES and not registry.get(node.op).is_view and not gradients & set(node.outputs):
            nodes += waiting
            waiting = []
    ordered = (*nodes, *waiting)
    return graph if ordered == graph.nodes else verify_graph(replace(graph, nodes=ordered))


def _only_updated_along(graph: Graph) -> set[str]:
    """Results of products that only updates read."""
    consumers = graph.consumers()
    kept = {*graph.outputs, *(value for value, _ in graph.writes)}
    found = set()
    for node in graph.nodes:
        readers = consumers.get(node.outputs[0], []) if node.op in _PRODUCTS else []
        is_long = bool(readers) and graph.types[node.outputs[0]].size >= FEWEST_ELEMENTS
        if is_long and node.outputs[0] not in kept and all(reader.op in _UPDATES for reader in readers):
            found.add(node.outputs[0])
    return found
