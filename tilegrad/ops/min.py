"""Min of any number of tensors, and its gradient."""

from __future__ import annotations

from tilegrad.ops._extremum import Extremum, ExtremumGradient


class Min(Extremum):
    name = "Min"
    kernel = "minimum"


class MinGrad(ExtremumGradient):
    name = "MinGrad"
    kernel = "minimum_grad"
