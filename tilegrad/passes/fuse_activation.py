"""A Relu that alone reads a frozen BatchNormalization, a Gemm or an Add becomes part of it, and its gradient part of
the Gemm or Add that makes what this reads: one pass over the data. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_pairs import fuse_pairs


@dataclass(frozen=True)
class FuseActivation:
    """A graph pass, before differentiation, which so has the fused operator to differentiate: valid in, valid out."""

    def apply(self, graph: Graph) -> Graph:
        return fuse_pairs(graph, "Relu", partial(_with_relu, graph))


@dataclass(frozen=True)
class FuseActivationGrad:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        step = program.entries["step"]
        return program.with_step(fuse_pairs(step, "ReluGrad", partial(_with_relu_grad, step)))


def _with_relu(graph: Graph, layer: Node, relu: Node) -> Node | None:
    if layer.op == "FrozenBatchNormalization":
        return replace(layer, outputs=relu.outputs, attributes={**layer.attributes, "relu": 1})
    if _is_plain_sum(graph, layer):
        return replace(layer, op="AddRelu", outputs=relu.outputs)
    return replace(layer, op="GemmRelu", outputs=relu.outputs) if layer.op == "Gemm" else None


def _with_relu_grad(graph: Graph, layer: Node, relu: Node) -> Node | None:
    """The Relu's output comes from the forward pass: it is there where the product or sum is made."""
    if layer.op == "Gemm" and len(layer.inputs) == 2:
        fused = "GemmReluGrad"
    elif _is_plain_sum(graph, layer):
        fused = "AddReluGrad"
    else:
        return None
    return replace(layer, op=fused, inputs=(*layer.inputs, relu.inputs[1]), outputs=relu.outputs)


def _is_plain_sum(graph: Graph, node: Node) -> bool:
    """Of two values of one shape: nothing is broadcast."""
    return node.op == "Add" and graph.types[node.inputs[0]].shape == graph.types[node.inputs[1]].shape
