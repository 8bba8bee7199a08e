"""GlobalAveragePool, over any number of spatial dimensions, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.ir.nest import Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pooling import check_global, global_nest, global_output, original_shape
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class GlobalAveragePool(Operator):
    name = "GlobalAveragePool"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        check_global(node)
        return (global_output(node),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (global_nest("global_average_pool", node),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        attributes = {"shape": node.input(0).shape}
        return build.emit("GlobalAveragePoolGrad", [upstream[0]], attributes, hint=f"{node.inputs[0]}_grad")


class GlobalAveragePoolGrad(Operator):
    """(dY) -> dX; the attribute `shape` is X's."""

    name = "GlobalAveragePoolGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        shape = original_shape(node)
        node.expect_shape(0, (*shape[:2], *(1,) * (len(shape) - 2)), "gradient of Y")
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        shape = original_shape(node)
        planes, positions = shape[0] * shape[1], prod(shape[2:])
        return (
            Nest(
                "global_average_pool_grad",
                (Axis("c", planes), Axis("p", positions)),
                (
                    Operand("dy", node.inputs[0], Access.READ, (planes,), (along("c"),)),
                    Operand("dx", node.outputs[0], Access.WRITE, (planes, positions), (along("c"), along("p"))),
                ),
            ),
        )
