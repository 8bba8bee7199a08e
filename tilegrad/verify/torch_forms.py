"""Operators in forms of PyTorch's in which autograd saves what tilegrad saves, for runs that round that (`--store`).

What a gradient is made of is a choice: PyTorch's Elu keeps its input, ours its output, and rounded they differ. Where
PyTorch has such a form itself, that is used: Elu and Hardtanh in place keep their outputs, and `checkpoint` the inputs
of normalisations and powers, which are computed once more from these. Of Softplus and Div it has none: what is saved is
ours there, inputs are restored from that, and the gradient is the one of PyTorch's operator at these. Elsewhere PyTorch
keeps the same as tilegrad by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tilegrad.verify.torch_ops import TABLE
from tilegrad.verify.torch_ops.base import Call, Function

Restore = Callable[..., tuple[Tensor, ...]]


class _Restored(torch.autograd.Function):
    """Saves its output and the inputs behind the first; `restore` makes all inputs of these."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, function: Callable[..., Tensor], restore: Restore, *inputs: Tensor
    ) -> Tensor:
        y = function(*inputs)
        ctx.function, ctx.restore, ctx.shapes = function, restore, [tensor.shape for tensor in inputs]
        ctx.save_for_backward(y, *inputs[1:])
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.restore(*ctx.saved_tensors)]
            found = torch.autograd.grad(ctx.function(*inputs), inputs, gradient)
        return None, None, *(each.sum_to_size(shape) for each, shape in zip(found, ctx.shapes, strict=True))


def _restored(function: Callable[..., Tensor], restore: Restore, *inputs: Tensor) -> Tensor:
    result: Tensor = _Restored.apply(function, restore, *inputs)  # type: ignore[no-untyped-call]
    return result


def _softplus(call: Call, x: Tensor) -> Tensor:
    def restore(y: Tensor) -> tuple[Tensor]:
        return (y + torch.log(-torch.expm1(-y)),)

    return _restored(lambda value: torch.logaddexp(value, torch.zeros_like(value)), restore, x)


def _divide(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        return TABLE["Div"](call, a, b)  # type: ignore[return-value]
    return _restored(torch.div, lambda y, divisor: (y * divisor, divisor), a, b)


def _elu(call: Call, x: Tensor) -> Tensor:
    return functional.elu(x.clone(), float(call.get("alpha", 1.0)), inplace=True)


def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if not x.is_floating_point():
        return TABLE["Clip"](call, x, low, high)  # type: ignore[return-value]
    bounds = (-inf if low is None else float(low), inf if high is None else float(high))
    return functional.hardtanh(x.clone(), *bounds, inplace=True)


def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    line = float(call.get("alpha", 0.2)) * x + float(call.get("beta", 0.5))
    return functional.hardtanh(line, 0.0, 1.0, inplace=True)


def _softsign(call: Call, x: Tensor) -> Tensor:
    return _divide(call, x, 1.0 + x.abs())


def _from_inputs(name: str) -> Function:
    def form(call: Call, *inputs: Tensor) -> Tensor:
        def once(*values: Tensor) -> Tensor:
            return TABLE[name](call, *values)  # type: ignore[return-value]

        if not any(tensor.requires_grad for tensor in inputs):
            return once(*inputs)
        result: Tensor = checkpoint(once, *inputs, use_reentrant=True)
        return result

    return form


FORMS: dict[str, Function] = {
    "Clip": _clip,
    "Div": _divide,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "Softplus": _softplus,
    "Softsign": _softsign,
    **{name: _from_inputs(name) for name in ("GroupNormalization", "InstanceNormalization", "Pow")},
}
