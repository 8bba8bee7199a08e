"""Matrix products, convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tilegrad.verify.torch_ops.base import Call, Function, Outputs

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    left = a.t() if call.get("transA", 0) else a
    right = b.t() if call.get("transB", 0) else b
    product: Tensor = (left @ right) * call.get("alpha", 1.0)
    return product if c is None else product + c * call.get("beta", 1.0)


def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _einsum(call: Call, *operands: Tensor) -> Tensor:
    return torch.einsum(call.get("equation"), *operands)


@dataclass(frozen=True)
class Window:
    """A sliding window's geometry, with ONNX's padding rules worked out for one input."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    extras: tuple[int, ...]
    """What ceil_mode's last window reaches beyond the padding; never counted as padding."""

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple((size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True))


def _per_axis(call: Call, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    listed = call.get(name)
    return tuple(int(value) for value in listed) if listed else (default,) * rank


def _window(call: Call, x: Tensor, kernel: Sequence[int]) -> Window:
    rank = len(kernel)
    strides, dilations = _per_axis(call, "strides", rank), _per_axis(call, "dilations", rank)
    pads = _per_axis(call, "pads", 2 * rank, 0)
    automatic = call.get("auto_pad", "NOTSET")
    begins, ends, extras = [], [], []
    for axis in range(rank):
        extent, size = (kernel[axis] - 1) * dilations[axis] + 1, x.shape[axis + 2]
        begin, end = pads[axis], pads[axis + rank]
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-size // strides[axis]) - 1) * strides[axis] + extent - size)
            smaller, larger = total // 2, total - total // 2
            begin, end = (smaller, larger) if automatic == "SAME_UPPER" else (larger, smaller)
        elif automatic == "VALID":
            begin = end = 0
        extra = 0
        if call.get("ceil_mode", 0):
            room = size + begin + end - extent
            count = -(-room // strides[axis]) + 1
            if (count - 1) * strides[axis] >= size + begin:
                count -= 1
            extra = max(0, (count - 1) * strides[axis] - room)
        begins.append(begin)
        ends.append(end)
        extras.append(extra)
    return Window(tuple(kernel), strides, dilations, tuple(begins), tuple(ends), tuple(extras))


def _padded(x: Tensor, begins: Sequence[int], ends: Sequence[int], value: float = 0.0) -> Tensor:
    widths = [width for pair in zip(reversed(begins), reversed(ends), strict=True) for width in pair]
    return functional.pad(x, widths, value=value) if any(widths) else x


def _sums(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    window = _window(call, x, weight.shape[2:])
    return CONVOLUTIONS[weight.dim() - 2](
        _padded(x, window.begins, window.ends),
        weight,
        bias,
        stride=window.strides,
        dilation=window.dilations,
        groups=call.get("group", 1),
    )


def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = weight.dim() - 2
    strides, dilations = _per_axis(call, "strides", rank), _per_axis(call, "dilations", rank)
    full = TRANSPOSED[rank](x, weight, None, stride=strides, dilation=dilations, groups=call.get("group", 1))
    grown = _per_axis(call, "output_padding", rank, 0)
    pads = _per_axis(call, "pads", 2 * rank, 0)
    automatic = call.get("auto_pad", "NOTSET")
    shape = call.get("output_shape")
    if shape is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        shape = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    begins, ends = list(pads[:rank]), list(pads[rank:])
    if shape is not None:
        for axis, wanted in enumerate(list(shape)[-rank:]):
            total = full.shape[axis + 2] + grown[axis] - wanted
            half = total // 2
            begins[axis], ends[axis] = (half, total - half) if automatic == "SAME_UPPER" else (total - half, half)
    cropped = _padded(full, [-begin for begin in begins], [more - end for more, end in zip(grown, ends, strict=True)])
    return cropped if bias is None else cropped + bias.reshape(-1, *([1] * rank))


def _max_pool(call: Call, x: Tensor) -> Outputs:
    window = _window(call, x, call.get("kernel_shape"))
    values = x if x.is_floating_point() else x.to(torch.float64)
    padded = _padded(values, window.begins, _sums(window.ends, window.extras), -torch.inf)
    pooled, positions = MAX_POOLS[len(window.kernel)](
        padded, window.kernel, stride=window.strides, dilation=window.dilations, return_indices=True
    )
    pooled = pooled.to(x.dtype)
    return (pooled, _flat_indices(call, x, padded, positions, window)) if call.output_count > 1 else pooled


def _flat_indices(call: Call, x: Tensor, padded: Tensor, positions: Tensor, window: Window) -> Tensor:
    """PyTorch numbers positions inside one padded plane; ONNX inside the whole unpadded input."""
    coordinates: list[Tensor] = []
    rest = positions
    for extent, begin in zip(reversed(padded.shape[2:]), reversed(window.begins), strict=True):
        coordinates.insert(0, rest % extent - begin)
        rest = torch.div(rest, extent, rounding_mode="floor")
    sizes = list(x.shape[2:])
    if call.get("storage_order", 0):
        coordinates, sizes = coordinates[::-1], sizes[::-1]
    flat = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *([1] * len(sizes)))
    for coordinate, size in zip(coordinates, sizes, strict=True):
        flat = flat * size + coordinate
    return flat


def _average_pool(call: Call, x: Tensor) -> Tensor:
    """Window sums over window counts, both convolutions with ones: right for dilations, ceil_mode and lopsided pads."""
    window = _window(call, x, call.get("kernel_shape"))
    planes = x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:])
    ones = torch.ones_like(planes[:1])
    counted = _padded(ones, window.begins, window.ends, float(call.get("count_include_pad", 0)))
    nothing = [0] * len(window.kernel)
    kernel = torch.ones((1, 1, *window.kernel), dtype=x.dtype)
    convolution = CONVOLUTIONS[len(window.kernel)]
    sums = convolution(
        _padded(planes, window.begins, _sums(window.ends, window.extras)),
        kernel,
        stride=window.strides,
        dilation=window.dilations,
    )
    counts = convolution(
        _padded(counted, nothing, window.extras), kernel, stride=window.strides, dilation=window.dilations
    )
    return (sums / counts).reshape(*x.shape[:2], *sums.shape[2:])


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _global_average_pool(call: Call, x: Tensor) -> Tensor:
    return x.mean(dim=_spatial(x), keepdim=True)


def _global_max_pool(call: Call, x: Tensor) -> Tensor:
    return x.amax(dim=_spatial(x), keepdim=True)


TABLE: dict[str, Function] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
}
