"""Identity: another name for the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class Identity(Operator):
    name = "Identity"
    is_view = True

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        return (node.input(0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return (upstream[0],)
