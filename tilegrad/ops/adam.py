"""Adam and AdamW: (w, g, m, v, lr, step) -> (w', m', v'), PyTorch's rules; m and v start at zero."""

from __future__ import annotations

from math import log

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._optimizer import check_update, kernel_for, update_example, update_nest
from tilegrad.ops._pointwise import flag_attribute, float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example

_LOG_OF_ZERO = -1e4  # e^(t * this) is 0 for every t >= 1, as 0^t is


class Adam(Operator):
    """Attributes: beta1, beta2, epsilon, weight_decay, decoupled. `step` is how many updates came before this one."""

    name = "Adam"
    kernel = "adam"
    decoupled_default = 0

    def example(self, draw: Draw) -> Example:
        return update_example(draw, 2, {"weight_decay": draw.one_of(0.0, 0.01)}, counts_updates=True)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(6)
        tensors = ("weight", "gradient", "first moment", "second moment")
        check_update(node, tensors, {4: ("learning rate", DType.F32), 5: ("step counter", DType.I64)})
        self._constants(node)
        return (node.input(0), node.input(2), node.input(3))

    def _constants(self, node: NodeView) -> dict[str, float]:
        """What 1 - beta loses when beta is rounded first would show, so it and log(beta) are made in float64."""
        constants: dict[str, float] = {
            "epsilon": float_attribute(node, "epsilon", 1e-8),
            "weight_decay": float_attribute(node, "weight_decay", 0.0),
            "decoupled": int(flag_attribute(node, "decoupled", self.decoupled_default)),
        }
        for name, default in (("beta1", 0.9), ("beta2", 0.999)):
            beta = float_attribute(node, name, default)
            if not 0.0 <= beta < 1.0:
                raise node.error(
                    f"{self.name}: bad attribute '{name}'",
                    expected="a number from 0 up to, not including, 1",
                    got=str(beta),
                )
            constants |= {
                name: beta,
                f"rest_of_{name}": 1.0 - beta,
                f"log_of_{name}": log(beta) if beta > 0.0 else _LOG_OF_ZERO,
            }
        return constants

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        results, constants = ("w_out", "m_out", "v_out"), self._constants(node)
        kernel = kernel_for(node, self.kernel)
        return (update_nest(node, kernel, ("w", "g", "m", "v"), ("lr", "step"), results, constants),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (1, 2), (2, 3))


class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments."""

    name = "AdamW"
    decoupled_default = 1
