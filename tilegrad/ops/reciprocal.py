"""Reciprocal and its gradient."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class Reciprocal(Activation):
    name = "Reciprocal"
    kernel = "reciprocal"


class ReciprocalGrad(ActivationGradient):
    name = "ReciprocalGrad"
    kernel = "reciprocal_grad"
