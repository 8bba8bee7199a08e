"""Gemm: Y = alpha * A' B' + beta * C, with A' and B' optionally transposed; with a Relu or its gradient behind it.

Its gradients are Gemms again (and a sum over rows for C), so there is no GemmGrad. Passes make GemmRelu and
GemmReluGrad; their bits are those of two operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_shapes
from tilegrad.ops._pointwise import float_attribute
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


def matrix_operand(name: str, value: str, rows: tuple[str, int], columns: tuple[str, int], transposed: bool) -> Operand:
    """A matrix seen as (rows, columns), each (axis, extent); stored transposed if asked."""
    first, second = (columns, rows) if transposed else (rows, columns)
    return Operand(name, value, Access.READ, (first[1], second[1]), (along(first[0]), along(second[0])))


class _Activation(IntEnum):
    """What becomes of the sums, as runtime/tg_gemm_args.h has it."""

    LINEAR = 0
    RELU = 1
    RELU_GRAD = 2


class Gemm(Operator):
    name = "Gemm"
    parameter_inputs: ClassVar[tuple[int, ...]] = (0, 1, 2)
    goes_on_with = (0,)
    activation = _Activation.LINEAR

    def example(self, draw: Draw) -> Example:
        m, k, n = (1 if draw.is_so(0.2) else draw.between(1, high) for high in (96, 200, 96))
        trans_a, trans_b = draw.one_of(0, 1), draw.one_of(0, 1)
        shapes = ((k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n))
        third = ((m, n),) if self.name == "GemmReluGrad" else ((n,),) if draw.is_so() else ()
        return Example(floats(*shapes, *third), {"transA": trans_a, "transB": trans_b})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2, 3)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        a, b = node.input(0), node.input(1)
        if a.rank != 2 or b.rank != 2:
            raise node.error(
                "Gemm takes two matrices", expected="rank 2 and 2", got=f"{list(a.shape)} and {list(b.shape)}"
            )
        m, k = a.shape[::-1] if node.attribute("transA", 0) else a.shape
        k_of_b, n = b.shape[::-1] if node.attribute("transB", 0) else b.shape
        if k != k_of_b:
            raise node.error(
                "Gemm: inner dimensions differ",
                expected=f"B ('{node.inputs[1]}') with {k} rows after transposition",
                got=f"{k_of_b}, from A {list(a.shape)} and B {list(b.shape)}",
                hint="check transA and transB",
            )
        for coefficient in ("alpha", "beta"):
            float_attribute(node, coefficient, 1.0)
        if node.has_input(2):
            node.expect_dtype(2, DType.F32)
            c = node.input(2)
            if c.rank > 2 or broadcast_shapes(node, c.shape, (m, n)) != (m, n):
                raise node.error(
                    f"Gemm: the bias ('{node.inputs[2]}') does not broadcast to the result",
                    expected=str([m, n]),
                    got=str(list(c.shape)),
                )
        return (TensorType(DType.F32, (m, n)),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        m, n = node.output().shape
        trans_a, trans_b = bool(node.attribute("transA", 0)), bool(node.attribute("transB", 0))
        k = node.input(0).shape[0 if trans_a else 1]
        bias = Operand("c", None, Access.READ)
        if node.has_input(2):
            shape = (1, 1, *node.input(2).shape)[-2:]
            index: tuple[Index, ...] = tuple(
                along(axis) if extent != 1 else FIXED for axis, extent in zip("mn", shape, strict=True)
            )
            bias = Operand("c", node.inputs[2], Access.READ, shape, index)
        variant = f"gemm_{'t' if trans_a else 'n'}{'t' if trans_b else 'n'}"
        return (
            Nest(
                variant,
                (Axis("m", m), Axis("n", n), Axis("k", k, AxisKind.REDUCTION)),
                (
                    matrix_operand("a", node.inputs[0], ("m", m), ("k", k), trans_a),
                    matrix_operand("b", node.inputs[1], ("k", k), ("n", n), trans_b),
                    bias,
                    Operand("y", node.outputs[0], Access.WRITE, (m, n), (along("m"), along("n"))),
                ),
                {
                    "alpha": float(node.attribute("alpha", 1.0)),
                    "beta": float(node.attribute("beta", 1.0)),
                    "activation": int(self.activation),
                },
                counts_macs=True,
            ),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        a, b = node.inputs[:2]
        dy = upstream[0]
        trans_a, trans_b = node.attribute("transA", 0), node.attribute("transB", 0)
        alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
        da = db = dc = None
        if wanted[0]:
            left, right, flags = (b, dy, (trans_b, 1)) if trans_a else (dy, b, (0, 1 - trans_b))
            attributes = {"transA": flags[0], "transB": flags[1], "alpha": alpha}
            (da,) = build.emit("Gemm", [left, right], attributes, hint=f"{a}_grad")
        if wanted[1]:
            left, right, flags = (dy, a, (1, trans_a)) if trans_b else (a, dy, (1 - trans_a, 0))
            attributes = {"transA": flags[0], "transB": flags[1], "alpha": alpha}
            (db,) = build.emit("Gemm", [left, right], attributes, hint=f"{b}_grad")
        if len(wanted) > 2 and wanted[2]:
            assert dy is not None
            dc = build.sum_to(dy, node.input(2).shape)
            if beta != 1.0:
                (dc,) = build.emit("Mul", [dc, build.constant(beta)])
        return (da, db, dc)


class GemmRelu(Gemm):
    """Relu of Gemm."""

    name = "GemmRelu"
    activation = _Activation.RELU

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return super().gradient(node, build.emit("ReluGrad", [upstream[0], node.outputs[0]]), wanted, build)


class GemmReluGrad(Gemm):
    """(A, B, Y) -> ReluGrad(alpha * A' B', Y), where Y is the output of the Relu."""

    name = "GemmReluGrad"
    parameter_inputs = ()
    activation = _Activation.RELU_GRAD

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        (product,) = super().infer(node)
        node.expect_shape(2, product.shape, "Relu's output")
        return (product,)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return Operator.gradient(self, node, upstream, wanted, build)
