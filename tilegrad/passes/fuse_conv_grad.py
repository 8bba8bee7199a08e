"""Lets an SGD step on a convolution's weight compute the gradient: it never goes to a farther memory and back.

The bits are the same: each sum keeps its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops._convolution import SINGLE_CHANNELS
from tilegrad.ops.base import NodeView
from tilegrad.ops.conv import conv_geometry
from tilegrad.ops.conv_grad_sgd import has_three_columns
from tilegrad.passes.fuse_outer import renamed

MOST_POSITIONS = 512
"""Of a channel's images and maps together: a tile has whole ones, and has to fit everywhere."""


@dataclass(frozen=True)
class FuseConvGrad:
    """A program pass, behind FuseUpdate: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    gradients = {node.outputs[1]: node for node in graph.nodes if node.op == "ConvGrad" and any(node.outputs[1:2])}
    for name in [*graph.outputs, *(value for value, _ in graph.writes)]:
        gradients.pop(name, None)
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    swallowed: set[str] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        made = _swallowing(graph, node, gradients) if node.op == "SGD" and readers[node.inputs[1]] == 1 else None
        if made is not None:
            swallowed.add(node.inputs[1])
        nodes.append(made or node)
    if not swallowed:
        return graph
    kept = tuple(left for node in nodes if (left := _without(node, swallowed)) is not None)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in swallowed}
    return verify_graph(replace(graph, nodes=kept, types=types))


def _swallowing(graph: Graph, step: Node, gradients: Mapping[str, Node]) -> Node | None:
    """The node that takes what the gradient is made of in place of it; None if it cannot, or had better not."""
    weight, gradient, rate = step.inputs
    made = gradients.get(gradient)
    if made is None or step.attributes.get("weight_decay", 0.0) or not _pays(graph, made):
        return None
    dy, x, _ = made.inputs
    name = renamed(step, "ConvGradSGD")
    return Node(name, "ConvGradSGD", (dy, x, weight, rate), step.outputs, made.attributes)


def _pays(graph: Graph, gradient: Node) -> bool:
    """A large weight for small images: it is what moves, and whole images leave room for it."""
    conv = conv_geometry(NodeView(gradient, graph.types, graph.constants), 1, 2)
    dy, x, weight = (graph.types[name].size for name in gradient.inputs)
    return (
        has_three_columns(conv)
        and conv.map_channels > SINGLE_CHANNELS
        and weight >= dy + x
        and conv.batch * (prod(conv.image) + prod(conv.map)) <= MOST_POSITIONS
    )


def _without(node: Node, swallowed: set[str]) -> Node | None:
    """The node without outputs that nobody needs; None if these were all."""
    if not swallowed.intersection(node.outputs):
        return node
    outputs = tuple("" if name in swallowed else name for name in node.outputs)
    return replace(node, outputs=outputs) if any(outputs) else None
