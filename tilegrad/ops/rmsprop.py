"""RMSprop: (w, g, v, lr) -> (w', v'), PyTorch's rule without momentum; v starts at zero."""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._optimizer import check_update, kernel_for, update_example, update_nest
from tilegrad.ops._pointwise import float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example


class RMSprop(Operator):
    """Attributes: alpha, epsilon, weight_decay."""

    name = "RMSprop"

    def example(self, draw: Draw) -> Example:
        return update_example(draw, 1, {"weight_decay": draw.one_of(0.0, 0.01)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        check_update(node, ("weight", "gradient", "mean square"), {3: ("learning rate", DType.F32)})
        self._constants(node)
        return (node.input(0), node.input(2))

    def _constants(self, node: NodeView) -> dict[str, float]:
        """What 1 - alpha loses when alpha is rounded first would show, so it is made in float64."""
        alpha = float_attribute(node, "alpha", 0.99)
        if not 0.0 <= alpha < 1.0:
            raise node.error(
                f"{self.name}: bad attribute 'alpha'",
                expected="a number from 0 up to, not including, 1",
                got=str(alpha),
            )
        return {
            "alpha": alpha,
            "rest_of_alpha": 1.0 - alpha,
            "epsilon": float_attribute(node, "epsilon", 1e-8),
            "weight_decay": float_attribute(node, "weight_decay", 0.0),
        }

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = kernel_for(node, "rmsprop")
        return (update_nest(node, kernel, ("w", "g", "v"), ("lr",), ("w_out", "v_out"), self._constants(node)),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (1, 2))
