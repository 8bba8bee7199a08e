"""Makes all of the backward pass of a small dense layer on one sample one node: the SGD step of its weight, that of its
bias, and the gradient below them, as far as there are any. So all layers run the same code.

It takes the place of the product that makes that gradient, or of the weight's step. The bits are the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops import registry
from tilegrad.passes.fuse_dense_grad import is_gradient_below
from tilegrad.passes.fuse_outer import renamed
from tilegrad.passes.views import roots_of_views

MOST_COLUMNS = 256
"""A tile has whole rows; wider layers are better off with passes that cut them."""


@dataclass(frozen=True)
class FuseDenseStep:
    """A program pass, behind FuseOuterProduct: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    nodes: list[Node | None] = list(graph.nodes)
    made_at = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(i)
    origins = roots_of_views(graph)
    for end, step in enumerate(graph.nodes):
        if step.op != "OuterSGD" or graph.types[step.inputs[2]].shape[1] > MOST_COLUMNS:
            continue
        gradient, sample, weight, rate = step.inputs
        start = _below(graph, nodes, readers[weight], end)
        below = nodes[start] if start != end else None
        if any(made_at.get(name, -1) >= start for name in step.inputs):
            continue
        at = _bias_step(graph, nodes, origins, step, start)
        bias = nodes[at] if at is not None else None
        if at is not None and bias is not None and all(i < start or i == at for i in readers[bias.inputs[0]]):
            nodes[at] = None
        else:
            bias = None
        nodes[end] = None
        nodes[start] = Node(
            renamed(step, "DenseSGD"),
            "DenseSGD",
            (gradient, sample, weight, bias.inputs[0] if bias else "", rate),
            (step.outputs[0], bias.outputs[0] if bias else "", below.outputs[0] if below else ""),
            {"relu": int(below is not None and below.op == "GemmReluGrad")},
        )
    kept = tuple(node for node in nodes if node is not None)
    return graph if kept == graph.nodes else verify_graph(_without_unread_views(replace(graph, nodes=kept)))


def _without_unread_views(graph: Graph) -> Graph:
    """A bias's gradient was a view of the layer's."""
    read = {name for node in graph.nodes for name in node.inputs} | {name for name, _ in graph.writes}
    read |= set(graph.outputs)
    gone = {node.outputs[0] for node in graph.nodes if registry.get(node.op).is_view} - read
    nodes = tuple(node for node in graph.nodes if node.outputs[0] not in gone)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in gone}
    return replace(graph, nodes=nodes, types=types)


def _below(graph: Graph, nodes: Sequence[Node | None], readers: Sequence[int], end: int) -> int:
    """Where the gradient below a weight's step is made, if nobody reads the weight in between; or that of the step."""
    before = bisect_left(readers, end) - 1
    node = nodes[readers[before]] if before >= 0 else None
    return readers[before] if node is not None and is_gradient_below(graph, node, graph.nodes[end]) else end


def _bias_step(
    graph: Graph, nodes: Sequence[Node | None], origins: Mapping[str, str], step: Node, start: int
) -> int | None:
    """A plain SGD step along the very gradient, at that rate: one sample's is the bias's too."""
    gradient, _, weight, rate = step.inputs
    for i, node in enumerate(nodes):
        if (
            node is not None
            and i > start
            and node.op == "SGD"
            and not node.attributes.get("weight_decay", 0.0)
            and origins.get(node.inputs[1], node.inputs[1]) == origins.get(gradient, gradient)
            and node.inputs[2] == rate
            and graph.types[node.inputs[0]].shape == graph.types[weight].shape[:1]
        ):
            return i
    return None
