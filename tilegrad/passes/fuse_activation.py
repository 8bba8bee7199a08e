"""A Relu that alone reads a frozen BatchNormalization or a Gemm becomes part of it, and its gradient part of the Gemm
that makes what this reads: one pass over the data. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_pairs import fuse_pairs


@dataclass(frozen=True)
class FuseActivation:
    """A graph pass, before differentiation, which so has the fused operator to differentiate: valid in, valid out."""

    def apply(self, graph: Graph) -> Graph:
        return fuse_pairs(graph, "Relu", _with_relu)


@dataclass(frozen=True)
class FuseActivationGrad:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(fuse_pairs(program.entries["step"], "ReluGrad", _with_relu_grad))


def _with_relu(layer: Node, relu: Node) -> Node | None:
    if layer.op == "FrozenBatchNormalization":
        return replace(layer, outputs=relu.outputs, attributes={**layer.attributes, "relu": 1})
    return replace(layer, op="GemmRelu", outputs=relu.outputs) if layer.op == "Gemm" else None


def _with_relu_grad(product: Node, relu: Node) -> Node | None:
    """The Relu's output comes from the forward pass: it is there where the product is made."""
    if product.op != "Gemm" or len(product.inputs) != 2:
        return None
    return replace(product, op="GemmReluGrad", inputs=(*product.inputs, relu.inputs[1]), outputs=relu.outputs)
