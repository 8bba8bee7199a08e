"""Sub."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Sub(BroadcastOperator):
    name = "Sub"
    kernel = "sub"
    dtypes = (DType.F32, *INTEGERS)
    parameter_inputs = (0, 1)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        da = db = None
        if wanted[0]:
            da = build.sum_to(upstream[0], node.input(0).shape)
        if wanted[1]:
            (db,) = build.emit("Neg", [build.sum_to(upstream[0], node.input(1).shape)])
        return (da, db)
