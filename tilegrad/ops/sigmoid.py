"""Sigmoid and its gradient (ONNX Runtime's SigmoidGrad)."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, ActivationGradient


class Sigmoid(Activation):
    name = "Sigmoid"
    kernel = "sigmoid_map"


class SigmoidGrad(ActivationGradient):
    name = "SigmoidGrad"
    kernel = "sigmoid_grad"
