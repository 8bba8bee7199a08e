"""Where: y = condition ? a : b, of any element type."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_nest, broadcast_shapes
from tilegrad.ops._pointwise import broadcast_in_place
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


class Where(Operator):
    name = "Where"
    nondifferentiable_inputs = (0,)

    def example(self, draw: Draw) -> Example:
        full = (*(draw.between(1, 12) for _ in range(draw.one_of(0, 1, 2))), draw.between(1, 200))
        condition, one, other = (tuple(1 if draw.is_so(0.3) else extent for extent in full) for _ in range(3))
        dtype = draw.dtype()
        return Example((TensorType(DType.BOOL, condition), TensorType(dtype, one), TensorType(dtype, other)))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        node.expect_dtype(0, DType.BOOL)
        dtype = node.input(1).dtype
        node.expect_dtype(2, dtype)
        shape = broadcast_shapes(node, *(node.input(position).shape for position in range(3)))
        return (TensorType(dtype, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        out = node.output()
        inputs = [(name, node.input(position).shape) for position, name in enumerate(node.inputs)]
        kernel = f"where_b{out.dtype.size_bytes}"
        return (broadcast_nest(node, kernel, inputs, (node.outputs[0], out.shape), always_broadcast=True),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return broadcast_in_place(node)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        zero = build.constant(0.0)
        result: list[str | None] = [None, None, None]
        for position, branches in ((1, [upstream[0], zero]), (2, [zero, upstream[0]])):
            if wanted[position]:
                (part,) = build.emit("Where", [node.inputs[0], *branches])
                result[position] = build.sum_to(part, node.input(position).shape)
        return result
