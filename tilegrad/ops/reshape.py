"""Reshape: 0 keeps the input's dimension (unless allowzero), one -1 takes what is left."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from tilegrad.ops._integers import required_integers
from tilegrad.ops._views import View
from tilegrad.ops.base import NodeView


class Reshape(View):
    name = "Reshape"
    static_inputs: ClassVar = {1: "shape"}

    def new_shape(self, node: NodeView, shape: tuple[int, ...]) -> tuple[int, ...]:
        asked = required_integers(node, "shape")
        allow_zero = bool(node.attribute("allowzero", 0))
        if any(extent < -1 for extent in asked) or asked.count(-1) > 1 or (allow_zero and {0, -1} <= set(asked)):
            raise node.error(
                "Reshape: no shape",
                expected="dimensions, at most one of them -1" + (" and none 0 beside it" if allow_zero else ""),
                got=str(list(asked)),
            )
        result = list(asked)
        if not allow_zero:
            for d, extent in enumerate(asked):
                if extent == 0 and d >= len(shape):
                    raise node.error(
                        "Reshape: a 0 keeps a dimension that the input does not have",
                        expected=f"0 only among the first {len(shape)}",
                        got=str(list(asked)),
                    )
                if extent == 0:
                    result[d] = shape[d]
        size = prod(shape)
        known = prod(extent for extent in result if extent != -1)
        fits = size == known
        if -1 in result:
            fits = known != 0 and size % known == 0
            result[result.index(-1)] = size // known if fits else -1
        if not fits:
            raise node.error(
                f"Reshape: {list(shape)} has {size} elements, which do not fill {list(asked)}",
                expected=str(size) if -1 not in asked else f"a divisor of {size}",
                got=str(known),
                hint=f"the input is '{node.inputs[0]}'",
            )
        return tuple(result)
