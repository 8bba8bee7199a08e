"""The gradient of a BatchNormalization with constant statistics where gradients of two branches meet behind a Relu.

A pass makes this operator (fuse_frozen_grad). The bits are those of Add, ReluGrad and FrozenBatchNormalizationGrad for
images of more than one element; for others that one sums over the samples first, and the pass leaves it alone.
"""

from __future__ import annotations

from math import prod

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._normalize import Layout, expect_channels, expect_image
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class FrozenAddReluGrad(Operator):
    """(A, B, Y, X, scale, mean, inverse deviation) -> (dX, dscale, dbias, D?), where D is ReluGrad(A + B, Y), and the
    others are what FrozenBatchNormalizationGrad makes of D."""

    name = "FrozenAddReluGrad"

    def example(self, draw: Draw) -> Example:
        shape = draw.image()
        inputs = floats(*(shape,) * 4, *((shape[1],),) * 3)
        return Example(inputs, outputs=(True, True, True, draw.is_so()))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(7)
        expect_image(node, 0)
        for position, what in ((1, "second gradient"), (2, "Relu's output"), (3, "forward input")):
            node.expect_dtype(position, DType.F32)
            node.expect_shape(position, node.input(0).shape, what)
        expect_channels(node, 0, (4, "scale"), (5, "running mean"), (6, "inverse deviation"))
        channels = TensorType(DType.F32, (node.input(0).shape[1],))
        return (node.input(0), channels, channels, node.input(0))

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        """The samples' sums, where they are to be summed in turn."""
        samples, channels = node.input(0).shape[:2]
        return () if samples == 1 else (TensorType(DType.F32, (samples, channels)),) * 2

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        samples, channels, *plane = node.input(0).shape
        shape = (samples, channels, prod(plane))
        index = (along("o"), along("g"), along("s"))
        dscale, dbias = node.outputs[1:3]
        dot, total = (dscale, dbias) if samples == 1 else (node.temporary(0), node.temporary(1))
        operands = (
            *(
                Operand(name, value, Access.READ, shape, index)
                for name, value in zip("abyx", node.inputs, strict=False)
            ),
            *(
                Operand(name, value, Access.READ, (channels,), index[1:2])
                for name, value in zip(("scale", "mean", "spread"), node.inputs[4:], strict=True)
            ),
            Operand("dx", node.outputs[0], Access.WRITE, shape, index),
            Operand("sum", total, Access.WRITE, shape[:2], index[:2]),
            Operand("dot", dot, Access.WRITE, shape[:2], index[:2]),
            Operand("kept", node.output_name(3), Access.WRITE, shape, index),
        )
        axes = (Axis("o", samples), Axis("g", channels), Axis("s", shape[2], AxisKind.REDUCTION))
        nest = Nest("frozen_add_relu_grad", axes, operands)
        if samples == 1:
            return (nest,)
        layout = Layout("frozen_add_relu_grad", samples, channels, 1, shape[2], False, 0.0)
        return nest, layout.parameters(total, dot, dscale, dbias)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return tuple((output, position) for output in (0, 3) for position in range(4))
