"""Lets an SGD step on a dense layer compute the gradient below it on the way: the weight is read once for both.

The bits are the same: each column's sum keeps its order, and reads the weight before the step.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_outer import renamed

FEWEST_COLUMNS = 64
"""Cores share the columns of the fused pass, eight at a time; with fewer, two passes keep more of them busy."""


@dataclass(frozen=True)
class FuseDenseGrad:
    """A program pass, behind FuseOuterProduct: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    """OuterSGD takes over the product of the same gradient with the same weight, in the place of that product."""
    nodes: list[Node | None] = list(graph.nodes)
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(i)
    for end, step in enumerate(graph.nodes):
        if step.op != "OuterSGD" or graph.types[step.inputs[2]].shape[1] < FEWEST_COLUMNS:
            continue
        gradient, sample, weight, rate = step.inputs
        before = bisect_left(readers[weight], end) - 1
        below = nodes[readers[weight][before]] if before >= 0 else None
        if below is not None and is_gradient_below(graph, below, step):
            nodes[readers[weight][before]] = Node(
                renamed(step, "DenseGradSGD"),
                "DenseGradSGD",
                (gradient, sample, weight, rate),
                (step.outputs[0], below.outputs[0]),
                {"relu": int(below.op == "GemmReluGrad")},
            )
            nodes[end] = None
    kept = tuple(node for node in nodes if node is not None)
    return graph if len(kept) == len(graph.nodes) else verify_graph(replace(graph, nodes=kept))


def is_gradient_below(graph: Graph, node: Node, step: Node) -> bool:
    """A plain product of one row with the weight as it is stored, perhaps in front of the Relu that made the sample."""
    gradient, sample, weight, _ = step.inputs
    return (
        (node.op, node.inputs) in (("Gemm", (gradient, weight)), ("GemmReluGrad", (gradient, weight, sample)))
        and graph.types[gradient].shape[0] == 1
        and not node.attributes.get("transA", 0)
        and not node.attributes.get("transB", 0)
        and node.attributes.get("alpha", 1.0) == 1.0
    )
