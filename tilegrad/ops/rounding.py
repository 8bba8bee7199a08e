"""Floor, Ceil, Round (half to even) and Sign: piecewise constant, so their gradient is nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ops._pointwise import MapOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class _Steps(MapOperator):
    has_zero_gradient = True

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return (None,)


class Floor(_Steps):
    name = "Floor"
    kernel = "floor"


class Ceil(_Steps):
    name = "Ceil"
    kernel = "ceil"


class Round(_Steps):
    name = "Round"
    kernel = "round"


class Sign(_Steps):
    name = "Sign"
    kernel = "sign"
