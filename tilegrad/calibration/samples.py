"""Random nests and tiles of every kernel: nodes with random shapes and attributes, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tilegrad.calibration.counting import Case
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute, Node
from tilegrad.ir.nest import AxisKind, Nest, Range, operand_box, ordered_sizes
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.passes.autodiff import append_backward
from tilegrad.passes.builder import GraphBuilder

LARGEST_TILE_BYTES = 160 * 1024
MOST_STEPS = 250_000
CORE_COUNTS = (1, 8, 2, 8, 4, 8)

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


def _size(draw: Draw, low: int, high: int) -> int:
    """Log-uniform: small and large sizes alike."""
    return int(np.exp(draw.uniform(np.log(low), np.log(high + 0.999))))


def _is(draw: Draw, probability: float = 0.5) -> bool:
    return bool(draw.random() < probability)


def _choice(draw: Draw, *values: int) -> int:
    return int(values[draw.integers(len(values))])


def _outer_sgd(draw: Draw) -> Sketch:
    m, n = _size(draw, 1, 128), _size(draw, 1, 200)
    return Sketch("OuterSGD", ((m,), (n,), (m, n), ()))


def _gemm(draw: Draw) -> Sketch:
    m = 1 if _is(draw, 0.25) else _size(draw, 1, 96)
    k = 1 if _is(draw, 0.2) else _size(draw, 1, 200)
    n = _size(draw, 1, 96)
    trans_a, trans_b = int(_is(draw)), int(_is(draw))
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    bias = (n,) if _is(draw) else None
    return Sketch("Gemm", (a, b, bias) if bias else (a, b), {"transA": trans_a, "transB": trans_b})


def _matmul(draw: Draw) -> Sketch:
    m = 1 if _is(draw, 0.2) else _size(draw, 1, 80)
    k = 1 if _is(draw, 0.1) else _size(draw, 1, 120)
    n = _size(draw, 1, 80)
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
        image = _size(draw, 3, 34), _size(draw, 3, 34)
        groups = 1 if _is(draw, 0.9) else 2
        return _convolution(draw, groups, _size(draw, 1, 24), _size(draw, 3, 24), kernel(draw), image)

    return sketch


def _any_kernel(draw: Draw) -> Shape:
    return _choice(draw, 1, 2, 3, 4, 5, 7, 10), _choice(draw, 2, 4, 5)


def _depthwise(draw: Draw) -> Sketch:
    kernel = (3, 3) if _is(draw, 0.8) else (_choice(draw, 2, 3, 5), _choice(draw, 2, 3, 5))
    return _convolution(draw, _size(draw, 1, 40), 1, 1, kernel, (_size(draw, 3, 34), _size(draw, 3, 34)))


def _pointwise(draw: Draw) -> Sketch:
    image = _size(draw, 1, 20), _size(draw, 1, 20)
    batch = 1 if _is(draw, 0.7) else 2
    channels, outs = _size(draw, 1, 64), _size(draw, 3, 64)
    inputs: list[Shape] = [(batch, channels, *image), (outs, channels, 1, 1)]
    if _is(draw, 0.3):
        inputs.append((outs,))
    return Sketch("Conv", inputs, {"kernel_shape": (1, 1)}, tuple(range(len(inputs))))


def _flat(op: str, count: int = 1, wanted: tuple[int, ...] = (0,), **attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        return Sketch(op, ((_size(draw, 1, 6000),),) * count, attributes, wanted)

    return sketch


def _copy(draw: Draw) -> Sketch:
    dtype = (DType.BOOL, DType.I16, DType.F32, DType.I64)[int(draw.integers(4))]
    return Sketch("Copy", ((dtype, (_size(draw, 1, 6000),)),))


def _broadcast(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        full = tuple(_size(draw, 1, 12) for _ in range(_choice(draw, 1, 2, 3, 4)))
        full = (*full, _size(draw, 1, 200))
        other = tuple(1 if _is(draw) else extent for extent in full)
        pair = (full, other) if _is(draw, 0.75) else (other, full)
        return Sketch(op, pair, {}, (0, 1))

    return sketch


def _optimizer(op: str, count: int, **attributes: Attribute) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (_size(draw, 1, 6000),)
        return Sketch(op, (*((size,) * count), ()), attributes)

    return sketch


def _accumulate(draw: Draw) -> Sketch:
    size = (_size(draw, 1, 6000),)
    return Sketch("InPlaceAccumulatorV2", (size, size, (DType.BOOL, ())), outputs=(False, True))


def _image(draw: Draw, batch: int) -> Shape:
    return batch, _size(draw, 1, 64), _size(draw, 1, 24), _size(draw, 1, 24)


def _batch_norm(op: str, frozen: bool) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = _image(draw, 1 if _is(draw) else _choice(draw, 2, 4))
        if _is(draw, 0.25):
            shape = (_choice(draw, 2, 3, 8) if not frozen else _choice(draw, 1, 1, 2, 4), _size(draw, 1, 600))
        inputs = (shape, *((shape[1],),) * 4)
        outputs = (True,) if frozen else (True,) * 5
        return Sketch(op, inputs, {"epsilon": 1e-5}, (0, 1, 2), outputs)

    return sketch


def _frozen_grad(draw: Draw) -> Sketch:
    """Of the input alone, without its parameters."""
    shape = _image(draw, 1)
    return Sketch("BatchNormalization", (shape, *((shape[1],),) * 4), {"epsilon": 1e-5}, (0,))


def _layer_norm(wanted: tuple[int, ...]) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        rows, width = _size(draw, 1, 100), _size(draw, 1, 300)
        inputs: tuple[Shape, ...] = ((rows, width), (width,), (width,))
        if _is(draw, 0.15):
            inputs = inputs[:2]
        return Sketch("LayerNormalization", inputs, {"axis": -1}, wanted[: len(inputs)], (True, True, True))

    return sketch


def _softmax(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = _size(draw, 1, 64), _size(draw, 1, 100), 1 if _is(draw, 0.6) else _size(draw, 1, 12)
        return Sketch(op, (shape,), {"axis": 1}, (0,))

    return sketch


def _cross_entropy(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        rows, classes = _size(draw, 1, 40), _size(draw, 2, 120)
        positions = () if _is(draw, 0.7) else (_size(draw, 1, 6),)
        label = DType.I64 if _is(draw, 0.7) else DType.I32
        inputs: list[Shape | tuple[DType, Shape]] = [(rows, classes, *positions), (label, (rows, *positions))]
        if _is(draw, 0.25):
            inputs.append((classes,))
        return Sketch(op, inputs, {"reduction": "mean"}, (0,))

    return sketch


def _mean_loss(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        size = (_size(draw, 1, 6000),)
        return Sketch(op, (size, size), {}, (0,))

    return sketch


def _transpose(draw: Draw) -> Sketch:
    rank = _choice(draw, 2, 2, 3, 3, 4)
    shape = tuple(_size(draw, 1, 128 if rank == 2 else 24) for _ in range(rank))
    order = tuple(int(i) for i in draw.permutation(rank))
    return Sketch("Transpose", (shape,), {"perm": order})


def _split(draw: Draw) -> Sketch:
    rows, width, parts = _size(draw, 1, 64), _size(draw, 1, 100), _choice(draw, 2, 3)
    axis = _choice(draw, 0, 1)
    shape = (rows * parts, width) if axis == 0 else (rows, width * parts)
    sizes = (shape[axis] // parts,) * parts
    return Sketch("Split", (shape,), {"axis": axis, "split": sizes}, (), (True,) * parts)


def _concat(draw: Draw) -> Sketch:
    rows = _size(draw, 1, 64)
    return Sketch("Concat", tuple((rows, _size(draw, 1, 100)) for _ in range(2)), {"axis": _choice(draw, 1)})


def _pool(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        kernel = _choice(draw, 2, 2, 3, 3, 5), _choice(draw, 2, 2, 3, 3, 4)
        stride = _choice(draw, 1, 2, 2, 3)
        pad = _choice(draw, 0, 1)
        shape = (1, _size(draw, 1, 40), *(max(k, _size(draw, 3, 32)) for k in kernel))
        attributes: dict[str, Attribute] = {"kernel_shape": kernel, "strides": (stride, stride), "pads": (pad,) * 4}
        return Sketch(op, (shape,), attributes, (0,))

    return sketch


def _global_pool(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        return Sketch(op, (_image(draw, 1),), {}, (0,))

    return sketch


def _reduction(op: str) -> Callable[[Draw], Sketch]:
    def sketch(draw: Draw) -> Sketch:
        shape = _size(draw, 1, 30), _size(draw, 1, 60), 1 if _is(draw, 0.4) else _size(draw, 1, 60)
        return Sketch(op, (shape,), {"axes": (1,), "keepdims": 0}, (0,))

    return sketch


SKETCHES: tuple[Callable[[Draw], Sketch], ...] = (
    _gemm, _matmul, _conv(lambda _: (3, 3)), _conv(lambda _: (1, 1)), _conv(_any_kernel), _depthwise, _pointwise,
    _flat("Add", 2, ()), _flat("Mul", 2, ()), _flat("Sub", 2, ()), _flat("Div", 2, ()),
    _flat("Relu"), _flat("Gelu"), _flat("Gelu", approximate="tanh"),
    *map(_broadcast, ("Add", "Mul", "Sub", "Div")),
    _optimizer("SGD", 2), _optimizer("SGD", 2, weight_decay=0.01),
    _accumulate, _copy, _outer_sgd,
    _batch_norm("BatchNormalization", True), _batch_norm("BatchNormInternal", False), _frozen_grad,
    _layer_norm((0, 1, 2)), _layer_norm((0,)), _layer_norm((0, 2)), _layer_norm((0, 1)),
    _softmax("Softmax"), _softmax("LogSoftmax"),
    _cross_entropy("SoftmaxCrossEntropyLoss"), _cross_entropy("NegativeLogLikelihoodLoss"),
    *map(_mean_loss, ("MSELoss", "L1Loss", "BCEWithLogitsLoss")),
    _transpose, _split, _concat, _pool("MaxPool"), _pool("AveragePool"),
    _global_pool("GlobalAveragePool"), *map(_reduction, ("ReduceSum", "ReduceMean")),
)  # fmt: skip


def nests_of(sketch: Sketch) -> list[tuple[str, Nest]]:
    """(operator, nest) of the node and of its gradients."""
    builder = GraphBuilder("sample")
    names = []
    for i, entry in enumerate(sketch.inputs):
        if entry is None:
            names.append("")
            continue
        is_typed = len(entry) == 2 and isinstance(entry[0], DType)
        tensor_type = TensorType(*entry) if is_typed else TensorType(DType.F32, entry)  # type: ignore[arg-type]
        names.append(builder.add_input(f"x{i}", tensor_type))
    results = tuple(f"y{i}" if wanted else "" for i, wanted in enumerate(sketch.outputs))
    builder.append(Node("node", sketch.op, tuple(names), results, dict(sketch.attributes)))
    graph = builder.finish(filter(None, results))
    if sketch.wanted:
        builder = GraphBuilder.from_graph(graph)
        seed = builder.add_input("seed", graph.types["y0"])
        gradients: dict[str, str] = {}
        append_backward(builder, graph, "y0", seed, [f"x{i}" for i in sketch.wanted], gradients.__setitem__)
        graph = builder.finish((*graph.outputs, *gradients.values()))
    found = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        if not operator.is_view:
            found += [(node.op, nest) for nest in operator.nests(NodeView(node, graph.types))]
    return found


def random_tile(nest: Nest, draw: Draw) -> dict[str, Range]:
    """Small enough for a scratchpad and for counting."""
    wished = {}
    for axis in nest.axes:
        wished[axis.name] = axis.extent if _is(draw, 0.6) else _size(draw, 1, max(axis.extent, 1))
    sizes = ordered_sizes(nest, wished)
    while True:
        tile = {}
        for axis in nest.axes:
            last = max(0, -(-axis.extent // sizes[axis.name]) - 1)
            start = int(draw.integers(0, last + 1)) * sizes[axis.name]
            tile[axis.name] = Range(start, min(axis.extent, start + sizes[axis.name]))
        size_bytes = sum(
            4 * prod(r.size for r in operand_box(operand, tile))
            for operand in nest.operands
            if operand.value is not None
        )
        steps = prod(r.size for r in tile.values())
        if size_bytes <= LARGEST_TILE_BYTES and steps <= MOST_STEPS:
            return tile
        cuttable = [axis.name for axis in nest.axes if axis.kind is not AxisKind.INNER and sizes[axis.name] > 1]
        if not cuttable:
            return tile
        largest = max(cuttable, key=lambda name: sizes[name])
        sizes = ordered_sizes(nest, {**sizes, largest: -(-sizes[largest] // 2)})


@dataclass(frozen=True)
class Sample:
    op: str
    case: Case


def draw_samples(seed: int, sketches: Sequence[Callable[[Draw], Sketch]] = SKETCHES) -> Iterator[Sample]:
    """One node of each sketch after the other, endlessly; every nest once or twice, on varying numbers of cores."""
    draw = np.random.default_rng(seed)
    number = 0
    while True:
        for make in sketches:
            try:
                found = nests_of(make(draw))
            except UserError:
                continue  # an impossible geometry
            for op, nest in found:
                if any(axis.extent == 0 for axis in nest.axes):
                    continue
                number += 1
                cores = CORE_COUNTS[number % len(CORE_COUNTS)]
                yield Sample(op, Case(nest, random_tile(nest, draw), cores, seed=number))
