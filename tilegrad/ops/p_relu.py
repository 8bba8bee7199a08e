"""PRelu and its gradients: of x (PReluGrad) and of the slope (PReluSlopeGrad, then summed to the slope's shape)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops._pointwise import BroadcastOperator, MapOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class PRelu(BroadcastOperator):
    """(X, slope): the slope broadcasts to X, never X to the slope."""

    name = "PRelu"
    kernel = "p_relu"
    has_map_kernel = False
    parameter_inputs = (1,)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        (result,) = super().infer(node)
        if result.shape != node.input(0).shape:
            raise node.error(
                f"PRelu: the slope ('{node.inputs[1]}') does not broadcast to the input",
                expected=str(list(node.input(0).shape)),
                got=str(list(node.input(1).shape)),
            )
        return (result,)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        dx = dslope = None
        if wanted[0]:
            (dx,) = build.emit("PReluGrad", [upstream[0], node.inputs[1], node.inputs[0]])
        if wanted[1]:
            (products,) = build.emit("PReluSlopeGrad", [upstream[0], node.inputs[0]])
            dslope = build.sum_to(products, node.input(1).shape)
        return (dx, dslope)


class PReluGrad(BroadcastOperator):
    """(dY, slope, X) -> dX."""

    name = "PReluGrad"
    kernel = "p_relu_grad"
    arity = 3
    has_map_kernel = False


class PReluSlopeGrad(MapOperator):
    """(dY, X) -> what each element adds to its slope's gradient."""

    name = "PReluSlopeGrad"
    kernel = "p_relu_slope_grad"
    operands = ("dy", "x")
    result = "dslope"
