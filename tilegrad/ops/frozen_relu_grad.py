"""The gradient of a Relu behind a BatchNormalization with constant statistics, from what was normalised.

Where memory is short (fit/recompute.py) the Relu's output need not be kept or made again: its sign follows from the
normalisation's input. The bits are those of ReluGrad.
"""

from __future__ import annotations

from math import prod

from tilegrad.ir.nest import Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._normalize import expect_channels, expect_image
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class FrozenReluGrad(Operator):
    """(dY, X, scale, B, mean, inverse deviation) -> dY where (X - mean) inverse scale + B is above 0, else 0."""

    name = "FrozenReluGrad"

    def example(self, draw: Draw) -> Example:
        shape = draw.image()
        return Example(floats(shape, shape, *((shape[1],),) * 4))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(6)
        expect_image(node, 0)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, node.input(0).shape, "what was normalised")
        expect_channels(node, 0, (2, "scale"), (3, "bias"), (4, "running mean"), (5, "inverse deviation"))
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        samples, channels, *plane = node.input(0).shape
        shape = (samples, channels, prod(plane))
        index = (along("o"), along("g"), along("s"))

        def data(name: str, value: str, access: Access = Access.READ) -> Operand:
            return Operand(name, value, access, shape, index)

        names = ("scale", "bias", "mean", "spread")
        per_channel = (
            Operand(name, value, Access.READ, (channels,), (along("g"),))
            for name, value in zip(names, node.inputs[2:], strict=True)
        )
        operands = (
            data("dy", node.inputs[0]),
            data("x", node.inputs[1]),
            *per_channel,
            data("d", node.outputs[0], Access.WRITE),
        )
        axes = tuple(Axis(name, size) for name, size in zip("ogs", shape, strict=True))
        return (Nest("frozen_relu_grad", axes, operands),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
