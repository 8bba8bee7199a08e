"""GlobalMaxPool, over any number of spatial dimensions, and its gradient, which goes to a plane's first maximum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pooling import check_global, global_nest, global_output
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class GlobalMaxPool(Operator):
    name = "GlobalMaxPool"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        check_global(node)
        return (global_output(node),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (global_nest("global_max_pool", node),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("GlobalMaxPoolGrad", [upstream[0], node.inputs[0]])


class GlobalMaxPoolGrad(Operator):
    """(dY, X) -> dX. A plane is searched whole: whether a maximum is the first depends on all before it."""

    name = "GlobalMaxPoolGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        check_global(node, 1)
        node.expect_dtype(0, DType.F32)
        x = node.input(1)
        node.expect_shape(0, (*x.shape[:2], *(1,) * (x.rank - 2)), "gradient of Y")
        return (x,)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        shape = node.input(1).shape
        planes, positions = shape[0] * shape[1], prod(shape[2:])
        index = (along("c"), along("p"))
        return (
            Nest(
                "global_max_pool_grad",
                (Axis("c", planes), Axis("p", positions, AxisKind.INNER)),
                (
                    Operand("dy", node.inputs[0], Access.READ, (planes,), (along("c"),)),
                    Operand("x", node.inputs[1], Access.READ, (planes, positions), index),
                    Operand("dx", node.outputs[0], Access.WRITE, (planes, positions), index),
                ),
            ),
        )
