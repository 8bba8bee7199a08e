"""HardSwish and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, InputActivationGradient


class HardSwish(Activation):
    name = "HardSwish"
    kernel = "hard_swish"
    saves_output = False


class HardSwishGrad(InputActivationGradient):
    name = "HardSwishGrad"
    kernel = "hard_swish_grad"
