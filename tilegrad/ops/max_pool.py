"""MaxPool in one and two dimensions, with its optional Indices, and its gradient.

The gradient reads X and Y instead of Indices: both are usually kept for other operators anyway, and an index tensor
would be twice the size of Y. Among equal maxima the first of the window gets the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pooling import check_image, pooling, pooling_example
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_SUFFIXES = {DType.F32: "", DType.U8: "_u8", DType.I8: "_i8"}


class MaxPool(Operator):
    name = "MaxPool"
    summary = "1-D and 2-D"

    def example(self, draw: Draw) -> Example:
        return pooling_example(draw, draw.one_of(DType.F32, DType.F32, DType.U8, DType.I8))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, *_SUFFIXES)
        check_image(node, 0)
        if node.attribute("storage_order", 0) not in (0, 1):
            raise node.error("MaxPool: unknown storage_order", expected="0 or 1")
        pool = pooling(node, node.input(0).shape)
        return pool.output(node.input(0).dtype), pool.output(DType.I64)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, node.input(0).shape)
        height, width = pool.image
        rows_first = node.attribute("storage_order", 0) == 0
        constants = {
            **pool.window.constants(),
            "pad_h": pool.window.pad_begin[0],
            "pad_w": pool.window.pad_begin[1],
            "index_by_c": height * width,
            "index_by_h": width if rows_first else 1,
            "index_by_w": 1 if rows_first else height,
        }
        outputs = (("y", node.output_name(0)), ("indices", node.output_name(1)))
        written = (pool.map_operand(name, value, Access.WRITE, along("oh"), along("ow")) for name, value in outputs)
        kernel = "max_pool" + _SUFFIXES[node.input(0).dtype]
        return (Nest(kernel, pool.axes("o"), (pool.windows("x", node.inputs[0]), *written), constants),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        attributes = {name: value for name, value in node.node.attributes.items() if name != "storage_order"}
        return build.emit("MaxPoolGrad", [upstream[0], node.inputs[0], node.outputs[0]], attributes)


class MaxPoolGrad(Operator):
    """(dY, X, Y) -> dX."""

    name = "MaxPoolGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        for position in range(3):
            node.expect_dtype(position, DType.F32)
        check_image(node, 1)
        output = pooling(node, node.input(1).shape).output(DType.F32)
        node.expect_shape(0, output.shape, "gradient of Y")
        node.expect_shape(2, output.shape, "forward output")
        return (node.input(1),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        pool = pooling(node, node.input(1).shape)
        window = pool.window
        # An element is the first maximum of a window if none before it is equal: those lie up to a window above, and
        # up to a window to either side.
        above = Index((("ih", 1), ("kh", window.dilation[0])), -window.reach(0))
        beside = Index((("iw", 1), ("kw", window.dilation[1]), ("jw", -window.dilation[1])))
        return (
            Nest(
                "max_pool_grad",
                (*pool.axes("i"), Axis("jw", window.kernel[1], AxisKind.INNER)),
                (
                    pool.gathered("dy", node.inputs[0]),
                    pool.image_operand("x", node.inputs[1], Access.READ, above, beside),
                    pool.gathered("y", node.inputs[2]),
                    pool.image_operand("dx", node.outputs[0], Access.WRITE, along("ih"), along("iw")),
                ),
                window.constants(),
            ),
        )
