"""Operators that move or make values without computing on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tilegrad.verify.torch_ops.base import Call, Function, axes_operand, integers


def _reshape(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    sizes = integers(shape)
    if not call.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = int(call.get("axis", 1))
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


def _squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    listed = axes_operand(call, axes)
    if listed is None:
        return x.squeeze()
    dropped = {axis % x.dim() for axis in listed}
    if any(x.shape[axis] != 1 for axis in dropped):
        raise call.fail(f"axes {sorted(dropped)} of shape {tuple(x.shape)} are not all of size 1")
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in dropped])


def _unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    listed = axes_operand(call, axes) or []
    rank = x.dim() + len(listed)
    added = {axis % rank for axis in listed}
    remaining = iter(x.shape)
    return x.reshape([1 if axis in added else next(remaining) for axis in range(rank)])


def _transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.get("perm") or list(reversed(range(x.dim()))))


def _expand(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(integers(shape))))


def _tile(call: Call, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(integers(repeats))


def _concat(call: Call, *values: Tensor) -> Tensor:
    return torch.cat(values, dim=call.get("axis"))


def _split(call: Call, x: Tensor, split: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = int(call.get("axis", 0))
    sizes = axes_operand(call, split, "split")
    if sizes is None:
        parts = int(call.get("num_outputs") or call.output_count)
        extent = x.shape[axis]
        chunk = -(-extent // parts)
        sizes = [max(0, min(chunk, extent - index * chunk)) for index in range(parts)]
    return tuple(torch.split(x, sizes, dim=axis))


def _slice(
    call: Call,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    firsts, lasts = integers(starts), integers(ends)
    chosen = integers(axes) if axes is not None else list(range(len(firsts)))
    strides = integers(steps) if steps is not None else [1] * len(firsts)
    for first, last, axis, stride in zip(firsts, lasts, chosen, strides, strict=True):
        positions = range(*slice(first, last, stride).indices(x.shape[axis]))
        x = x.index_select(axis, torch.tensor(list(positions), dtype=torch.int64))
    return x


def _pad(call: Call, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
    amounts = integers(pads)
    chosen = integers(axes) if axes is not None else list(range(x.dim()))
    mode = call.get("mode", "constant")
    for position, axis in enumerate(chosen):
        before, after = amounts[position], amounts[position + len(chosen)]
        extent = x.shape[axis]
        index = np.arange(max(0, -before), extent - max(0, -after))
        widths = (max(0, before), max(0, after))
        if mode == "constant":
            x = x.index_select(axis, torch.from_numpy(index))
            fill = torch.zeros((), dtype=x.dtype) if value is None else value.reshape(()).to(x.dtype)
            sides = [fill.expand(*x.shape[: axis % x.dim()], width, *x.shape[axis % x.dim() + 1 :]) for width in widths]
            x = torch.cat((sides[0], x, sides[1]), dim=axis)
        else:
            source = np.pad(index, widths, mode=mode)
            x = x.index_select(axis, torch.from_numpy(source))
    return x


def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = int(call.get("axis", 0)) % x.dim()
    extent = x.shape[axis]
    flat = indices.reshape(-1).to(torch.int64)
    if flat.numel() and not bool(((flat >= -extent) & (flat < extent)).all()):
        raise call.fail(f"an index lies outside [-{extent}, {extent})")
    flat = torch.where(flat < 0, flat + extent, flat)
    return x.index_select(axis, flat).reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = int(call.get("axis", 0)) % x.dim()
    wanted = indices.to(torch.int64)
    return torch.gather(x, axis, torch.where(wanted < 0, wanted + x.shape[axis], wanted))


def _trilu(call: Call, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    offset = 0 if diagonal is None else int(diagonal)
    return torch.triu(x, offset) if call.get("upper", 1) else torch.tril(x, offset)


def _shape(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(list(x.shape)[slice(call.get("start", 0), call.get("end"))], dtype=torch.int64)


def _size(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


def _constant(call: Call) -> Tensor:
    for name in ("value_float", "value_floats"):
        if name in call.attributes:
            return torch.tensor(call.get(name), dtype=call.float_type)
    for name in ("value_int", "value_ints"):
        if name in call.attributes:
            return torch.tensor(call.get(name), dtype=torch.int64)
    value = call.get("value")
    if not isinstance(value, Tensor):
        raise call.fail(f"holds {', '.join(call.attributes) or 'nothing'}; only dense numeric values are supported")
    return value


def _constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    value: Tensor = call.get("value", torch.zeros(1, dtype=call.float_type))
    return value.reshape(()).expand(integers(shape)).clone()


def _range(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    count = max(0, -int(-(limit.item() - start.item()) // delta.item()))
    return start + torch.arange(count, dtype=start.dtype) * delta


TABLE: dict[str, Function] = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
