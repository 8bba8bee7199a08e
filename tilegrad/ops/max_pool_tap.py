"""Where each maximum of a MaxPool was, in one byte, and the gradient from that.

Where saved values are rounded (passes/store.py), MaxPoolGrad would find other maxima among them: equal ones that were
not. The bits are those of MaxPoolGrad on values that are not rounded.
"""

from __future__ import annotations

from math import prod

from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, Nest, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pooling import Pooling, check_image, original_shape, pooling, pooling_example
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example

MOST_TAPS = 256


def _expect_few_taps(node: NodeView, pool: Pooling) -> None:
    if prod(pool.window.kernel) > MOST_TAPS:
        raise node.error(
            f"{node.node.op}: the window has too many taps",
            expected=f"at most {MOST_TAPS}",
            got=str(prod(pool.window.kernel)),
        )


def _drawn(draw: Draw) -> tuple[Example, Pooling]:
    """A random image with a window, and the pooling that they are."""
    image = pooling_example(draw, DType.F32)
    (x,) = (each for each in image.inputs if each is not None)
    return image, pooling(NodeView(Node("", "MaxPool", ("x",), ("y",), image.attributes), {"x": x}), x.shape)


class MaxPoolTap(Operator):
    """(X, Y) -> tap, a byte for each element of Y."""

    name = "MaxPoolTap"

    def example(self, draw: Draw) -> Example:
        image, pool = _drawn(draw)
        return Example((*image.inputs, pool.output(DType.F32)), image.attributes)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        for position in range(2):
            node.expect_dtype(position, DType.F32)
        check_image(node, 0)
        pool = pooling(node, node.input(0).shape)
        _expect_few_taps(node, pool)
        node.expect_shape(1, pool.output(DType.F32).shape, "forward output")
        return (pool.output(DType.U8),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, node.input(0).shape)
        place = (along("oh"), along("ow"))
        operands = (
            pool.windows("x", node.inputs[0]),
            pool.map_operand("y", node.inputs[1], Access.READ, *place),
            pool.map_operand("tap", node.outputs[0], Access.WRITE, *place),
        )
        return (Nest("max_pool_tap", pool.axes("o"), operands, pool.window.constants()),)


class MaxPoolTapGrad(Operator):
    """(dY, tap) -> dX; the attribute `shape` is that of X."""

    name = "MaxPoolTapGrad"

    def example(self, draw: Draw) -> Example:
        image, pool = _drawn(draw)
        return Example((pool.output(DType.F32), pool.output(DType.U8)), {**image.attributes, "shape": pool.shape})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.U8)
        pool = pooling(node, original_shape(node))
        _expect_few_taps(node, pool)
        for position, what in enumerate(("gradient of Y", "taps")):
            node.expect_shape(position, pool.output(DType.F32).shape, what)
        return (TensorType(DType.F32, pool.shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, original_shape(node))
        operands = (
            pool.gathered("dy", node.inputs[0]),
            pool.gathered("tap", node.inputs[1]),
            pool.image_operand("dx", node.outputs[0], Access.WRITE, along("ih"), along("iw")),
        )
        return (Nest("max_pool_tap_grad", pool.axes("i"), operands, pool.window.constants()),)
