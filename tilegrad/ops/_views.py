"""Operators whose output is the input's bytes under another shape: no kernel, no copy, no memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class View(Operator):
    is_view = True

    @abstractmethod
    def new_shape(self, node: NodeView, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The output's shape; as many elements as `shape`, or the node is refused."""

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x = node.input(0)
        return (TensorType(x.dtype, self.new_shape(node, x.shape)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("Reshape", [upstream[0]], {"shape": node.input(0).shape}, hint=f"{node.inputs[0]}_grad")
