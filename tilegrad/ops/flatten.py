"""Flatten: a matrix of what is before the axis by what is from it on."""

from __future__ import annotations

from math import prod

from tilegrad.ops._views import View
from tilegrad.ops.base import NodeView


class Flatten(View):
    name = "Flatten"

    def new_shape(self, node: NodeView, shape: tuple[int, ...]) -> tuple[int, ...]:
        axis, rank = node.attribute("axis", 1), len(shape)
        if not -rank <= axis <= rank:
            raise node.error(f"Flatten: axis {axis} does not exist", expected=f"{-rank} to {rank}", got=str(axis))
        axis = axis + rank if axis < 0 else axis
        return (prod(shape[:axis]), prod(shape[axis:]))
