"""AveragePool in one and two dimensions and its gradient.

A window's sum is divided by the number of its taps inside the input, or inside the padded input if pads count. The
gradient multiplies by that number's rounded reciprocal.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Access, Nest, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pooling import Pooling, check_image, original_shape, pooling, pooling_example
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


def _constants(node: NodeView, pool: Pooling) -> dict[str, int | float]:
    """The window's, and the positions [low, high) whose taps are counted."""
    pads_count = bool(node.attribute("count_include_pad", 0))
    window = pool.window
    result = window.constants()
    for d, axis in enumerate("hw"):
        result[f"pad_{axis}"] = window.pad_begin[d]
        result[f"low_{axis}"] = -window.pad_begin[d] if pads_count else 0
        result[f"high_{axis}"] = pool.image[d] + (window.pad_end[d] if pads_count else 0)
    return result


class AveragePool(Operator):
    name = "AveragePool"
    summary = "1-D and 2-D"

    def example(self, draw: Draw) -> Example:
        return pooling_example(draw, DType.F32)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        check_image(node, 0)
        return (pooling(node, node.input(0).shape).output(DType.F32),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, node.input(0).shape)
        written = pool.map_operand("y", node.outputs[0], Access.WRITE, along("oh"), along("ow"))
        return (
            Nest("average_pool", pool.axes("o"), (pool.windows("x", node.inputs[0]), written), _constants(node, pool)),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        attributes = {**node.node.attributes, "shape": node.input(0).shape}
        return build.emit("AveragePoolGrad", [upstream[0]], attributes, hint=f"{node.inputs[0]}_grad")


class AveragePoolGrad(Operator):
    """(dY) -> dX; the attribute `shape` is X's."""

    name = "AveragePoolGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        check_image(node, 0, "gradient of Y")
        shape = original_shape(node)
        if len(shape) != node.input(0).rank:
            raise node.error(
                "AveragePoolGrad: the attribute 'shape' has a wrong rank",
                expected=f"that of the gradient of Y, {node.input(0).rank}",
                got=str(list(shape)),
            )
        node.expect_shape(0, pooling(node, shape).output(DType.F32).shape, "gradient of Y")
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, original_shape(node))
        written = pool.image_operand("dx", node.outputs[0], Access.WRITE, along("ih"), along("iw"))
        constants = _constants(node, pool)
        return (Nest("average_pool_grad", pool.axes("i"), (pool.gathered("dy", node.inputs[0]), written), constants),)
