"""Elementwise operators: arithmetic, activations, comparisons and casts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from tilegrad.verify.torch_ops.base import Call, Function


def _unary(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda call, x: function(x)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call, a, b: function(a, b)


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call, *values: reduce(function, values)


def _divide(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _modulo(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if call.get("fmod", 0) else torch.remainder(a, b)


def _power(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.pow(a, b.to(a.dtype))
    if b.is_floating_point():
        return torch.pow(a.to(b.dtype), b).to(a.dtype)
    return torch.pow(a, b).to(a.dtype)


def _mean(call: Call, *values: Tensor) -> Tensor:
    return reduce(torch.add, values) / len(values)


def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, low, high)


def _leaky_relu(call: Call, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, call.get("alpha", 0.01))


def _prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, slope * x, x)


def _elu(call: Call, x: Tensor) -> Tensor:
    return functional.elu(x, call.get("alpha", 1.0))


def _selu(call: Call, x: Tensor) -> Tensor:
    scaled: Tensor = functional.elu(x, call.get("alpha", 1.67326319217681884765625))
    return scaled * float(call.get("gamma", 1.05070102214813232421875))


def _celu(call: Call, x: Tensor) -> Tensor:
    return functional.celu(x, call.get("alpha", 1.0))


def _thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return torch.where(x > call.get("alpha", 1.0), x, torch.zeros_like(x))


def _gelu(call: Call, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=call.get("approximate", "none"))


def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.clamp(call.get("alpha", 0.2) * x + call.get("beta", 0.5), 0.0, 1.0)


def _hard_swish(call: Call, x: Tensor) -> Tensor:
    """PyTorch's own, with its slopes and what it saves; but the sixth is ONNX's, a float32 in float64 too."""
    made = functional.hardswish(x)
    with torch.no_grad():
        missing = x * torch.clamp(x * call.get("alpha", 1.0 / 6.0) + 0.5, 0.0, 1.0) - made
    return made + missing if x.dtype == torch.float64 else made


def _swish(call: Call, x: Tensor) -> Tensor:
    return x * torch.sigmoid(call.get("alpha", 1.0) * x)


def _softplus(call: Call, x: Tensor) -> Tensor:
    """Not functional.softplus: that one turns linear above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


def _where(call: Call, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


def _cast(call: Call, x: Tensor) -> Tensor:
    return x.to(call.torch_type(call.get("to")))


def _cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


TABLE: dict[str, Function] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(torch.add),
    "And": _binary(torch.logical_and),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _unary(torch.ceil),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary(torch.cos),
    "Div": _divide,
    "Elu": _elu,
    "Equal": _binary(torch.eq),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Floor": _unary(torch.floor),
    "Gelu": _gelu,
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _unary(lambda x: x),
    "IsNaN": _unary(torch.isnan),
    "LeakyRelu": _leaky_relu,
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "Log": _unary(torch.log),
    "Max": _variadic(torch.maximum),
    "Mean": _mean,
    "Min": _variadic(torch.minimum),
    "Mish": _unary(lambda x: x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))),
    "Mod": _modulo,
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _unary(torch.reciprocal),
    "Relu": _unary(torch.relu),
    "Round": _unary(torch.round),
    "Selu": _selu,
    "Sigmoid": _unary(torch.sigmoid),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Softplus": _softplus,
    "Softsign": _unary(functional.softsign),
    "Sqrt": _unary(torch.sqrt),
    "Sub": _binary(torch.sub),
    "Sum": _variadic(torch.add),
    "Swish": _swish,
    "Tanh": _unary(torch.tanh),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
    "Xor": _binary(torch.logical_xor),
}
