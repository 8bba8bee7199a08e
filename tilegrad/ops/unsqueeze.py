"""Unsqueeze: inserts dimensions of one element; the axes are those of the output."""

from __future__ import annotations

from typing import ClassVar

from tilegrad.ops._axes import normalised_axes
from tilegrad.ops._integers import required_integers
from tilegrad.ops._views import View
from tilegrad.ops.base import NodeView


class Unsqueeze(View):
    name = "Unsqueeze"
    static_inputs: ClassVar = {1: "axes"}

    def new_shape(self, node: NodeView, shape: tuple[int, ...]) -> tuple[int, ...]:
        given = required_integers(node, "axes")
        rank = len(shape) + len(given)
        axes = normalised_axes(node, given, rank)
        rest = iter(shape)
        return tuple(1 if d in axes else next(rest) for d in range(rank))
