"""Sum and Mean of any number of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ops._pointwise import VariadicOperator
from tilegrad.ops.base import GradientBuilder, NodeView


class Sum(VariadicOperator):
    name = "Sum"
    kernel = "sum"

    def constants(self, node: NodeView) -> Mapping[str, float]:
        return {"alpha": 1.0}

    def single(self, node: NodeView) -> Nest:
        return map_nest("sum_of_one", node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])])

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        return [
            build.sum_to(upstream[0], node.input(position).shape) if is_wanted else None
            for position, is_wanted in enumerate(wanted)
        ]


class Mean(Sum):
    """The sum, divided once by the number of tensors."""

    name = "Mean"

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        *folds, last = super().nests(node)
        divided = Nest(last.kernel, last.axes, last.operands, {**last.constants, "alpha": float(len(node.inputs))})
        return (*folds, divided)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        share = build.emit("Div", [upstream[0], build.constant(float(len(node.inputs)))])
        return super().gradient(node, share, wanted, build)
