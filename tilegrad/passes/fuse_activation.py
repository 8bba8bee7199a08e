"""A Relu that alone reads a frozen BatchNormalization becomes part of it: one pass over the data, forward and backward.

It runs before differentiation, so the gradient is that of the fused operator. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.verify import verify_graph


@dataclass(frozen=True)
class FuseActivation:
    """A graph pass: valid in, valid out."""

    def apply(self, graph: Graph) -> Graph:
        producers, consumers = graph.producers(), graph.consumers()
        swallowed: dict[str, Node] = {}
        for node in graph.nodes:
            norm = producers.get(node.inputs[0]) if node.op == "Relu" else None
            if norm is None or norm.op != "FrozenBatchNormalization" or norm.outputs[0] in graph.outputs:
                continue
            if len(consumers[norm.outputs[0]]) == 1:
                swallowed[norm.name] = node
        if not swallowed:
            return graph
        gone = {relu.name for relu in swallowed.values()}
        nodes = tuple(_with_relu(node, swallowed.get(node.name)) for node in graph.nodes if node.name not in gone)
        between = {relu.inputs[0] for relu in swallowed.values()}
        types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in between}
        return verify_graph(replace(graph, nodes=nodes, types=types))


def _with_relu(norm: Node, relu: Node | None) -> Node:
    if relu is None:
        return norm
    return replace(norm, outputs=relu.outputs, attributes={**norm.attributes, "relu": 1})
