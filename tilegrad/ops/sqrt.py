"""Sqrt and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class Sqrt(Activation):
    name = "Sqrt"
    kernel = "sqrt"


class SqrtGrad(ActivationGradient):
    name = "SqrtGrad"
    kernel = "sqrt_grad"
