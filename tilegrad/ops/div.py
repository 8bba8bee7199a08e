"""Div."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Div(BroadcastOperator):
    name = "Div"
    kernel = "div"
    dtypes = (DType.F32, *INTEGERS)
    parameter_inputs = (0, 1)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        """With q = dy / b: da = q, db = -(q * y)."""
        (quotient,) = build.emit("Div", [upstream[0], node.inputs[1]])
        da = db = None
        if wanted[0]:
            da = build.sum_to(quotient, node.input(0).shape)
        if wanted[1]:
            (product,) = build.emit("Mul", [quotient, node.outputs[0]])
            (db,) = build.emit("Neg", [build.sum_to(product, node.input(1).shape)])
        return (da, db)
