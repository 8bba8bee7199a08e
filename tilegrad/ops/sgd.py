"""SGD: (w, g, lr) -> w', PyTorch's rule without momentum."""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._optimizer import check_update, update_nest
from tilegrad.ops._pointwise import float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example


class SGD(Operator):
    """Attribute: weight_decay."""

    name = "SGD"

    def example(self, draw: Draw) -> Example:
        return Example((), {"weight_decay": draw.one_of(0.0, 0.01)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        check_update(node, ("weight", "gradient"), {2: ("learning rate", DType.F32)})
        float_attribute(node, "weight_decay", 0.0)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (
            update_nest(
                node,
                "sgd",
                ("w", "g"),
                ("lr",),
                ("w_out",),
                {"weight_decay": float_attribute(node, "weight_decay", 0.0)},
            ),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
