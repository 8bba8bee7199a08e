"""Mul."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Mul(BroadcastOperator):
    name = "Mul"
    kernel = "mul"
    dtypes = (DType.F32, *INTEGERS)
    parameter_inputs = (0, 1)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        result: list[str | None] = [None, None]
        for position in (0, 1):
            if wanted[position]:
                (product,) = build.emit("Mul", [upstream[0], node.inputs[1 - position]])
                result[position] = build.sum_to(product, node.input(position).shape)
        return result
