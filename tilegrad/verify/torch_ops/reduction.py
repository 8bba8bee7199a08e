"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilegrad.verify.torch_ops.base import Call, Function, axes_operand

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(function: Reduction) -> Function:
    """Take care of where the axes come from; `function` reduces `x` over a non-empty list of them."""

    def apply(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
        listed = axes_operand(call, axes)
        if not listed and (call.get("noop_with_empty_axes", 0) or x.dim() == 0):
            return function(x.unsqueeze(-1), [x.dim()], False).to(x.dtype)
        chosen = [axis % x.dim() for axis in listed] if listed else list(range(x.dim()))
        return function(x, chosen, bool(call.get("keepdims", 1))).to(x.dtype)

    return apply


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(dim=axes, keepdim=keep)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(_sum(x, axes, keep), count, rounding_mode=None if x.is_floating_point() else "trunc")


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(dim=axis, keepdim=keep)
    return x


def _extreme(largest: bool) -> Reduction:
    def reduce(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        values = x.to(torch.uint8) if x.dtype == torch.bool else x
        if any(x.shape[axis] == 0 for axis in axes):
            return torch.full_like(_sum(values, axes, keep), _identity(x.dtype, largest), dtype=values.dtype)
        return torch.amax(values, axes, keep) if largest else torch.amin(values, axes, keep)

    return reduce


def _identity(dtype: torch.dtype, largest: bool) -> float:
    """The value a maximum or minimum over nothing has."""
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    if dtype == torch.bool:
        return 0 if largest else 1
    limits = torch.iinfo(dtype)
    return int(limits.min if largest else limits.max)


def _first_extreme(largest: bool) -> Function:
    def apply(call: Call, x: Tensor) -> Tensor:
        axis, keep = int(call.get("axis", 0)) % x.dim(), bool(call.get("keepdims", 1))
        source = x.flip(axis) if call.get("select_last_index", 0) else x
        best = source.amax(axis, keepdim=True) if largest else source.amin(axis, keepdim=True)
        index = (source == best).to(torch.int8).argmax(dim=axis, keepdim=keep)
        return x.shape[axis] - 1 - index if call.get("select_last_index", 0) else index

    return apply


def _cumulative_sum(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    dimension = int(axis) % x.dim()
    source = x.flip(dimension) if call.get("reverse", 0) else x
    total = source.cumsum(dimension)
    total = total - source if call.get("exclusive", 0) else total
    return (total.flip(dimension) if call.get("reverse", 0) else total).to(x.dtype)


TABLE: dict[str, Function] = {
    "ArgMax": _first_extreme(largest=True),
    "ArgMin": _first_extreme(largest=False),
    "CumSum": _cumulative_sum,
    "ReduceL1": _reduce(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _reduce(lambda x, axes, keep: _sum(x * x, axes, keep).sqrt()),
    "ReduceLogSum": _reduce(lambda x, axes, keep: _sum(x, axes, keep).log()),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceMax": _reduce(_extreme(largest=True)),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(_extreme(largest=False)),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(_sum),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: _sum(x * x, axes, keep)),
}
