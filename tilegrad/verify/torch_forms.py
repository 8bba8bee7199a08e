"""Operators written so that autograd saves what tilegrad saves, for runs that round what is saved (`--store`).

What a gradient is made of is a choice: PyTorch's Elu keeps its input, ours its output, and rounded they differ.
These forms compute what `torch_ops` computes. Elsewhere PyTorch keeps the same as tilegrad by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilegrad.verify.torch_ops import TABLE
from tilegrad.verify.torch_ops.base import Call, Function


class _FromInputs(torch.autograd.Function):
    """Saves its inputs, and differentiates by computing once more from these."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:  # type: ignore[override]
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            saved = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in ctx.saved_tensors]
            result = ctx.function(*saved)
            wanted = [tensor for tensor in saved if tensor.requires_grad]
            found = iter(torch.autograd.grad(result, wanted, gradient, allow_unused=True))
        return (None, *(next(found) if tensor.requires_grad else None for tensor in saved))


class _FromOutput(torch.autograd.Function):
    """Saves its output; `derivative` is of that."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor], x: Tensor
    ) -> Tensor:
        y = function(x)
        ctx.derivative = derivative
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return None, None, gradient * ctx.derivative(y)


class _Quotient(torch.autograd.Function):
    """Saves the divisor and the quotient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        y = a / b
        ctx.save_for_backward(b, y)
        ctx.shapes = a.shape, b.shape
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        b, y = ctx.saved_tensors
        part = gradient / b
        return part.sum_to_size(ctx.shapes[0]), -(part * y).sum_to_size(ctx.shapes[1])


def _applied(form: type[torch.autograd.Function], *arguments: object) -> Tensor:
    result: Tensor = form.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _from_inputs(name: str) -> Function:
    def form(call: Call, *inputs: Tensor) -> Tensor:
        return _applied(_FromInputs, lambda *values: TABLE[name](call, *values), *inputs)

    return form


def _elu(call: Call, x: Tensor) -> Tensor:
    alpha = float(call.get("alpha", 1.0))
    return _applied(
        _FromOutput,
        lambda value: functional.elu(value, alpha),
        lambda y: torch.where(y > 0, torch.ones_like(y), y + alpha),
        x,
    )


def _softplus(call: Call, x: Tensor) -> Tensor:
    return _applied(
        _FromOutput, lambda value: torch.logaddexp(value, torch.zeros_like(value)), lambda y: -torch.expm1(-y), x
    )


def _divide(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        return TABLE["Div"](call, a, b)  # type: ignore[return-value]
    return _applied(_Quotient, a, b)


FORMS: dict[str, Function] = {
    "Div": _divide,
    "Elu": _elu,
    "Softplus": _softplus,
    **{name: _from_inputs(name) for name in ("HardSwish", "GroupNormalization", "InstanceNormalization")},
}
