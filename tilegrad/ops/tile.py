"""Tile: the input repeated along each of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.types import TensorType
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops._integers import required_integers
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


class Tile(Mover):
    name = "Tile"
    kernel = "tile"
    static_inputs: ClassVar = {1: "repeats"}

    def example(self, draw: Draw) -> Example:
        shape = draw.between(1, 12), draw.between(1, 40)
        return Example((TensorType(draw.dtype(), shape),), {"repeats": (draw.one_of(1, 2, 3), draw.one_of(1, 2))})

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x, repeats = node.input(0), required_integers(node, "repeats")
        if len(repeats) != x.rank or any(count < 0 for count in repeats):
            raise node.error(
                "Tile: repeats do not fit the input", expected=f"{x.rank} counts of 0 or more", got=str(list(repeats))
            )
        return (TensorType(x.dtype, tuple(a * b for a, b in zip(x.shape, repeats, strict=True))),)

    def _interleaved(self, node: NodeView) -> tuple[int, ...]:
        """The output's dimensions, each as (repetition, position in the input)."""
        pairs = zip(required_integers(node, "repeats"), node.input(0).shape, strict=True)
        return tuple(extent for pair in pairs for extent in pair)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        extents = self._interleaved(node)
        x = tuple(Dim(extent, 2 * d + 1) for d, extent in enumerate(node.input(0).shape))
        return (Copy(extents, x, plain_view(extents)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        shape, extents = node.input(0).shape, self._interleaved(node)
        (split,) = build.emit("Reshape", [upstream[0]], {"shape": extents, "allowzero": 1})
        summed = build.sum_to(split, tuple(extent if d % 2 else 1 for d, extent in enumerate(extents)))
        return build.emit("Reshape", [summed], {"shape": shape, "allowzero": 1})
