"""AdamWOptimizer of ONNX Runtime in its Hugging Face mode, on one tensor: (w, g, m, v, lr, step) -> (w', m', v').

It is not PyTorch's AdamW: epsilon is added to the uncorrected root, and the weight decays after its step.
"""

from __future__ import annotations

from tilegrad.ops._pointwise import flag_attribute
from tilegrad.ops.adam import Adam
from tilegrad.ops.base import NodeView


class AdamWOptimizer(Adam):
    """Attributes: beta1, beta2, epsilon, weight_decay, correct_bias."""

    name = "AdamWOptimizer"
    kernel = "adamw_optimizer"

    def _constants(self, node: NodeView) -> dict[str, float]:
        constants = super()._constants(node)
        del constants["decoupled"]
        return {**constants, "corrects": int(flag_attribute(node, "correct_bias", 1))}
