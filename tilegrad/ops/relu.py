"""Relu and its gradient (ONNX Runtime's ReluGrad, which reads the output)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class Relu(Operator):
    name = "Relu"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (map_nest("relu", node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def goes_on_from(self, node: NodeView) -> tuple[int, ...]:
        return (0,)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("ReluGrad", [upstream[0], node.outputs[0]])


class ReluGrad(Operator):
    """(dY, Y) -> dX."""

    name = "ReluGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward output")
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        reads = [("dy", node.inputs[0]), ("y", node.inputs[1])]
        return (map_nest("relu_grad", node.output().size, reads, [("dx", node.outputs[0])]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))

    def goes_on_from(self, node: NodeView) -> tuple[int, ...]:
        return (0,)
