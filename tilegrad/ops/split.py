"""Split: cuts along one axis into pieces of given or equal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.graph import Attribute
from tilegrad.ir.types import TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops._integers import integer_list
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


class Split(Mover):
    name = "Split"
    kernel = "split"
    static_inputs: ClassVar = {1: "split"}

    def example(self, draw: Draw) -> Example:
        parts, axis = draw.one_of(2, 3), draw.one_of(0, 1)
        sizes = draw.between(1, 64), draw.between(1, 100)
        shape = tuple(extent * parts if d == axis else extent for d, extent in enumerate(sizes))
        attributes: dict[str, Attribute] = {"axis": axis, "split": (sizes[axis],) * parts}
        return Example((TensorType(draw.dtype(), shape),), attributes, (True,) * parts)

    def _axis(self, node: NodeView) -> int:
        return normalised_axis(node, node.attribute("axis", 0), node.input(0).rank)

    def _sizes(self, node: NodeView) -> tuple[int, ...]:
        extent = node.input(0).shape[self._axis(node)]
        sizes = integer_list(node, "split")
        if sizes is None:
            count = node.attribute("num_outputs", len(node.outputs))
            if count < 1:
                raise node.error("Split: no outputs", expected="num_outputs of 1 or more", got=str(count))
            each = -(-extent // count)
            sizes = tuple(max(0, min(each, extent - i * each)) for i in range(count))
        if any(size < 0 for size in sizes) or sum(sizes) != extent:
            raise node.error(
                "Split: the pieces do not make up the input",
                expected=f"sizes that add up to {extent}",
                got=str(list(sizes)),
            )
        if len(sizes) < len(node.outputs):
            raise node.error("Split has more outputs than pieces", expected=str(len(sizes)), got=str(len(node.outputs)))
        return sizes

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x, axis = node.input(0), self._axis(node)
        return tuple(TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in self._sizes(node))

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        axis, copies, offset, x = self._axis(node), [], 0, node.input(0)
        for i, size in enumerate(self._sizes(node)[: len(node.outputs)]):
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            view = tuple(Dim(extent, d, 1, offset if d == axis else 0) for d, extent in enumerate(x.shape))
            copies.append(Copy(shape, view, plain_view(shape), target=i))
            offset += size
        return copies

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        """The pieces' gradients side by side; a piece that nobody uses has gradient zero."""
        axis, sizes, x = self._axis(node), self._sizes(node), node.input(0)
        pieces = (*upstream, *(None,) * (len(sizes) - len(upstream)))
        used = [i for i, piece in enumerate(pieces) if piece is not None]
        if len(used) == 1 and len(sizes) > 1:
            before = sum(sizes[: used[0]])
            pads = (before, x.shape[axis] - before - sizes[used[0]])
            return build.emit("Pad", [pieces[used[0]]], {"mode": "constant", "pads": pads, "axes": (axis,)})
        filled = []
        for size, piece in zip(sizes, pieces, strict=True):
            if piece is None:
                shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
                (piece,) = build.emit("Expand", [build.constant(0.0)], {"shape": shape})
            filled.append(piece)
        return build.emit("Concat", filled, {"axis": axis})
