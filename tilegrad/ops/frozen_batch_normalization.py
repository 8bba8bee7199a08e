"""BatchNormalization with statistics that are constants, a Relu behind it included, and its gradient in one pass.

Passes make these operators (freeze_statistics, fuse_activation). The bits are those of BatchNormalization, then Relu.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._normalize import Layout, expect_channels, expect_image
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_STATISTICS = ((3, "running mean"), (4, "inverse deviation"))


class _Shape:
    """[o, g, s], or [o, g] where s is 1: there the vector runs along the channels."""

    def __init__(self, data: TensorType) -> None:
        self.o, self.g, *plane = data.shape
        self.s = prod(plane)

    @property
    def is_flat(self) -> bool:
        return self.s == 1

    def axes(self, o_kind: AxisKind, s_kind: AxisKind) -> tuple[Axis, ...]:
        rows = (Axis("o", self.o, o_kind), Axis("g", self.g))
        return rows if self.is_flat else (*rows, Axis("s", self.s, s_kind))

    def data(self, name: str, value: str | None, access: Access = Access.READ) -> Operand:
        shape, index = (self.o, self.g, self.s), (along("o"), along("g"), along("s"))
        kept = 2 if self.is_flat else 3
        return Operand(name, value, access, shape[:kept], index[:kept])

    def channels(self, name: str, value: str | None, access: Access = Access.READ) -> Operand:
        return Operand(name, value, access, (self.g,), (along("g"),))

    def sums(self, name: str, value: str | None) -> Operand:
        """Over s for each sample, or where s is 1 over the samples."""
        if self.is_flat:
            return self.channels(name, value, Access.WRITE)
        index: tuple[Index, ...] = (along("o"), along("g"))
        return Operand(name, value, Access.WRITE, (self.o, self.g), index)

    @property
    def needs_second_sum(self) -> bool:
        return self.o > 1 and not self.is_flat


class FrozenBatchNormalization(Operator):
    """(X, scale, B, mean, inverse deviation) -> Y; with `relu` 1, Y is the Relu of the normalised X."""

    name = "FrozenBatchNormalization"
    parameter_inputs = (1, 2)

    def example(self, draw: Draw) -> Example:
        return Example((), {"relu": draw.one_of(0, 1)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(5)
        expect_image(node, 0)
        expect_channels(node, 0, (1, "scale"), (2, "bias"), *_STATISTICS)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        shape = _Shape(node.input(0))
        x, scale, bias, mean, inverse = node.inputs
        operands = (
            shape.data("x", x),
            shape.channels("scale", scale),
            shape.channels("bias", bias),
            shape.channels("mean", mean),
            shape.channels("spread", inverse),
            shape.data("y", node.outputs[0], Access.WRITE),
        )
        kernel = "frozen_norm_flat" if shape.is_flat else "frozen_norm"
        axes = shape.axes(AxisKind.PARALLEL, AxisKind.PARALLEL)
        return (Nest(kernel, axes, operands, {"has_relu": int(bool(node.attribute("relu", 0)))}),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        output = node.outputs[0] if node.attribute("relu", 0) else None
        inverse = node.inputs[4]
        *gradients, dscale = frozen_gradient(node, output, inverse, upstream[0], wanted, build)
        dinverse = None
        if dscale is not None:  # y = (x - mean) inverse scale + B, and dscale = sum(dy (x - mean) inverse)
            (dinverse,) = build.emit("Div", [build.emit("Mul", [dscale, node.inputs[1]])[0], inverse])
        return (*gradients, dinverse)


def frozen_gradient(
    node: NodeView,
    relu_output: str | None,
    inverse: str,
    upstream: str | None,
    wanted: Sequence[bool],
    build: GradientBuilder,
) -> tuple[str | None, str | None, str | None, str | None, str | None]:
    """Of a node whose first inputs are X, scale, B and mean: the gradients of these four, then that of the scale
    again, where the fifth input's gradient is made of it.

    A mean that is computed in the graph has the gradient -(dB scale inverse), one for each channel.
    """
    x, scale, _, mean = node.inputs[:4]
    needs_dscale = wanted[1] or wanted[4]
    dx, dscale, dbias = build.emit(
        "FrozenBatchNormalizationGrad",
        [upstream, scale, x if needs_dscale else None, mean, inverse, relu_output],
        outputs=(wanted[0], needs_dscale, wanted[2] or wanted[3]),
        hint=f"{x}_grad",
    )
    dmean = None
    if wanted[3]:
        (slope,) = build.emit("Mul", [scale, inverse])
        (dmean,) = build.emit("Neg", [build.emit("Mul", [dbias, slope])[0]])
    return (
        dx or None,
        dscale if wanted[1] else None,
        dbias if wanted[2] else None,
        dmean,
        dscale if wanted[4] else None,
    )


class FrozenBatchNormalizationGrad(Operator):
    """(dY, scale, X?, mean, inverse deviation, Y?) -> (dX?, dscale?, dbias?).

    X serves dscale only. Y is there where a Relu made it.
    """

    name = "FrozenBatchNormalizationGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(5, 6)
        expect_image(node, 0)
        for position, what in ((2, "forward input"), (5, "forward output")):
            if node.has_input(position):
                node.expect_dtype(position, DType.F32)
                node.expect_shape(position, node.input(0).shape, what)
        if node.has_output(1) and not node.has_input(2):
            raise node.error(f"{self.name} needs X for the gradient of the scale")
        expect_channels(node, 0, (1, "scale"), *_STATISTICS)
        channels = TensorType(DType.F32, (node.input(0).shape[1],))
        return (node.input(0), channels, channels)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        """The samples' sums, where they are to be summed in turn."""
        shape = _Shape(node.input(0))
        if not shape.needs_second_sum:
            return ()
        return (TensorType(DType.F32, (shape.o, shape.g)),) * (node.has_output(1) + node.has_output(2))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        shape = _Shape(node.input(0))
        dx, dscale, dbias = (node.output_name(i) for i in range(3))
        dot, total = dscale, dbias
        if shape.needs_second_sum:
            own = iter(range(2))
            dot, total = (node.temporary(next(own)) if name else None for name in (dscale, dbias))
        operands = (
            shape.data("dy", node.inputs[0]),
            shape.data("y", node.input_name(5)),
            shape.data("x", node.input_name(2) if dot else None),
            shape.channels("scale", node.inputs[1] if dx else None),
            shape.channels("mean", node.inputs[3] if dot else None),
            shape.channels("spread", node.inputs[4]),
            shape.data("dx", dx, Access.WRITE),
            shape.sums("sum", total),
            shape.sums("dot", dot),
        )
        has_sums = total is not None or dot is not None
        kind = AxisKind.REDUCTION if has_sums else AxisKind.PARALLEL
        if shape.is_flat:
            return (Nest("frozen_norm_flat_grad", shape.axes(kind, kind), operands),)
        nest = Nest("frozen_norm_grad", shape.axes(AxisKind.PARALLEL, kind), operands)
        if not has_sums or not shape.needs_second_sum:
            return (nest,)
        layout = Layout("frozen_norm", shape.o, shape.g, 1, shape.s, False, 0.0)
        return nest, layout.parameters(total, dot, dscale, dbias)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 2), (0, 5))
