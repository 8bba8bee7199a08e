"""HardSigmoid and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class HardSigmoid(Activation):
    name = "HardSigmoid"
    kernel = "hard_sigmoid"
    float_attributes = (("alpha", 0.2), ("beta", 0.5))


class HardSigmoidGrad(ActivationGradient):
    name = "HardSigmoidGrad"
    kernel = "hard_sigmoid_grad"
    float_attributes = (("alpha", 0.2), ("beta", 0.5))
