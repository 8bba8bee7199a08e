"""Erf and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, InputActivationGradient


class Erf(Activation):
    name = "Erf"
    kernel = "erf_map"
    saves_output = False


class ErfGrad(InputActivationGradient):
    name = "ErfGrad"
    kernel = "erf_grad"
