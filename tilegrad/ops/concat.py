"""Concat: the inputs side by side along one axis."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


class Concat(Mover):
    name = "Concat"
    kernel = "concat"

    def example(self, draw: Draw) -> Example:
        dtype, rows = draw.dtype(), draw.between(1, 64)
        return Example(tuple(TensorType(dtype, (rows, draw.between(1, 100))) for _ in range(2)), {"axis": 1})

    def _axis(self, node: NodeView) -> int:
        axis = node.required("axis")
        if not isinstance(axis, int):
            raise node.error("Concat: the axis is no integer", got=repr(axis))
        return normalised_axis(node, axis, node.input(0).rank)

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        if not node.inputs:
            raise node.error("Concat has no inputs", expected="one or more")
        first, axis = node.input(0), self._axis(node)
        for i, name in enumerate(node.inputs):
            other = node.input(i)
            node.expect_dtype(i, first.dtype)
            alike = first.shape[:axis] + (other.shape[axis : axis + 1]) + first.shape[axis + 1 :]
            if other.shape != alike:
                raise node.error(
                    f"Concat: input {i} ('{name}') does not fit beside the first along axis {axis}",
                    expected=str([*first.shape[:axis], "any", *first.shape[axis + 1 :]]).replace("'", ""),
                    got=str(list(other.shape)),
                )
        total = sum(node.input(i).shape[axis] for i in range(len(node.inputs)))
        return (TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        axis, copies, offset = self._axis(node), [], 0
        for i in range(len(node.inputs)):
            shape = node.input(i).shape
            y = tuple(Dim(extent, d, 1, offset if d == axis else 0) for d, extent in enumerate(outputs[0].shape))
            copies.append(Copy(shape, plain_view(shape), y, source=i))
            offset += shape[axis]
        return copies

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        axis = self._axis(node)
        sizes = tuple(node.input(i).shape[axis] for i in range(len(node.inputs)))
        parts = build.emit("Split", [upstream[0]], {"axis": axis, "split": sizes}, outputs=wanted)
        return [part or None for part in parts]
