"""Add."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Add(BroadcastOperator):
    name = "Add"
    kernel = "add"
    dtypes = (DType.F32, *INTEGERS)
    parameter_inputs = (0, 1)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        return [
            build.sum_to(upstream[0], node.input(position).shape) if is_wanted else None
            for position, is_wanted in enumerate(wanted)
        ]
