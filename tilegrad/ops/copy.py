"""Copy (ours): the same elements in memory of their own, as when a constant becomes the content of a state tensor."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import TensorType
from tilegrad.ops.base import GradientBuilder, NodeView, Operator


class Copy(Operator):
    name = "Copy"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = f"copy_b{node.output().dtype.size_bytes}"
        return (map_nest(kernel, node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return (upstream[0],)
