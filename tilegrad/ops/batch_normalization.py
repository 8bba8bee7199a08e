"""BatchNormalization with running statistics (policy `frozen`), with batch statistics (`train`), and their gradients.

Kernels normalise by the inverse deviation, 1 / sqrt(variance + epsilon). Of a constant variance it is taken when the
program is made (passes/freeze_statistics.py), otherwise by `InverseDeviation`: a square root and a division, the same
bits.

`BatchNormInternal` and `BatchNormalizationGrad` are ONNX Runtime's training pair. A statistic is the sum over each
sample's plane, the samples' sums added in order, divided by the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._normalize import Layout, epsilon_of, expect_channels, expect_image
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats
from tilegrad.ops.frozen_batch_normalization import frozen_gradient


def _layout(node: NodeView, data: int) -> Layout:
    n, c, *plane = node.input(data).shape
    return Layout("batch_norm", n, c, 1, prod(plane), False, epsilon_of(node))


def _check_forward(node: NodeView, statistics: int = 2) -> None:
    """`statistics` is how many running ones the node must have."""
    node.expect_inputs(3 + statistics)
    expect_image(node, 0)
    running = ((3, "running mean"), (4, "running variance"))[:statistics]
    expect_channels(node, 0, (1, "scale"), (2, "bias"), *running)
    epsilon_of(node)
    momentum = node.attribute("momentum", 0.9)
    if not 0.0 <= momentum <= 1.0:
        raise node.error(f"{node.node.op}: momentum out of range", expected="0 to 1", got=str(momentum))


def _inverse_nest(node: NodeView, variance: str, inverse: str) -> Nest:
    reads, writes = [("variance", variance)], [("spread", inverse)]
    return map_nest("batch_norm_inverse", node.types[variance].size, reads, writes, {"alpha": epsilon_of(node)})


def _statistic_nest(
    node: NodeView, layout: Layout, part: str, running: int, saved: str, *, is_variance: bool, unbiased: bool
) -> Nest:
    """Reduces the samples' sums to the batch statistic and updates the running one (input `running`).

    The samples are an inner axis, not a reduction: the update may lie on the running statistic itself, which a cut
    reduction would overwrite before its end.
    """
    count = layout.o * layout.s
    momentum = float(node.attribute("momentum", 0.9))
    channels = ((layout.g,), (along("g"),))
    updated = node.output_name(running - 2)
    operands = (
        Operand("part", part, Access.READ, (layout.o, layout.g), (along("o"), along("g"))),
        Operand("running", node.inputs[running] if updated else None, Access.READ, *channels),
        Operand("updated", updated, Access.WRITE, *channels),
        Operand("saved", saved, Access.WRITE, *channels),
    )
    constants = {
        "is_variance": int(is_variance),
        "count": float(count),
        "running_count": float(count - 1 if is_variance and unbiased else count),
        "momentum": momentum,
        "complement": 1.0 - momentum,
        "epsilon": layout.epsilon,
    }
    axes = (Axis("o", layout.o, AxisKind.INNER), Axis("g", layout.g))
    return Nest("batch_norm_statistic", axes, operands, constants)


def _training_nests(node: NodeView, part: str, mean: str, inverse: str, unbiased: bool) -> tuple[Nest, ...]:
    layout = _layout(node, 0)
    x, scale, bias = node.inputs[:3]
    return (
        layout.row_statistics(x, None, part, 0),
        _statistic_nest(node, layout, part, 3, mean, is_variance=False, unbiased=unbiased),
        layout.row_statistics(x, mean, part, 0),
        _statistic_nest(node, layout, part, 4, inverse, is_variance=True, unbiased=unbiased),
        layout.apply(x, scale, bias, mean, inverse, node.outputs[0]),
    )


class BatchNormalization(Operator):
    """`training_mode` normalises by the batch as ONNX defines it (no gradient: policy `train` makes its own form)."""

    name = "BatchNormalization"
    parameter_inputs = (1, 2)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        _check_forward(node)
        if node.attribute("training_mode", 0):
            return (node.input(0), node.input(3), node.input(4))
        return (node.input(0),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        n, c = node.input(0).shape[:2]
        channels = TensorType(DType.F32, (c,))
        if not node.attribute("training_mode", 0):
            return (channels,)
        return (TensorType(DType.F32, (n, c)), channels, channels)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        if node.attribute("training_mode", 0):
            part, mean, inverse = (node.temporary(i) for i in range(3))
            return _training_nests(node, part, mean, inverse, unbiased=False)
        x, scale, bias, mean, variance = node.inputs
        inverse = node.temporary(0)
        return (
            _inverse_nest(node, variance, inverse),
            _layout(node, 0).apply(x, scale, bias, mean, inverse, node.outputs[0]),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (1, 3), (2, 4)) if node.attribute("training_mode", 0) else ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        if node.attribute("training_mode", 0):
            raise node.error(
                "BatchNormalization with training_mode has no gradient",
                hint="export the model in evaluation mode and choose --batchnorm train",
            )
        (inverse,) = build.emit("InverseDeviation", [node.inputs[4]], {"epsilon": epsilon_of(node)})
        *gradients, dscale = frozen_gradient(node, None, inverse, upstream[0], wanted, build)
        return (*gradients, None if dscale is None else self._variance_gradient(node.inputs[1], inverse, dscale, build))

    @staticmethod
    def _variance_gradient(scale: str, inverse: str, dscale: str, build: GradientBuilder) -> str:
        """-(dscale scale inverse^2) / 2: a variance that the graph computes is differentiated like anything else."""
        (square,) = build.emit("Mul", [inverse, inverse])
        (slope,) = build.emit("Mul", [square, scale])
        (product,) = build.emit("Mul", [dscale, slope])
        return build.emit("Mul", [product, build.constant(-0.5)])[0]


class InverseDeviation(Operator):
    """variance -> 1 / sqrt(variance + epsilon)."""

    name = "InverseDeviation"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        epsilon_of(node)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (_inverse_nest(node, node.inputs[0], node.outputs[0]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)


class BatchNormInternal(Operator):
    """(X, scale, B, running mean?, variance?) -> (Y, updated mean?, updated variance?, saved mean, saved 1/std).

    `unbiased_running_variance` 1 is PyTorch's running variance (divided by count - 1), 0 is ONNX's. Without running
    statistics there is nothing to update.
    """

    name = "BatchNormInternal"
    parameter_inputs = (1, 2)
    nondifferentiable_inputs = (3, 4)

    def example(self, draw: Draw) -> Example:
        shape = (draw.one_of(2, 3, 8), draw.between(1, 600)) if draw.is_so(0.3) else draw.image()
        return Example(floats(shape, *((shape[1],),) * 4), outputs=(True,) * 5)

    def _updates(self, node: NodeView) -> bool:
        return node.has_output(1) or node.has_output(2) or len(node.inputs) > 3

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        _check_forward(node, 2 if self._updates(node) else 0)
        if len(node.outputs) != 5 or not (node.has_output(3) and node.has_output(4)):
            raise node.error(
                "BatchNormInternal needs its saved statistics", expected="5 outputs", got=", ".join(node.outputs)
            )
        x = node.input(0)
        if x.size == x.shape[1] and self._updates(node) and node.attribute("unbiased_running_variance", 1):
            raise node.error(
                "batch statistics need more than one value per channel",
                expected="a batch or a plane of several values",
                got=str(list(x.shape)),
                hint="use a larger --batch, or --batchnorm frozen",
            )
        channels = TensorType(DType.F32, (x.shape[1],))
        return (x, channels, channels, channels, channels)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return (TensorType(DType.F32, node.input(0).shape[:2]),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        unbiased = bool(node.attribute("unbiased_running_variance", 1))
        return _training_nests(node, node.temporary(0), node.outputs[3], node.outputs[4], unbiased)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (1, 3), (2, 4)) if self._updates(node) else ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        if any(gradient is not None for gradient in upstream[1:]):
            raise node.error(
                "the statistics that BatchNormalization updates cannot be differentiated",
                hint="compute them with ReduceMean",
            )
        x, scale = node.inputs[:2]
        return build.emit(
            "BatchNormalizationGrad",
            [upstream[0], x, scale, node.outputs[3], node.outputs[4]],
            outputs=tuple(wanted[:3]),
            hint=f"{x}_grad",
        )


def _gradient_types(node: NodeView) -> tuple[TensorType, ...]:
    channels = TensorType(DType.F32, (node.input(0).shape[1],))
    return (node.input(0), channels, channels)


def _sum_nests(node: NodeView, layout: Layout, temporaries: Sequence[str], dscale: str, dbias: str) -> tuple[Nest, ...]:
    """dscale and dbias. With one sample, or one element a plane, one of the two sums is over nothing."""
    dy, x, _, mean, spread = node.inputs
    if layout.o == 1 and layout.s != 1:
        return (layout.dots(dy, x, mean, spread, dbias, dscale),)
    if layout.s == 1:
        rows = ((layout.o, layout.g), (along("o"), along("g")))
        channels = ((layout.g,), (along("g"),))
        operands = (
            Operand("dy", dy, Access.READ, *rows),
            Operand("x", x, Access.READ, *rows),
            Operand("mean", mean, Access.READ, *channels),
            Operand("spread", spread, Access.READ, *channels),
            Operand("sum", dbias, Access.WRITE, *channels),
            Operand("dot", dscale, Access.WRITE, *channels),
        )
        axes = (Axis("o", layout.o, AxisKind.REDUCTION), Axis("g", layout.g))
        return (Nest("batch_norm_flat_dots", axes, operands),)
    total, dot = temporaries[:2]
    return (
        layout.dots(dy, x, mean, spread, total, dot),
        layout.parameters(total, dot, dscale, dbias),
    )


def _sum_temporaries(layout: Layout) -> tuple[TensorType, ...]:
    """Per-sample sums, where both sums are over something."""
    return () if layout.o == 1 or layout.s == 1 else (TensorType(DType.F32, (layout.o, layout.g)),) * 2


class BatchNormalizationGrad(Operator):
    """(dY, X, scale, saved mean, saved 1/std) -> (dX?, dscale?, dbias?), through the batch statistics."""

    name = "BatchNormalizationGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(5)
        expect_image(node, 0)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward input")
        expect_channels(node, 0, (2, "scale"), (3, "saved mean"), (4, "saved inverse deviation"))
        return _gradient_types(node)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        layout = _layout(node, 0)
        channels = TensorType(DType.F32, (layout.g,))
        # After the per-sample sums: dscale, dbias (where they are no outputs), shift, tilt.
        return (*_sum_temporaries(layout), *(channels,) * 4)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        layout = _layout(node, 0)
        dy, x, scale, mean, inverse = node.inputs
        own = [node.temporary(i) for i in range(len(self.temporaries(node)))]
        spare_dscale, spare_dbias, shift, tilt = own[-4:]
        dscale, dbias = node.output_name(1) or spare_dscale, node.output_name(2) or spare_dbias
        nests = list(_sum_nests(node, layout, own, dscale, dbias))
        if node.has_output(0):
            nests.append(layout.moments(dbias, dscale, scale, shift, tilt, layout.o * layout.s))
            nests.append(layout.input_gradient(dy, x, scale, mean, inverse, shift, tilt, node.outputs[0]))
        return tuple(nests)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
