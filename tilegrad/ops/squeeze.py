"""Squeeze: drops dimensions of one element, all of them when no axes are given."""

from __future__ import annotations

from typing import ClassVar

from tilegrad.ops._axes import normalised_axes
from tilegrad.ops._integers import integer_list
from tilegrad.ops._views import View
from tilegrad.ops.base import NodeView


class Squeeze(View):
    name = "Squeeze"
    static_inputs: ClassVar = {1: "axes"}

    def new_shape(self, node: NodeView, shape: tuple[int, ...]) -> tuple[int, ...]:
        given = integer_list(node, "axes")
        if given is None:
            return tuple(extent for extent in shape if extent != 1)
        axes = normalised_axes(node, given, len(shape))
        for axis in axes:
            if shape[axis] != 1:
                raise node.error(
                    f"Squeeze: dimension {axis} of {list(shape)} cannot be dropped",
                    expected="1",
                    got=str(shape[axis]),
                )
        return tuple(extent for d, extent in enumerate(shape) if d not in axes)
