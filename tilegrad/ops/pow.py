"""Pow and its gradients: of the base (PowGrad) and of the exponent (PowExponentGrad)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_nest, broadcast_shapes, type_code
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator, broadcast_in_place
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


class Pow(Operator):
    """Base and exponent may be of different types; the result has the base's."""

    name = "Pow"

    def example(self, draw: Draw) -> Example:
        full = draw.between(1, 12), draw.between(1, 200)
        exponent = draw.one_of((), full, (full[1],))
        base = draw.one_of(DType.F32, DType.F32, DType.I32, DType.I64)
        return Example((TensorType(base, full), TensorType(DType.F32 if draw.is_so(0.8) else base, exponent)))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32, *INTEGERS)
        node.expect_dtype(1, DType.F32, *INTEGERS)
        shape = broadcast_shapes(node, node.input(0).shape, node.input(1).shape)
        return (TensorType(node.input(0).dtype, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        base, exponent = node.input(0), node.input(1)
        out = node.output()
        if base.dtype is exponent.dtype is DType.F32 and exponent.size == 1 and base.size == out.size:
            elements = ((out.size,), (along("i"),))
            operands = (
                Operand("a", node.inputs[0], Access.READ, *elements),
                Operand("b", node.inputs[1], Access.READ, (1,), (FIXED,)),
                Operand("y", node.outputs[0], Access.WRITE, *elements),
            )
            return (Nest("pow_scalar", (Axis("i", out.size),), operands, {"alpha": 0.0, "beta": 0.0}),)
        inputs = [(node.inputs[0], base.shape), (node.inputs[1], exponent.shape)]
        kernel = "pow_broadcast" if base.dtype is exponent.dtype is DType.F32 else "pow_mixed"
        constants = {"type": type_code(base.dtype), "alpha": float(type_code(exponent.dtype))}
        output = (node.outputs[0], out.shape)
        return (broadcast_nest(node, kernel, inputs, output, constants, always_broadcast=True),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return broadcast_in_place(node)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        base, exponent = node.inputs
        result: list[str | None] = [None, None]
        if node.input(1).dtype is not DType.F32:
            (exponent,) = build.emit("Cast", [exponent], {"to": "f32"})
        for position, op in ((0, "PowGrad"), (1, "PowExponentGrad")):
            if wanted[position]:
                (part,) = build.emit(op, [upstream[0], base, exponent])
                result[position] = build.sum_to(part, node.input(position).shape)
        return result


class PowGrad(BroadcastOperator):
    """(dY, base, exponent) -> the base's gradient, not yet summed to its shape."""

    name = "PowGrad"
    kernel = "pow_grad"
    arity = 3
    has_map_kernel = False


class PowExponentGrad(BroadcastOperator):
    """(dY, base, exponent) -> the exponent's gradient, not yet summed to its shape."""

    name = "PowExponentGrad"
    kernel = "pow_exponent_grad"
    arity = 3
    has_map_kernel = False
