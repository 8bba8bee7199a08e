"""Softmax and LogSoftmax along one axis, with gradients from the output (ONNX Runtime's SoftmaxGrad_13 forms)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


def _row_nest(node: NodeView, kernel: str, reads: Sequence[str], write: str) -> Nest:
    """A nest over [o, k, s] whose kernel needs whole rows along k."""
    shape = node.output().shape
    axis = normalised_axis(node, node.attribute("axis", -1), len(shape))
    o, k, s = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    view = ((o, k, s), (along("o"), along("k"), along("s")))
    return Nest(
        kernel,
        (Axis("o", o), Axis("k", k, AxisKind.INNER), Axis("s", s)),
        (
            *(Operand(name, value, Access.READ, *view) for name, value in zip(reads, node.inputs, strict=True)),
            Operand(write, node.outputs[0], Access.WRITE, *view),
        ),
    )


class _SoftmaxLike(Operator):
    kernel: ClassVar[str]

    def example(self, draw: Draw) -> Example:
        last = 1 if draw.is_so(0.6) else draw.between(1, 12)
        return Example(floats((draw.between(1, 64), draw.between(1, 100), last)), {"axis": 1})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        x = node.input(0)
        normalised_axis(node, node.attribute("axis", -1), x.rank)
        return (x,)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (_row_nest(node, self.kernel, ("x",), "y"),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit(f"{self.name}Grad", [upstream[0], node.outputs[0]], {"axis": node.attribute("axis", -1)})


class Softmax(_SoftmaxLike):
    name = "Softmax"
    kernel = "softmax"


class LogSoftmax(_SoftmaxLike):
    name = "LogSoftmax"
    kernel = "log_softmax"


class _SoftmaxLikeGrad(Operator):
    """(dY, Y) -> dX."""

    kernel: ClassVar[str]

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward output")
        normalised_axis(node, node.attribute("axis", -1), node.input(0).rank)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (_row_nest(node, self.kernel, ("dy", "y"), "dx"),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))


class SoftmaxGrad(_SoftmaxLikeGrad):
    name = "SoftmaxGrad"
    kernel = "softmax_grad"


class LogSoftmaxGrad(_SoftmaxLikeGrad):
    name = "LogSoftmaxGrad"
    kernel = "log_softmax_grad"
