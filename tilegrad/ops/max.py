"""Max of any number of tensors, and its gradient."""

from __future__ import annotations

from tilegrad.ops._extremum import Extremum, ExtremumGradient


class Max(Extremum):
    name = "Max"
    kernel = "maximum"


class MaxGrad(ExtremumGradient):
    name = "MaxGrad"
    kernel = "maximum_grad"
