"""Transpose: permutes dimensions (reverses them without `perm`)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops._integers import integer_list
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


def permutation(node: NodeView) -> tuple[int, ...]:
    rank = node.input(0).rank
    perm = integer_list(node, "perm")
    if perm is None:
        return tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise node.error(
            "Transpose: perm is no permutation", expected=f"each of 0 to {rank - 1} once", got=str(list(perm))
        )
    return perm


class Transpose(Mover):
    name = "Transpose"
    kernel = "transpose"

    def example(self, draw: Draw) -> Example:
        rank = draw.one_of(2, 2, 3, 3, 4)
        shape = tuple(draw.between(1, 128 if rank == 2 else 24) for _ in range(rank))
        return Example((TensorType(draw.dtype(), shape),), {"perm": draw.order(rank)})

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x = node.input(0)
        return (TensorType(x.dtype, tuple(x.shape[d] for d in permutation(node))),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        perm = permutation(node)
        x = tuple(Dim(extent, perm.index(d)) for d, extent in enumerate(node.input(0).shape))
        return (Copy(outputs[0].shape, x, plain_view(outputs[0].shape)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        perm = permutation(node)
        inverse = tuple(perm.index(d) for d in range(len(perm)))
        return build.emit("Transpose", [upstream[0]], {"perm": inverse})
