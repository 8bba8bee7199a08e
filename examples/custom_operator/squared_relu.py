"""An operator from outside the package: this file, and squared_relu.c beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tilegrad as tg
from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import GradientBuilder, NodeView

KERNELS = Path(__file__).with_name("squared_relu.c")


class SquaredRelu(tg.Operator):
    """The name is the ONNX domain and operator type of the nodes it stands for."""

    name = "com.example.SquaredRelu"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (map_nest("squared_relu", node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("com.example.SquaredReluGrad", [upstream[0], node.inputs[0]])


class SquaredReluGrad(tg.Operator):
    """(dY, X) -> dX, which may take dY's place."""

    name = "com.example.SquaredReluGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward input")
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        reads = [("dy", node.inputs[0]), ("x", node.inputs[1])]
        return (map_nest("squared_relu_grad", node.output().size, reads, [("dx", node.outputs[0])]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))


def register() -> None:
    for operator in (SquaredRelu, SquaredReluGrad):
        tg.register(operator, KERNELS)
