"""AdamWOptimizer of ONNX Runtime in its Hugging Face mode, on one tensor: (w, g, m, v, lr, step) -> (w', m', v').

It is not PyTorch's AdamW: epsilon is added to the uncorrected root, and the weight decays after its step.
"""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ops._optimizer import update_nest
from tilegrad.ops._pointwise import flag_attribute
from tilegrad.ops.adam import Adam
from tilegrad.ops.base import NodeView


class AdamWOptimizer(Adam):
    """Attributes: beta1, beta2, epsilon, weight_decay, correct_bias."""

    name = "AdamWOptimizer"

    def _constants(self, node: NodeView) -> dict[str, float]:
        constants = super()._constants(node)
        del constants["decoupled"]
        return {**constants, "corrects": int(flag_attribute(node, "correct_bias", 1))}

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        results, constants = ("w_out", "m_out", "v_out"), self._constants(node)
        return (update_nest(node, "adamw_optimizer", ("w", "g", "m", "v"), ("lr", "step"), results, constants),)
