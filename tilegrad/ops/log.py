"""Log."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ops._pointwise import MapOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Log(MapOperator):
    name = "Log"
    kernel = "log_map"

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("Div", [upstream[0], node.inputs[0]])
