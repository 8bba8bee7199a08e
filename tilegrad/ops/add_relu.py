"""The sum of two values of one shape with the Relu behind it, and a sum of gradients with the ReluGrad behind it.

Passes make these operators (fuse_activation). The bits are those of Add, then Relu or ReluGrad.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ops._pointwise import MapOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class AddRelu(MapOperator):
    """Relu of A + B, which have one shape."""

    name = "AddRelu"
    kernel = "add_relu"
    operands = ("a", "b")
    parameter_inputs = (0, 1)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        (below,) = build.emit("ReluGrad", [upstream[0], node.outputs[0]])
        return [below if is_wanted else None for is_wanted in wanted]


class AddReluGrad(MapOperator):
    """(A, B, Y) -> ReluGrad(A + B, Y), where Y is the output of the Relu."""

    name = "AddReluGrad"
    kernel = "add_relu_grad"
    operands = ("a", "b", "y")
    result = "dx"
