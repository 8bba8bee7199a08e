"""Expand: NumPy's broadcast of the input and a shape with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.types import TensorType
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops._elementwise import broadcast_shapes
from tilegrad.ops._integers import required_integers
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


class Expand(Mover):
    name = "Expand"
    kernel = "expand"
    static_inputs: ClassVar = {1: "shape"}

    def example(self, draw: Draw) -> Example:
        full = draw.between(1, 8), draw.between(1, 30), draw.between(1, 30)
        shape = tuple(1 if draw.is_so(0.4) else extent for extent in full)
        return Example((TensorType(draw.dtype(), shape),), {"shape": full})

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x, shape = node.input(0), required_integers(node, "shape")
        if any(extent < 0 for extent in shape):
            raise node.error("Expand: no shape", expected="dimensions of 0 or more", got=str(list(shape)))
        return (TensorType(x.dtype, broadcast_shapes(node, x.shape, shape)),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        shape, x = outputs[0].shape, node.input(0).shape
        lead = len(shape) - len(x)
        view = tuple(Dim(extent, lead + d if extent == shape[lead + d] else None) for d, extent in enumerate(x))
        return (Copy(shape, view, plain_view(shape)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        return (build.sum_to(upstream[0], node.input(0).shape),)
