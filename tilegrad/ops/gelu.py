"""Gelu, exact and with the tanh approximation, and its gradient (ONNX Runtime's GeluGrad)."""

from __future__ import annotations

from tilegrad.ops._pointwise import Activation, InputActivationGradient
from tilegrad.ops.base import NodeView
from tilegrad.ops.example import Draw, Example


def _variant(node: NodeView, kernel: str) -> str:
    approximate = node.attribute("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise node.error("Gelu: bad attribute 'approximate'", expected="'none' or 'tanh'", got=repr(approximate))
    return kernel if approximate == "none" else f"{kernel}_tanh"


class Gelu(Activation):
    name = "Gelu"
    saves_output = False

    def example(self, draw: Draw) -> Example:
        return Example((), {"approximate": draw.one_of("none", "tanh")})

    def kernel_name(self, node: NodeView) -> str:
        return _variant(node, "gelu")


class GeluGrad(InputActivationGradient):
    name = "GeluGrad"

    def kernel_name(self, node: NodeView) -> str:
        return _variant(node, "gelu_grad")
