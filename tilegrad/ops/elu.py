"""Elu and its gradient (ONNX Runtime's EluGrad)."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient
from tilegrad.ops.base import NodeView


class Elu(Activation):
    name = "Elu"
    kernel = "elu"
    float_attributes = (("alpha", 1.0),)

    def saved(self, node: NodeView) -> str:
        alpha = node.attribute("alpha", 1.0)
        if alpha < 0:
            raise node.error("Elu's gradient needs a non-negative alpha", expected="alpha >= 0", got=str(alpha))
        return super().saved(node)


class EluGrad(ActivationGradient):
    name = "EluGrad"
    kernel = "elu_grad"
    float_attributes = (("alpha", 1.0),)
