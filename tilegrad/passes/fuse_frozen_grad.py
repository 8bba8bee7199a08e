"""Lets the gradient of a frozen BatchNormalization sum what it begins with, where two branches meet behind a Relu.

The sum, the Relu's mask and the normalisation each move more than they compute; as one pass they read what the three
read, and write the masked sum only where others read it. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program

_NORM_GRAD = "FrozenBatchNormalizationGrad"


@dataclass(frozen=True)
class FuseFrozenGrad:
    """A program pass, behind FuseActivationGrad: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    """The fused operator stands in the place of the sum: what else it reads comes from the forward pass."""
    producers, consumers = graph.producers(), graph.consumers()
    outside = {*graph.outputs, *(value for value, _ in graph.writes)}
    made: dict[str, Node] = {}
    gone: set[str] = set()
    between: set[str] = set()
    for node in graph.nodes:
        total = producers.get(node.inputs[0]) if _is_whole(graph, node) else None
        if total is None or total.name in made:
            continue
        masked = total.outputs[0]
        is_read_elsewhere = len(consumers[masked]) > 1 or masked in outside
        sources = _sources(graph, total, node, is_read_elsewhere)
        if sources is None:
            continue
        _, scale, x, mean, inverse = node.inputs[:5]
        made[total.name] = Node(
            node.name,
            "FrozenAddReluGrad",
            (*sources, x, scale, mean, inverse),
            (*node.outputs, masked if is_read_elsewhere else ""),
        )
        gone.add(node.name)
        between.update(() if is_read_elsewhere else (masked,))
    if not made:
        return graph
    nodes = tuple(made.get(node.name, node) for node in graph.nodes if node.name not in gone)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in between}
    return verify_graph(replace(graph, nodes=nodes, types=types))


def _is_whole(graph: Graph, node: Node) -> bool:
    """A normalisation's gradient of all that it can have, over images of more than one element: sums over one are in
    another order, with other bits."""
    return (
        node.op == _NORM_GRAD
        and len(node.outputs) == 3
        and all(node.outputs)
        and graph.types[node.inputs[0]].size > graph.types[node.inputs[0]].shape[0] * graph.types[node.inputs[1]].size
    )


def _sources(graph: Graph, total: Node, norm: Node, is_read_elsewhere: bool) -> tuple[str, ...] | None:
    """(A, B, Y) of the masked sum that the gradient begins with, whether the Relu is in front of it or its own."""
    own_relu = norm.inputs[5] if len(norm.inputs) > 5 else ""
    if total.op == "AddReluGrad":
        return None if own_relu else total.inputs
    a_type, *others = (graph.types[name] for name in total.inputs)
    if total.op == "Add" and own_relu and not is_read_elsewhere and others == [a_type]:
        return (*total.inputs, own_relu)
    return None
