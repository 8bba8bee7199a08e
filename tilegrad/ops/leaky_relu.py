"""LeakyRelu and its gradient (ONNX Runtime's LeakyReluGrad)."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient
from tilegrad.ops.base import NodeView


class LeakyRelu(Activation):
    name = "LeakyRelu"
    kernel = "leaky_relu"
    float_attributes = (("alpha", 0.01),)

    def saved(self, node: NodeView) -> str:
        """The gradient needs only x's sign, which y has unless alpha is negative."""
        return node.inputs[0] if node.attribute("alpha", 0.01) < 0 else node.outputs[0]


class LeakyReluGrad(ActivationGradient):
    name = "LeakyReluGrad"
    kernel = "leaky_relu_grad"
    float_attributes = (("alpha", 0.01),)
