"""Abs and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, InputActivationGradient


class Abs(Activation):
    name = "Abs"
    kernel = "abs_map"
    saves_output = False


class AbsGrad(InputActivationGradient):
    name = "AbsGrad"
    kernel = "abs_grad"
