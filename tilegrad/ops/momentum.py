"""Momentum: (w, g, v, lr) -> (w', v'), PyTorch's SGD with momentum; v starts at zero."""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._optimizer import check_update, kernel_for, update_example, update_nest
from tilegrad.ops._pointwise import flag_attribute, float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example


class Momentum(Operator):
    """Attributes: momentum, weight_decay, nesterov.

    `dampening` must be 0: PyTorch's first step does not damp, so the rule would need to know which step it is.
    """

    name = "Momentum"

    def example(self, draw: Draw) -> Example:
        return update_example(draw, 1, {"weight_decay": draw.one_of(0.0, 0.01), "nesterov": draw.one_of(0, 0, 1)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        check_update(node, ("weight", "gradient", "velocity"), {3: ("learning rate", DType.F32)})
        self._constants(node)
        if float_attribute(node, "dampening", 0.0) != 0.0:
            raise node.error("Momentum: dampening is not supported", expected="0", got=str(node.required("dampening")))
        return (node.input(0), node.input(2))

    def _constants(self, node: NodeView) -> dict[str, float]:
        return {
            "momentum": float_attribute(node, "momentum", 0.9),
            "weight_decay": float_attribute(node, "weight_decay", 0.0),
            "nesterov": int(flag_attribute(node, "nesterov", 0)),
        }

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = kernel_for(node, "momentum")
        return (update_nest(node, kernel, ("w", "g", "v"), ("lr",), ("w_out", "v_out"), self._constants(node)),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (1, 2))
