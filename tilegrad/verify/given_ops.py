"""NumPy definitions of the operators in training graphs: ONNX's where a graph uses them, ONNX Runtime's gradients.

Written from the operators' published definitions, in whatever float type the values have. A function takes a `Call`
and returns the outputs in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from tilegrad.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Call:
    """One node with its operands; `shape_of_forward` is for gradients that do not say what they are the gradient of."""

    op: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any]
    opset: int = 14
    forward_shape: tuple[int, ...] | None = None
    outputs: int = 1
    names: Sequence[str] = field(default_factory=tuple)

    def at(self, position: int) -> Array | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def axes(self) -> tuple[int, ...] | None:
        """As an attribute or as the second operand."""
        given = self.get("axes", self.at(1))
        return None if given is None else tuple(int(axis) for axis in np.asarray(given).reshape(-1))


Results = Sequence[Array | None]
TABLE: dict[str, Callable[[Call], Results]] = {}


def defines(*names: str) -> Callable[[Callable[[Call], Results]], Callable[[Call], Results]]:
    def add(function: Callable[[Call], Results]) -> Callable[[Call], Results]:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return add


def _simple(name: str, function: Callable[..., Any]) -> None:
    TABLE[name] = lambda call: [function(*(value for value in call.inputs if value is not None))]


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.where(x >= 0, 1.0 / (1.0 + np.exp(-np.abs(x))), 1.0 - 1.0 / (1.0 + np.exp(-np.abs(x)))))


for _name, _function in (
    ("Add", lambda a, b: a + b),
    ("Sub", lambda a, b: a - b),
    ("Mul", lambda a, b: a * b),
    ("Div", lambda a, b: a / b),
    ("Relu", lambda x: np.maximum(x, 0)),
    ("Identity", lambda x: x),
    ("Sigmoid", _sigmoid),
    ("Tanh", np.tanh),
    ("MatMul", np.matmul),
    ("Sum", lambda *parts: sum(parts[1:], parts[0])),
    ("Shape", lambda x: np.array(x.shape, np.int64)),
    ("GlobalAveragePool", lambda x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)),
    ("ReluGrad", lambda dy, y: np.where(y > 0, dy, 0)),
    ("SigmoidGrad", lambda dy, y: dy * y * (1 - y)),
    ("TanhGrad", lambda dy, y: dy * (1 - y * y)),
    ("Expand", lambda x, shape: x * np.ones([int(n) for n in shape], x.dtype)),
):
    _simple(_name, _function)


@defines("Reshape")
def _reshape(call: Call) -> Results:
    x, wanted = call.inputs[0], [int(n) for n in np.asarray(call.inputs[1]).reshape(-1)]
    assert x is not None
    if not call.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return [x.reshape(wanted)]


@defines("Flatten")
def _flatten(call: Call) -> Results:
    x, axis = call.inputs[0], int(call.get("axis", 1))
    assert x is not None
    return [x.reshape(math.prod(x.shape[:axis]), -1)]


@defines("Transpose")
def _transpose(call: Call) -> Results:
    return [np.transpose(call.inputs[0], call.get("perm", None))]  # type: ignore[arg-type]


@defines("Squeeze")
def _squeeze(call: Call) -> Results:
    return [np.squeeze(call.inputs[0], call.axes())]  # type: ignore[arg-type]


@defines("Unsqueeze")
def _unsqueeze(call: Call) -> Results:
    return [np.expand_dims(call.inputs[0], call.axes() or ())]  # type: ignore[arg-type]


@defines("ReduceSum", "ReduceSumTraining")
def _reduce_sum(call: Call) -> Results:
    axes = call.axes()
    x = call.inputs[0]
    assert x is not None
    if not axes and call.get("noop_with_empty_axes", 0):
        return [x]
    return [np.asarray(x.sum(axis=axes or None, keepdims=bool(call.get("keepdims", 1))))]


@defines("Gather")
def _gather(call: Call) -> Results:
    return [np.take(call.inputs[0], call.inputs[1], axis=call.get("axis", 0))]  # type: ignore[arg-type]


@defines("GatherGrad")
def _gather_gradient(call: Call) -> Results:
    shape, indices, dy = call.inputs
    assert shape is not None and indices is not None and dy is not None
    axis = int(call.get("axis", 0)) % len(shape)
    dx = np.zeros([int(n) for n in shape], dy.dtype)
    rows = np.moveaxis(dx, axis, 0)
    span = range(axis, axis + indices.ndim)
    moved = np.moveaxis(dy, list(span), list(range(indices.ndim)))
    np.add.at(rows, indices.reshape(-1), moved.reshape(indices.size, *rows.shape[1:]))
    return [dx]


@defines("Concat", "ConcatTraining")
def _concat(call: Call) -> Results:
    axis = int(call.attributes["axis"])
    parts = [value for value in call.inputs if value is not None]
    lengths = np.array([part.shape[axis] for part in parts], np.int64)
    return [np.concatenate(parts, axis=axis), lengths]


@defines("Scale")
def _scale(call: Call) -> Results:
    x, scale = call.inputs[:2]
    assert x is not None and scale is not None
    factor = scale.reshape(-1)[0]
    return [x / factor if call.get("scale_down", 0) else x * factor]


@defines("Gemm", "FusedMatMul")
def _product(call: Call) -> Results:
    """Of matrices or of stacks of them."""
    a, b, c = (call.at(i) for i in range(3))
    assert a is not None and b is not None
    a = np.swapaxes(a, -1, -2) if call.get("transA", 0) else a
    b = np.swapaxes(b, -1, -2) if call.get("transB", 0) else b
    y = call.get("alpha", 1.0) * np.matmul(a, b)
    beta = call.get("beta", 1.0)
    return [y if c is None or beta == 0.0 else y + beta * c]


def _rows(call: Call, x: Array) -> tuple[Array, int]:
    """The operand as Softmax sees it, and its axis: before opset 13 everything from the axis on is one."""
    along = call.opset >= 13 or call.op.endswith("_13")
    axis = int(call.get("axis", -1 if along else 1)) % x.ndim
    if along or axis == x.ndim - 1:
        return x, axis
    return x.reshape(math.prod(x.shape[:axis]), -1), 1


@defines("Softmax", "LogSoftmax")
def _softmax(call: Call) -> Results:
    x = call.inputs[0]
    assert x is not None
    rows, axis = _rows(call, x)
    shifted = rows - rows.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return [(shifted - np.log(total) if call.op == "LogSoftmax" else np.exp(shifted) / total).reshape(x.shape)]


@defines("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13")
def _softmax_gradient(call: Call) -> Results:
    dy, y = call.inputs[:2]
    assert dy is not None and y is not None
    (given, axis), (result, _) = _rows(call, dy), _rows(call, y)
    if call.op.startswith("Log"):
        dx = given - np.exp(result) * given.sum(axis=axis, keepdims=True)
    else:
        dx = result * (given - (given * result).sum(axis=axis, keepdims=True))
    return [dx.reshape(dy.shape)]


@defines("Gelu", "BiasGelu", "FastGelu")
def _gelu(call: Call) -> Results:
    x, bias = call.inputs[0], call.at(1)
    assert x is not None
    x = x if bias is None else x + bias
    if call.op == "FastGelu" or call.get("approximate", "none") == "tanh":
        return [0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))]
    return [(0.5 * x * (1 + erf(x / math.sqrt(2)))).astype(x.dtype)]


@defines("GeluGrad", "BiasGeluGrad_dX", "FastGeluGrad", "BiasFastGeluGrad_dX")
def _gelu_gradient(call: Call) -> Results:
    dy, x, bias = call.inputs[0], call.inputs[1], call.at(2)
    assert dy is not None and x is not None
    x = x if bias is None else x + bias
    if "Fast" in call.op or call.get("approximate", "none") == "tanh":
        factor = math.sqrt(2 / math.pi)
        inner = np.tanh(factor * (x + 0.044715 * x**3))
        slope = 0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * factor * (1 + 3 * 0.044715 * x**2)
    else:
        slope = 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return [(dy * slope).astype(dy.dtype)]


@defines("LayerNormalization")
def _layer_norm(call: Call) -> Results:
    x, scale, bias = call.inputs[0], call.inputs[1], call.at(2)
    assert x is not None and scale is not None
    axes = tuple(range(int(call.get("axis", -1)) % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + call.get("epsilon", 1e-5))
    y = (x - mean) * inverse * scale
    return [y if bias is None else y + bias, mean, inverse]


@defines("LayerNormalizationGrad")
def _layer_norm_gradient(call: Call) -> Results:
    dy, x, scale = call.inputs[:3]
    assert dy is not None and x is not None and scale is not None
    axes = tuple(range(int(call.get("axis", -1)) % x.ndim, x.ndim))
    mean, inverse = call.at(3), call.at(4)
    if mean is None or inverse is None:
        mean = x.mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + call.get("epsilon", 1e-5))
    normal, slope = (x - mean) * inverse, dy * scale
    dx = slope - slope.mean(axis=axes, keepdims=True)
    dx = inverse * (dx - normal * (slope * normal).mean(axis=axes, keepdims=True))
    others = tuple(range(axes[0]))
    return [dx, (dy * normal).sum(axis=others), dy.sum(axis=others)]


def _channels(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))


@defines("BatchNormalization")
def _batch_norm(call: Call) -> Results:
    x, scale, bias, mean, variance = (np.asarray(value) for value in call.inputs[:5])
    _, shape = _channels(x)
    normal = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + call.get("epsilon", 1e-5))
    return [normal * scale.reshape(shape) + bias.reshape(shape)]


@defines("BatchNormInternal")
def _batch_norm_training(call: Call) -> Results:
    x, scale, bias, mean, variance = (np.asarray(value) for value in call.inputs[:5])
    axes, shape = _channels(x)
    center = x.mean(axis=axes)
    spread = np.square(x - center.reshape(shape)).mean(axis=axes)
    inverse = 1 / np.sqrt(spread + call.get("epsilon", 1e-5))
    kept = call.get("momentum", 0.9)
    y = (x - center.reshape(shape)) * inverse.reshape(shape) * scale.reshape(shape) + bias.reshape(shape)
    running = (kept * mean + (1 - kept) * center, kept * variance + (1 - kept) * spread)
    return [y, *running, center, inverse]


@defines("BatchNormalizationGrad")
def _batch_norm_gradient(call: Call) -> Results:
    dy, x, scale, mean, inverse = (np.asarray(value) for value in call.inputs[:5])
    axes, shape = _channels(x)
    normal = (x - mean.reshape(shape)) * inverse.reshape(shape)
    dscale, dbias = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
    count = x.size / x.shape[1]
    dx = dy - dbias.reshape(shape) / count - normal * dscale.reshape(shape) / count
    return [dx * (scale * inverse).reshape(shape), dscale, dbias]


def _log_prob(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _shares(call: Call, labels: Array, classes: int, weight: Array | None, ignored: Array | None) -> Array:
    skipped = call.get("ignore_index", None if ignored is None else int(ignored.reshape(-1)[0]))
    counts = np.ones(labels.shape, bool) if skipped is None else labels != skipped
    known = np.where(counts, labels, 0)
    return np.asarray((np.ones(classes) if weight is None else weight)[known] * counts)


@defines("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal")
def _loss(call: Call) -> Results:
    scores, labels = call.inputs[:2]
    assert scores is not None and labels is not None
    log_prob = _log_prob(scores)
    shares = _shares(call, labels, scores.shape[1], call.at(2), call.at(3))
    known = np.where((labels >= 0) & (labels < scores.shape[1]), labels, 0)
    rows = -shares * np.take_along_axis(log_prob, known[:, None], axis=1).squeeze(1)
    reduction = call.get("reduction", "mean")
    if reduction == "none":
        return [rows, log_prob]
    return [np.asarray(rows.sum() / (shares.sum() if reduction == "mean" else 1.0)), log_prob]


@defines("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad")
def _loss_gradient(call: Call) -> Results:
    inputs = list(call.inputs)
    if len(inputs) == 2:
        inputs = [np.ones(()), *inputs]
    dy, log_prob, labels = (np.asarray(value) for value in inputs[:3])
    weight, ignored, bias = (inputs[i] if i < len(inputs) else None for i in (3, 4, 5))
    shares = _shares(call, labels, log_prob.shape[1], weight, ignored)
    reduction = call.get("reduction", "mean")
    factor = shares * (dy if reduction == "none" else dy.reshape(()))
    factor = factor / shares.sum() if reduction == "mean" else factor
    hot = np.moveaxis(np.eye(log_prob.shape[1])[np.clip(labels, 0, log_prob.shape[1] - 1)], -1, 1)
    dx = (factor[:, None] * (np.exp(log_prob) - hot)).astype(log_prob.dtype)
    return [dx if bias is None else dx + bias]


# ---- windows


@dataclass(frozen=True)
class _Window:
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    output: tuple[int, ...]

    def slices(self, place: Sequence[int]) -> tuple[slice, ...]:
        """Of a padded image: what this place of the window meets, window after window."""
        starts = [k * d for k, d in zip(place, self.dilations, strict=True)]
        triples = zip(starts, self.strides, self.output, strict=True)
        return (slice(None), slice(None), *(slice(a, a + s * (n - 1) + 1, s) for a, s, n in triples))


def _window(call: Call, image: tuple[int, ...], kernel: Sequence[int]) -> tuple[_Window, list[tuple[int, int]]]:
    rank = len(image)
    strides = tuple(call.get("strides", None) or (1,) * rank)
    dilations = tuple(call.get("dilations", None) or (1,) * rank)
    pads = list(call.get("pads", None) or (0,) * 2 * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if str(call.get("auto_pad", "NOTSET")).startswith("SAME"):
        for axis in range(rank):
            out = -(-image[axis] // strides[axis])
            total = max((out - 1) * strides[axis] + reach[axis] - image[axis], 0)
            less, more = total // 2, total - total // 2
            upper = call.get("auto_pad", "") == "SAME_UPPER"
            pads[axis], pads[axis + rank] = (less, more) if upper else (more, less)
    output, needed = [], []
    for axis in range(rank):
        span = image[axis] + pads[axis] + pads[axis + rank] - reach[axis]
        out = (-(-span // strides[axis]) if call.get("ceil_mode", 0) else span // strides[axis]) + 1
        if call.get("ceil_mode", 0) and (out - 1) * strides[axis] >= image[axis] + pads[axis]:
            out -= 1
        output.append(out)
        end = (out - 1) * strides[axis] + reach[axis] - image[axis] - pads[axis]
        needed.append((pads[axis], max(end, pads[axis + rank])))
    return _Window(tuple(kernel), strides, dilations, tuple(pads[:rank]), tuple(output)), needed


def _padded(x: Array, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *pads], constant_values=value)


def _at(place: Sequence[int]) -> Any:
    """The index of one place of a window, in the last dimensions."""
    return (..., *place)


@defines("Conv")
def _conv(call: Call) -> Results:
    x, w, b = call.inputs[0], call.inputs[1], call.at(2)
    assert x is not None and w is not None
    window, pads = _window(call, x.shape[2:], w.shape[2:])
    group, wide = int(call.get("group", 1)), _padded(x, pads)
    y = np.zeros((x.shape[0], group, w.shape[0] // group, *window.output), x.dtype)
    parts = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    for place in product(*map(range, window.kernel)):
        seen = wide[window.slices(place)].reshape(x.shape[0], group, -1, *window.output)
        y += np.einsum("ngc...,goc->ngo...", seen, parts[_at(place)], optimize=True)
    y = y.reshape(x.shape[0], w.shape[0], *window.output)
    return [y if b is None else y + b.reshape(1, -1, *[1] * len(window.output))]


@defines("ConvGrad")
def _conv_gradient(call: Call) -> Results:
    dy, x, w = call.inputs[:3]
    assert dy is not None and x is not None and w is not None
    window, pads = _window(call, x.shape[2:], w.shape[2:])
    group, wide = int(call.get("group", 1)), _padded(x, pads)
    parts = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    given = dy.reshape(dy.shape[0], group, -1, *dy.shape[2:])
    dwide: Array = np.zeros_like(wide)
    dw: Array = np.zeros_like(parts)
    for place in product(*map(range, window.kernel)):
        seen = wide[window.slices(place)].reshape(x.shape[0], group, -1, *window.output)
        flat = (given.reshape(*given.shape[:3], -1), seen.reshape(*seen.shape[:3], -1))
        dw[_at(place)] = np.einsum("ngos,ngcs->goc", *flat, optimize=True)
        back = np.einsum("ngo...,goc->ngc...", given, parts[_at(place)], optimize=True)
        dwide[window.slices(place)] += back.reshape(x.shape[0], x.shape[1], *window.output)
    inside = tuple(slice(p[0], p[0] + n) for p, n in zip(pads, x.shape[2:], strict=True))
    dx = dwide[(slice(None), slice(None), *inside)]
    return [dx, dw.reshape(w.shape), dy.sum(axis=(0, *range(2, dy.ndim)))]


@defines("MaxPool")
def _max_pool(call: Call) -> Results:
    x = call.inputs[0]
    assert x is not None
    window, pads = _window(call, x.shape[2:], call.attributes["kernel_shape"])
    wide = _padded(x, pads, -np.inf)
    numbers = _padded(np.arange(x.size).reshape(x.shape), pads, -1)
    places = list(product(*map(range, window.kernel)))
    seen = np.stack([wide[window.slices(place)] for place in places])
    first = seen.argmax(axis=0)[None]
    where = np.stack([numbers[window.slices(place)] for place in places])
    return [np.take_along_axis(seen, first, 0)[0], np.take_along_axis(where, first, 0)[0]]


@defines("MaxPoolGrad")
def _max_pool_gradient(call: Call) -> Results:
    dy, indices = call.inputs[:2]
    assert dy is not None and indices is not None
    if call.forward_shape is None:
        raise UserError("MaxPoolGrad: its MaxPool is not to be found", stage="verify")
    dx = np.zeros(math.prod(call.forward_shape), dy.dtype)
    np.add.at(dx, indices.reshape(-1).astype(np.int64), dy.reshape(-1))
    return [dx.reshape(call.forward_shape)]


def _counts(call: Call, window: _Window, image: tuple[int, ...], pads: Sequence[tuple[int, int]]) -> Array:
    """By how many an average divides, window by window."""
    rank = len(image)
    declared = list(call.get("pads", None) or (0,) * 2 * rank)
    ones = np.ones((1, 1, *image))
    if call.get("count_include_pad", 0):
        ones = _padded(ones, [(declared[i], declared[i + rank]) for i in range(rank)], 1.0)
        extra = [(0, max(p[0] + n + p[1] - s, 0)) for p, n, s in zip(pads, image, ones.shape[2:], strict=True)]
        wide = _padded(ones, extra)
    else:
        wide = _padded(ones, pads)
    return np.asarray(sum(wide[window.slices(place)] for place in product(*map(range, window.kernel))))


@defines("AveragePool")
def _average_pool(call: Call) -> Results:
    x = call.inputs[0]
    assert x is not None
    window, pads = _window(call, x.shape[2:], call.attributes["kernel_shape"])
    wide = _padded(x, pads)
    total = sum(wide[window.slices(place)] for place in product(*map(range, window.kernel)))
    return [np.asarray(total / _counts(call, window, x.shape[2:], pads)).astype(x.dtype)]


@defines("AveragePoolGrad")
def _average_pool_gradient(call: Call) -> Results:
    dy, shape = call.inputs[0], call.forward_shape
    if shape is None:
        raise UserError("AveragePoolGrad: its AveragePool is not to be found", stage="verify")
    assert dy is not None
    window, pads = _window(call, shape[2:], call.attributes["kernel_shape"])
    wide = _padded(np.zeros(shape, dy.dtype), pads)
    share = (dy / _counts(call, window, shape[2:], pads)).astype(dy.dtype)
    for place in product(*map(range, window.kernel)):
        wide[window.slices(place)] += share
    inside = tuple(slice(p[0], p[0] + n) for p, n in zip(pads, shape[2:], strict=True))
    return [wide[(slice(None), slice(None), *inside)]]
