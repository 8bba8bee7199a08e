"""Softplus and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class Softplus(Activation):
    name = "Softplus"
    kernel = "softplus_map"


class SoftplusGrad(ActivationGradient):
    name = "SoftplusGrad"
    kernel = "softplus_grad"
