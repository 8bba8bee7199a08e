"""What Min and Max share."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator, VariadicOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Extremum(VariadicOperator):
    dtypes = (DType.F32, *INTEGERS)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        """Backwards through the folds: each splits what reaches it between the fold so far and the next operand."""
        folds = [node.inputs[0]]
        for name in node.inputs[1:-1]:
            folds += build.emit(self.name, [folds[-1], name])
        result: list[str | None] = [None] * len(node.inputs)
        rest = upstream[0]
        assert rest is not None
        for position in range(len(node.inputs) - 1, 0, -1):
            before, own = folds[position - 1], node.inputs[position]
            if wanted[position]:
                (part,) = build.emit(f"{self.name}Grad", [rest, own, before])
                result[position] = build.sum_to(part, node.input(position).shape)
            if any(wanted[:position]):
                (part,) = build.emit(f"{self.name}Grad", [rest, before, own])
                rest = build.sum_to(part, build.type_of(before).shape)
        result[0] = rest if wanted[0] else None
        return result


class ExtremumGradient(BroadcastOperator):
    """(dY, own, other) -> the part of dY that belongs to `own`, not yet summed to its shape."""

    arity = 3
    has_map_kernel = False
