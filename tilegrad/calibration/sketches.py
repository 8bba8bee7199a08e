"""Nodes to count kernels of: random shapes and attributes, chosen so that every kernel and every variant turns up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilegrad.ir.graph import Attribute
from tilegrad.ir.types import DType

Draw = np.random.Generator
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sketch:
    """A node to be made: inputs are shapes of floats, (type, shape) pairs, or None; `wanted` are differentiated."""

    op: str
    inputs: Sequence[Shape | tuple[DType, Shape] | None]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    wanted: tuple[int, ...] = ()
    outputs: tuple[bool, ...] = (True,)


def between(draw: Draw, low: int, high: int) -> int:
    """Log-uniform: small and large sizes alike."""
    return int(np.exp(draw.uniform(np.log(low), np.log(high + 0.999))))


def _is(draw: Draw, probability: float = 0.5) -> bool:
    return bool(draw.random() < probability)


def _choice(draw: Draw, *values: int) -> int:
    return int(values[draw.integers(len(values))])


def _outer_sgd(draw: Draw) -> Sketch:
    m, n = between(draw, 1, 128), between(draw, 1, 200)
    return Sketch("OuterSGD", ((m,), (n,), (m, n), ()))


def _sgd_group(draw: Draw) -> Sketch:
    size = (between(draw, 1, 1024),)
    pairs = 2 if _is(draw) else 3
    absent = (None,) * (6 - 2 * pairs)
    return Sketch("SGDGroup", (*(size,) * (2 * pairs), *absent, ()), outputs=(True,) * pairs)


def _dense_grad_sgd(draw: Draw) -> Sketch:
    m, n = between(draw, 1, 128), between(draw, 1, 200)
    return Sketch("DenseGradSGD", ((m,), (n,), (m, n), ()), {"relu": int(_is(draw))}, outputs=(True, True))


def _outer_accumulate(draw: Draw) -> Sketch:
    m, n = between(draw, 1, 128), between(draw, 1, 200)
    return Sketch("OuterAccumulate", ((m,), (n,), (m, n), (DType.BOOL, ())))


def _gemm(draw: Draw) -> Sketch:
    m = 1 if _is(draw, 0.25) else between(draw, 1, 96)
    k = 1 if _is(draw, 0.2) else between(draw, 1, 200)
    n = between(draw, 1, 96)
    trans_a, trans_b = int(_is(draw)), int(_is(draw))
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    attributes = {"transA": trans_a, "transB": trans_b}
    if _is(draw, 0.25):
        return Sketch("GemmReluGrad", (a, b, (m, n)), attributes)
    return Sketch("GemmRelu" if _is(draw, 0.4) else "Gemm", (a, b, (n,)) if _is(draw) else (a, b), attributes)


def _matmul(draw: Draw) -> Sketch:
    m = 1 if _is(draw, 0.2) else between(draw, 1, 80)
    k = 1 if _is(draw, 0.1) else between(draw, 1, 120)
    n = between(draw, 1, 80)
    trans_a, trans_b = int(_is(draw)), int(_is(draw))
    batch = () if _is(draw) else (_choice(draw, 2, 3, 4, 8, 16),)
    if batch:
        m, k, n = min(m, 24), min(k, 32), min(n, 24)
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    attributes: dict[str, Attribute] = {"transA": trans_a, "transB": trans_b, "alpha": 1.0}
    if batch and _is(draw, 0.3):
        attributes["sum_batch"] = 1
    if _is(draw, 0.25):
        attributes["alpha"] = 0.5
    return Sketch("FusedMatMul", ((*batch, *a), (*batch, *b)), attributes)


def _summed_matmul(draw: Draw) -> Sketch:
    """Of a batch that is added up, and scaled at the end."""
    m, k, n, batch = between(draw, 1, 24), between(draw, 1, 32), between(draw, 1, 24), _choice(draw, 2, 3, 5, 8)
    trans_a, trans_b = int(_is(draw)), int(_is(draw))
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    attributes: dict[str, Attribute] = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "sum_batch": 1}
    return Sketch("FusedMatMul", ((batch, *a), (batch, *b)), attributes)


def _convolution(draw: Draw, groups: int, channels: int, outs: int, kernel: Shape, image: Shape) -> Sketch:
    stride = _choice(draw, 1, 1, 2) if _is(draw, 0.9) else 3
    dilation = 1 if _is(draw, 0.85) else 2
    pads = [_choice(draw, 0, 1, 1, (k - 1) // 2, k // 2) for k in (*kernel, *kernel)]
    extent = tuple(max(i, (k - 1) * dilation + 1) for i, k in zip(image, kernel, strict=True))
    attributes: dict[str, Attribute] = {
        "strides": (stride, stride), "dilations": (dilation, dilation), "pads": tuple(pads), "group": groups,
        "kernel_shape": kernel,
    }  # fmt: skip
    batch = 1 if _is(draw, 0.7) else _choice(draw, 2, 3)
    inputs: list[Shape] = [(batch, groups * channels, *extent), (groups * outs, channels, *kernel)]
    if _is(draw, 0.3):
        inputs.append((groups * outs,))
    op = "ConvTranspose" if _is(draw, 0.05) and groups == 1 and dilation == 1 else "Conv"
    if op == "ConvTranspose":
        attributes["pads"] = (0, 0, 0, 0)
        inputs[1] = (groups * channels, outs, *kernel)
    return Sketch(op, inputs, attributes, tuple(range(len(inputs))))


def _conv(kernel: Callable[[Draw], Shape]) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        image = between(draw, 3, 34), between(draw, 3, 34)
        groups = 1 if _is(draw, 0.9) else 2
        return _convolution(draw, groups, between(draw, 1, 24), between(draw, 3, 24), kernel(draw), image)

    return sketch


def _narrow(draw: Draw) -> Sketch:
    """Few channels in or out of a strided window of one tap, which is no matrix product."""
    image = between(draw, 3, 34), between(draw, 3, 34)
    sketch = _convolution(draw, 1, between(draw, 1, 12), _choice(draw, 1, 2), (1, 1), image)
    stride = _choice(draw, 2, 3)
    return replace(sketch, attributes={**sketch.attributes, "strides": (stride, stride)})


def _transposed(draw: Draw) -> Sketch:
    kernel = ((1, 1), (3, 3), _any_kernel(draw))[_choice(draw, 0, 1, 2)]
    stride = _choice(draw, 1, 2, 3)
    groups, channels, outs = 1, between(draw, 1, 16), between(draw, 1, 16)
    if _is(draw, 0.3):
        groups, channels, outs = between(draw, 2, 24), 1, 1
    inputs: list[Shape] = [
        (1, groups * channels, between(draw, 3, 16), between(draw, 3, 16)), (groups * channels, outs, *kernel),
        (groups * outs,),
    ]  # fmt: skip
    pads = (_choice(draw, 0, 1) if min(kernel) > 1 else 0,) * 4
    attributes: dict[str, Attribute] = {
        "strides": (stride, stride), "kernel_shape": kernel, "group": groups, "pads": pads,
    }  # fmt: skip
    return Sketch("ConvTranspose", inputs if _is(draw, 0.8) else inputs[:2], attributes)


def _any_kernel(draw: Draw) -> Shape:
    return _choice(draw, 1, 2, 3, 4, 5, 7, 10), _choice(draw, 2, 4, 5)


def _depthwise(draw: Draw) -> Sketch:
    kernel = (3, 3) if _is(draw, 0.8) else (_choice(draw, 2, 3, 5), _choice(draw, 2, 3, 5))
    return _convolution(draw, between(draw, 1, 40), 1, 1, kernel, (between(draw, 3, 34), between(draw, 3, 34)))


def _pointwise(draw: Draw) -> Sketch:
    image = between(draw, 1, 20), between(draw, 1, 20)
    batch = 1 if _is(draw, 0.7) else 2
    channels, outs = between(draw, 1, 64), between(draw, 3, 64)
    inputs: list[Shape] = [(batch, channels, *image), (outs, channels, 1, 1)]
    if _is(draw, 0.3):
        inputs.append((outs,))
    return Sketch("Conv", inputs, {"kernel_shape": (1, 1)}, tuple(range(len(inputs))))


def _flat(op: str, count: int = 1, wanted: tuple[int, ...] = (0,), **attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        return Sketch(op, ((between(draw, 1, 6000),),) * count, attributes, wanted)

    return sketch


def _copy(draw: Draw) -> Sketch:
    dtype = _any_type(draw)
    return Sketch("Copy", ((dtype, (between(draw, 1, 6000),)),))


def _broadcast(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        full = tuple(between(draw, 1, 12) for _ in range(_choice(draw, 1, 2, 3, 4)))
        full = (*full, between(draw, 1, 200))
        other = tuple(1 if _is(draw) else extent for extent in full)
        pair = (full, other) if _is(draw, 0.75) else (other, full)
        return Sketch(op, pair, {}, (0, 1))

    return sketch


def _optimizer(op: str, count: int, **attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (between(draw, 1, 6000),)
        return Sketch(op, (*((size,) * count), ()), attributes)

    return sketch


def _accumulate(draw: Draw) -> Sketch:
    size = (between(draw, 1, 6000),)
    return Sketch("InPlaceAccumulatorV2", (size, size, (DType.BOOL, ())), outputs=(_is(draw), True))


def _image(draw: Draw, batch: int) -> Shape:
    return batch, between(draw, 1, 64), between(draw, 1, 24), between(draw, 1, 24)


def _batch_norm(op: str, frozen: bool) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = _image(draw, 1 if _is(draw) else _choice(draw, 2, 4))
        if _is(draw, 0.25):
            shape = (_choice(draw, 2, 3, 8) if not frozen else _choice(draw, 1, 1, 2, 4), between(draw, 1, 600))
        inputs = (shape, *((shape[1],),) * 4)
        outputs = (True,) if frozen else (True,) * 5
        return Sketch(op, inputs, {"epsilon": 1e-5}, (0, 1, 2), outputs)

    return sketch


def _frozen_norm(wanted: tuple[int, ...]) -> Callable[[Draw], Sketch]:
    """With constant statistics, with and without a Relu."""

    def sketch(draw: Draw) -> Sketch:
        shape: Shape = _image(draw, 1 if _is(draw) else _choice(draw, 2, 4))
        if _is(draw):
            shape = (_choice(draw, 1, 1, 2, 4), between(draw, 1, 600))
        return Sketch("FrozenBatchNormalization", (shape, *((shape[1],),) * 4), {"relu": int(_is(draw))}, wanted)

    return sketch


def _layer_norm(wanted: tuple[int, ...]) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        rows, width = between(draw, 1, 100), between(draw, 1, 300)
        inputs: tuple[Shape, ...] = ((rows, width), (width,), (width,))
        if _is(draw, 0.15):
            inputs = inputs[:2]
        outputs = (True,) * (3 if _is(draw, 0.8) else 1)  # without saved statistics the gradient computes them again
        return Sketch("LayerNormalization", inputs, {"axis": -1}, wanted[: len(inputs)], outputs)

    return sketch


def _softmax(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = between(draw, 1, 64), between(draw, 1, 100), 1 if _is(draw, 0.6) else between(draw, 1, 12)
        return Sketch(op, (shape,), {"axis": 1}, (0,))

    return sketch


def _cross_entropy(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        rows, classes = between(draw, 1, 40), between(draw, 2, 120)
        positions = () if _is(draw, 0.7) else (between(draw, 1, 6),)
        label = DType.I64 if _is(draw, 0.7) else DType.I32
        inputs: list[Shape | tuple[DType, Shape]] = [(rows, classes, *positions), (label, (rows, *positions))]
        if _is(draw, 0.25):
            inputs.append((classes,))
        return Sketch(op, inputs, {"reduction": "mean"}, (0,))

    return sketch


def _mean_loss(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (between(draw, 1, 6000),)
        return Sketch(op, (size, size), {}, (0,))

    return sketch


def _any_type(draw: Draw) -> DType:
    """One of each element size, floats most often."""
    return (DType.F32, DType.F32, DType.BOOL, DType.I16, DType.I64)[int(draw.integers(5))]


def _transpose(draw: Draw) -> Sketch:
    rank = _choice(draw, 2, 2, 3, 3, 4)
    shape = tuple(between(draw, 1, 128 if rank == 2 else 24) for _ in range(rank))
    order = tuple(int(i) for i in draw.permutation(rank))
    return Sketch("Transpose", (shape,), {"perm": order})


def _split(draw: Draw) -> Sketch:
    dtype = _any_type(draw)
    rows, width, parts = between(draw, 1, 64), between(draw, 1, 100), _choice(draw, 2, 3)
    axis = _choice(draw, 0, 1)
    shape = (rows * parts, width) if axis == 0 else (rows, width * parts)
    sizes = (shape[axis] // parts,) * parts
    return Sketch("Split", ((dtype, shape),), {"axis": axis, "split": sizes}, (), (True,) * parts)


def _concat(draw: Draw) -> Sketch:
    dtype, rows = _any_type(draw), between(draw, 1, 64)
    return Sketch("Concat", tuple((dtype, (rows, between(draw, 1, 100))) for _ in range(2)), {"axis": 1})


def _pool(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        kernel = _choice(draw, 2, 2, 3, 3, 5), _choice(draw, 2, 2, 3, 3, 4)
        stride = _choice(draw, 1, 2, 2, 3)
        pad = _choice(draw, 0, 1)
        shape = (1, between(draw, 1, 40), *(max(k, between(draw, 3, 32)) for k in kernel))
        attributes: dict[str, Attribute] = {"kernel_shape": kernel, "strides": (stride, stride), "pads": (pad,) * 4}
        return Sketch(op, (shape,), attributes, (0,))

    return sketch


def _global_pool(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        return Sketch(op, (_image(draw, 1),), {}, (0,))

    return sketch


def _reduction(op: str, wanted: tuple[int, ...] = (0,)) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = between(draw, 1, 30), between(draw, 1, 60), 1 if _is(draw, 0.4) else between(draw, 1, 60)
        axes = (1,) if _is(draw, 0.8) else (0, 2)  # the latter in two nests
        return Sketch(op, (shape,), {"axes": axes, "keepdims": 0}, wanted)

    return sketch


def _broadcast_to(draw: Draw, full: Shape) -> Shape:
    """The same shape, a single element, or one with some dimensions of 1."""
    kind = draw.random()
    return full if kind < 0.4 else (1,) if kind < 0.6 else tuple(1 if _is(draw) else extent for extent in full)


def _typed(op: str, dtypes: Sequence[DType], count: int = 2, **attributes: Attribute) -> Callable[[Draw], Sketch]:
    """Elementwise over operands of one of these types, often of one shape."""

    def sketch(draw: Draw) -> Sketch:
        dtype = dtypes[int(draw.integers(len(dtypes)))]
        full = (*(between(draw, 1, 8) for _ in range(_choice(draw, 0, 1, 2))), between(draw, 1, 300))
        shapes = [full, *(_broadcast_to(draw, full) for _ in range(count - 1))]
        return Sketch(op, [(dtype, shape) for shape in shapes], attributes)

    return sketch


def _where(draw: Draw) -> Sketch:
    dtype = _any_type(draw)
    full = (between(draw, 1, 8), between(draw, 1, 300))
    return Sketch("Where", ((DType.BOOL, full), (dtype, full), (dtype, _broadcast_to(draw, full))))


def _cast(draw: Draw) -> Sketch:
    types = (DType.F32, DType.I32, DType.I64, DType.BOOL, DType.U8)
    source, target = (types[int(i)] for i in draw.choice(len(types), 2, replace=False))
    return Sketch("Cast", ((source, (between(draw, 1, 3000),)),), {"to": target.short})


def _moved(op: str, make: Callable[[Draw], tuple[Shape, Mapping[str, Attribute]]]) -> Callable[[Draw], Sketch]:
    """An operator that moves elements of any size."""

    def sketch(draw: Draw) -> Sketch:
        dtype = _any_type(draw)
        shape, attributes = make(draw)
        return Sketch(op, ((dtype, shape),), attributes, (0,) if dtype is DType.F32 else ())

    return sketch


def _sliced(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
    shape = between(draw, 2, 20), between(draw, 2, 60)
    starts = tuple(int(draw.integers(0, extent // 2)) for extent in shape)
    steps = _choice(draw, 1, 2), _choice(draw, 1, 1, 3)
    return shape, {"starts": starts, "ends": shape, "axes": (0, 1), "steps": steps}


def _padded(mode: str) -> Callable[[Draw], tuple[Shape, Mapping[str, Attribute]]]:
    def make(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
        shape = between(draw, 1, 6), between(draw, 4, 24), between(draw, 4, 40)
        pads = tuple(_choice(draw, 0, 0, 1, 2, 3) if d % 3 else 0 for d in range(6))
        return shape, {"pads": pads if any(pads) else (0, 1, 0, 0, 0, 0), "mode": mode}

    return make


def _expanded(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
    full = between(draw, 1, 8), between(draw, 1, 30), between(draw, 1, 30)
    return tuple(1 if _is(draw, 0.4) else extent for extent in full), {"shape": full}


def _tiled(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
    return (between(draw, 1, 12), between(draw, 1, 40)), {"repeats": (_choice(draw, 1, 2, 3), _choice(draw, 1, 2))}


def _to_space(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
    return (1, 4 * between(draw, 1, 8), between(draw, 1, 12), between(draw, 1, 12)), {"blocksize": 2}


def _permuted(draw: Draw) -> tuple[Shape, Mapping[str, Attribute]]:
    rank = _choice(draw, 2, 2, 3, 3, 4)
    shape = tuple(between(draw, 1, 128 if rank == 2 else 24) for _ in range(rank))
    return shape, {"perm": tuple(int(i) for i in draw.permutation(rank))}


def _gather(draw: Draw) -> Sketch:
    dtype = _any_type(draw)
    index = DType.I64 if _is(draw) else DType.I32
    data = (between(draw, 1, 4), between(draw, 2, 60), between(draw, 1, 60))
    wanted = (0,) if dtype is DType.F32 else ()
    return Sketch("Gather", ((dtype, data), (index, (between(draw, 1, 40),))), {"axis": 1}, wanted)


def _gather_elements(draw: Draw) -> Sketch:
    dtype = _any_type(draw)
    index = DType.I64 if _is(draw) else DType.I32
    data = (between(draw, 1, 12), between(draw, 2, 30), between(draw, 1, 20))
    wanted = (0,) if dtype is DType.F32 else ()
    taken = (data[0], between(draw, 1, 20), data[2])
    return Sketch("GatherElements", ((dtype, data), (index, taken)), {"axis": 1}, wanted)


def _group_norm(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        groups = _choice(draw, 1, 2, 3, 4)
        shape = (_choice(draw, 1, 2, 3, 5), groups * between(draw, 1, 8), between(draw, 1, 12), between(draw, 1, 12))
        attributes: dict[str, Attribute] = {"num_groups": groups} if op == "GroupNormalization" else {}
        return Sketch(op, (shape, (shape[1],), (shape[1],)), attributes, (0, 1, 2))

    return sketch


def _integer_reduction(op: str, dtypes: Sequence[DType]) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        dtype = dtypes[int(draw.integers(len(dtypes)))]
        shape = between(draw, 1, 30), between(draw, 1, 60), 1 if _is(draw, 0.4) else between(draw, 1, 60)
        return Sketch(op, ((dtype, shape),), {"axes": (1,), "keepdims": 0})

    return sketch


def _small_pool(draw: Draw) -> Sketch:
    shape = (1, between(draw, 1, 20), between(draw, 4, 24), between(draw, 4, 24))
    dtype = DType.U8 if _is(draw) else DType.I8
    return Sketch("MaxPool", ((dtype, shape),), {"kernel_shape": (2, 2), "strides": (2, 2)})


def _adam(op: str, **attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (between(draw, 1, 4000),)
        return Sketch(op, (size, size, size, size, (), (DType.I64, ())), attributes, (), (True, True, True))

    return sketch


def _momentum(**attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (between(draw, 1, 4000),)
        return Sketch("Momentum", (size, size, size, ()), attributes, (), (True, True))

    return sketch


def _dropout(draw: Draw) -> Sketch:
    return Sketch("Dropout", ((between(draw, 1, 4000),),), {}, (), (True, _is(draw)))


def _power(draw: Draw) -> Sketch:
    """Of floats by one exponent, or of integers."""
    size = (between(draw, 1, 8), between(draw, 1, 200))
    if _is(draw):
        return Sketch("Pow", (size, ()), {}, (0,))
    dtype = _WHOLE[int(draw.integers(2))]
    return Sketch("Pow", ((dtype, size), (DType.F32 if _is(draw) else dtype, _broadcast_to(draw, size))))


def _sum_of_one(draw: Draw) -> Sketch:
    return Sketch("Sum", ((between(draw, 1, 4000),),))


def _seeded_dropout(draw: Draw) -> Sketch:
    size = (between(draw, 1, 4000),)
    outputs = (True, True) if _is(draw) else (True,)
    return Sketch("SeededDropout", (size, (DType.I64, ())), {"ratio": 0.3, "seed": 1, "stream": 1}, (), outputs)


_UNARY = (
    "Abs Elu Erf Exp HardSigmoid HardSwish LeakyRelu Log Neg Reciprocal Floor Ceil Round Sign Sigmoid Softplus Sqrt "
    "Tanh"
).split()
_WHOLE = (DType.I32, DType.I64)

SKETCHES: tuple[Callable[[Draw], Sketch], ...] = (
    _gemm, _matmul, _conv(lambda _: (3, 3)), _conv(lambda _: (1, 1)), _conv(_any_kernel), _depthwise, _pointwise,
    *(_flat(op, 2, ()) for op in ("Add", "Mul", "Sub", "Div", "Max", "Min", "Sum", "Mean")),
    _flat("Relu"), _flat("Gelu"), _flat("Gelu", approximate="tanh"), _flat("Clip", min=-0.5, max=0.5),
    *map(_flat, _UNARY),
    *map(_broadcast, ("Add", "Mul", "Sub", "Div", "Max", "Min", "Sum", "Pow", "PRelu")),
    *(_typed(op, _WHOLE) for op in ("Add", "Mul", "Sub", "Div", "Max", "Min")),
    *(_typed(op, (DType.F32, *_WHOLE)) for op in ("Equal", "Less", "LessOrEqual")),
    *(_typed(op, (DType.BOOL,)) for op in ("And", "Or", "Xor")), _typed("Not", (DType.BOOL,), 1),
    _typed("Clip", _WHOLE, 1, min=0, max=1), _where, _cast, _power, _sum_of_one,
    _optimizer("SGD", 2), _optimizer("SGD", 2, weight_decay=0.01),
    _momentum(), _momentum(nesterov=1), _momentum(weight_decay=0.01),
    _adam("Adam"), _adam("AdamW", weight_decay=0.01),
    _accumulate, _copy, _outer_sgd, _outer_accumulate, _seeded_dropout, _dropout,
    _batch_norm("BatchNormalization", True), _batch_norm("BatchNormInternal", False),
    *map(_frozen_norm, ((0, 1, 2), (0,), (0, 1), (0, 2), (1, 2), (1,), (2,))),
    _group_norm("GroupNormalization"), _group_norm("InstanceNormalization"),
    _layer_norm((0, 1, 2)), _layer_norm((0,)), _layer_norm((0, 2)), _layer_norm((0, 1)),
    _softmax("Softmax"), _softmax("LogSoftmax"),
    _cross_entropy("SoftmaxCrossEntropyLoss"), _cross_entropy("NegativeLogLikelihoodLoss"),
    *map(_mean_loss, ("MSELoss", "L1Loss", "BCEWithLogitsLoss")),
    _transpose, _split, _concat, _moved("Transpose", _permuted), _moved("Slice", _sliced),
    *(_moved("Pad", _padded(mode)) for mode in ("constant", "reflect", "edge", "wrap")),
    _moved("Expand", _expanded), _moved("Tile", _tiled), _moved("DepthToSpace", _to_space),
    _gather, _gather_elements,
    _pool("MaxPool"), _pool("AveragePool"), _small_pool,
    _global_pool("GlobalAveragePool"), _global_pool("GlobalMaxPool"),
    *map(_reduction, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL2 ReduceSumSquare".split()),
    *(_reduction(op, ()) for op in ("ReduceProd", "ReduceL1")),
    _integer_reduction("ReduceSum", _WHOLE), _integer_reduction("ReduceMax", (DType.I32, DType.BOOL)),
    _integer_reduction("ReduceMin", (DType.I32, DType.BOOL)),
    _dense_grad_sgd, _sgd_group, _narrow, _transposed, _summed_matmul,
)  # fmt: skip
