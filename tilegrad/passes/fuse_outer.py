"""Lets what uses an outer product compute it: the weight gradient of a dense layer for one sample is never a matrix.

Accumulating it, or an SGD step along it, then reads and writes the result once, not three times. The bits are the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program


@dataclass(frozen=True)
class FuseOuterProduct:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    products = {node.outputs[0]: node for node in graph.nodes if _is_outer_product(graph, node)}
    for name in [*graph.outputs, *(value for value, _ in graph.writes)]:
        products.pop(name, None)
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    swallowed: set[str] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        made = _swallowing(node, products)
        if made is not None and readers[node.inputs[1]] == 1:
            swallowed.add(node.inputs[1])
            nodes.append(made)
        else:
            nodes.append(node)
    if not swallowed:
        return graph
    kept = tuple(node for node in nodes if not swallowed.intersection(node.outputs))
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in swallowed}
    return verify_graph(replace(graph, nodes=kept, types=types))


def _swallowing(node: Node, products: dict[str, Node]) -> Node | None:
    """The node that takes two vectors where this one takes their product as its second input; None if it cannot."""
    product = products.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if product is None:
        return None
    u, v = product.inputs[:2]
    if node.op == "SGD" and not node.attributes.get("weight_decay", 0.0):
        weight, _, rate = node.inputs
        return replace(node, name=renamed(node, "OuterSGD"), op="OuterSGD", inputs=(u, v, weight, rate))
    if node.op == "InPlaceAccumulatorV2" and not node.outputs[0]:
        buffer, _, *flag = node.inputs
        name = renamed(node, "OuterAccumulate")
        return Node(name, "OuterAccumulate", (u, v, buffer, *flag), node.outputs[1:])
    return None


def renamed(node: Node, op: str) -> str:
    """Names end in their operator, perhaps with a number."""
    return node.name.replace(node.op, op) if node.op in node.name else node.name


def _is_outer_product(graph: Graph, node: Node) -> bool:
    if node.op != "Gemm" or len(node.inputs) != 2 or node.attributes.get("alpha", 1.0) != 1.0:
        return False
    return graph.types[node.inputs[0]].shape[0 if node.attributes.get("transA", 0) else 1] == 1
