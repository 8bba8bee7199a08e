"""ConvGradSGD: (dY, X, W, lr) -> W', the weight gradient of a convolution and the SGD step along it.

Fused, the gradient never leaves the registers it is summed in, and the weight is brought to the cores once. Windows are
three columns wide, as most are. Sums are whole in every tile. The bits are those of ConvGrad followed by SGD.
"""

from __future__ import annotations

from dataclasses import replace

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import FIXED, Access, AxisKind, Nest, Operand
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._convolution import Convolution
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.conv import conv_geometry, map_type
from tilegrad.ops.example import Draw, Example, floats


def has_three_columns(conv: Convolution) -> bool:
    """Windows that the kernel is for."""
    return conv.window.kernel[1] == 3 and conv.window.dilation[1] == 1 and conv.window.stride[1] <= 2


class ConvGradSGD(Operator):
    name = "ConvGradSGD"

    def example(self, draw: Draw) -> Example:
        rows, stride, pad = draw.one_of(1, 2, 3, 3, 3, 3), draw.one_of(1, 1, 1, 2), draw.one_of(0, 1, 1)
        groups, outs, channels = draw.one_of(1, 1, 1, 2), draw.between(1, 32), draw.between(1, 32)
        image = draw.between(3, 34), draw.one_of(4, 8, 16, 32, draw.between(3, 34)) * stride + 2 - 2 * pad
        positions = tuple((image[d] + 2 * pad - (rows, 3)[d]) // stride + 1 for d in (0, 1))
        batch = draw.one_of(1, 1, 1, 2)
        dy, x = (batch, groups * outs, *positions), (batch, groups * channels, *image)
        attributes: dict[str, Attribute] = {"strides": (stride,) * 2, "group": groups, "pads": (pad,) * 4}
        return Example(floats(dy, x, (groups * outs, channels, rows, 3), ()), attributes)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        conv = conv_geometry(node, 1, 2)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, map_type(conv, node.input(1).rank).shape, "gradient of Y")
        expect_one_element(node, 3, DType.F32, "learning rate")
        if not has_three_columns(conv):
            raise node.error(
                "ConvGradSGD: the window is none that it is for",
                expected="three columns, dilation 1 and stride 1 or 2 along them",
                got=f"{conv.window.kernel[1]}, dilation {conv.window.dilation[1]}, stride {conv.window.stride[1]}",
            )
        return (node.input(2),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        dy, x, w, lr = node.inputs
        conv = conv_geometry(node, 1, 2)
        gradient = conv.weight_nest(x, dy, w)
        axes = tuple(
            replace(axis, kind=AxisKind.INNER) if axis.kind is AxisKind.REDUCTION else axis for axis in gradient.axes
        )
        operands = (
            *gradient.operands[:2],
            conv.weight("w", w, Access.READ),
            Operand("lr", lr, Access.READ, (1,), (FIXED,)),
            conv.weight("y", node.outputs[0], Access.WRITE),
        )
        return (replace(gradient, kernel="conv_grad_sgd", axes=axes, operands=operands),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2),)
