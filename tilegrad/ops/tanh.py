"""Tanh and its gradient (ONNX Runtime's TanhGrad)."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class Tanh(Activation):
    name = "Tanh"
    kernel = "tanh_map"


class TanhGrad(ActivationGradient):
    name = "TanhGrad"
    kernel = "tanh_grad"
