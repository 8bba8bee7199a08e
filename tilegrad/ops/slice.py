"""Slice with any step, and its gradient (ONNX Runtime's SliceGrad) in gather form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops._integers import integer_list, required_integers
from tilegrad.ops._pad import PadDim, merge_dims, pad_nest
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


def slice_ranges(node: NodeView, shape: tuple[int, ...]) -> tuple[range, ...]:
    """The positions taken along each dimension; Python's own slices clamp as ONNX wants it."""
    starts, ends = required_integers(node, "starts"), required_integers(node, "ends")
    axes = integer_list(node, "axes")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = integer_list(node, "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error(
            f"{node.node.op}: starts, ends, axes and steps differ in length",
            expected=str(len(starts)),
            got=f"{len(ends)} ends, {len(axes)} axes, {len(steps)} steps",
        )
    if 0 in steps:
        raise node.error(f"{node.node.op}: a step is 0", expected="steps other than 0", got=str(list(steps)))
    result = [range(extent) for extent in shape]
    seen = set()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = normalised_axis(node, axis, len(shape))
        if d in seen:
            raise node.error(f"{node.node.op}: an axis is named twice", expected="distinct axes", got=str(list(axes)))
        seen.add(d)
        result[d] = range(*slice(start, end, step).indices(shape[d]))
    return tuple(result)


class Slice(Mover):
    name = "Slice"
    kernel = "slice"
    static_inputs: ClassVar = {1: "starts", 2: "ends", 3: "axes", 4: "steps"}

    def example(self, draw: Draw) -> Example:
        shape = draw.between(2, 40), draw.between(2, 90)
        starts = tuple(draw.one_of(0, 0, 1) for _ in shape)
        attributes = {
            "starts": starts,
            "ends": shape,
            "axes": (0, 1),
            "steps": (draw.one_of(1, 2), draw.one_of(1, 1, 3)),
        }
        return Example((TensorType(draw.dtype(), shape),), attributes)

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x = node.input(0)
        return (TensorType(x.dtype, tuple(len(taken) for taken in slice_ranges(node, x.shape))),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        x = node.input(0).shape
        view = tuple(
            Dim(extent, d, taken.step, taken.start)
            for d, (extent, taken) in enumerate(zip(x, slice_ranges(node, x), strict=True))
        )
        return (Copy(outputs[0].shape, view, plain_view(outputs[0].shape)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        names = [name for name in ("starts", "ends", "axes", "steps") if name in node.node.attributes]
        attributes = {name: node.node.attributes[name] for name in names}
        return build.emit("SliceGrad", [upstream[0]], {"shape": node.input(0).shape, **attributes})


class SliceGrad(Operator):
    """dY -> dX of the attribute `shape`: each element is the gradient of where it went, or 0."""

    name = "SliceGrad"
    static_inputs: ClassVar = {1: "shape", 2: "starts", 3: "ends", 4: "axes", 5: "steps"}

    def _dims(self, node: NodeView) -> list[PadDim]:
        shape = required_integers(node, "shape")
        dims = []
        for extent, taken in zip(shape, slice_ranges(node, shape), strict=True):
            turn = 1 if taken.step > 0 else -1
            dims.append(PadDim(extent, len(taken), -turn * taken.start, turn, abs(taken.step)))
        return merge_dims(node, dims)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        shape = required_integers(node, "shape")
        node.expect_shape(0, tuple(len(taken) for taken in slice_ranges(node, shape)), "gradient of the slice")
        self._dims(node)
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (pad_nest("slice_grad", node.inputs[0], node.outputs[0], self._dims(node), 0.0, DType.F32),)
