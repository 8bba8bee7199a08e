"""What an operator does not read is found from its nests: nobody declares it."""

from __future__ import annotations

import pytest

from tilegrad.ir.graph import Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


@pytest.mark.parametrize(
    ("outputs", "unread"),
    [(("dx", "dw", "db"), ()), (("dx",), (1,)), (("", "dw"), (2,)), (("", "", "db"), (1, 2))],
)
def test_a_convolutions_gradient_reads_what_it_was_asked_for(outputs: tuple[str, ...], unread: tuple[int, ...]) -> None:
    image, weight = TensorType(DType.F32, (1, 2, 5, 5)), TensorType(DType.F32, (3, 2, 3, 3))
    types = {"dy": TensorType(DType.F32, (1, 3, 3, 3)), "x": image, "w": weight}
    types |= {"dx": image, "dw": weight, "db": TensorType(DType.F32, (3,))}
    node = Node("grad", "ConvGrad", ("dy", "x", "w"), outputs, {"kernel_shape": (3, 3)})
    assert registry.get("ConvGrad").unread_inputs(NodeView(node, types)) == unread


def test_an_operator_that_is_no_gradient_reads_everything() -> None:
    row = TensorType(DType.F32, (4,))
    node = Node("sum", "Add", ("a", "b"), ("y",))
    assert registry.get("Add").unread_inputs(NodeView(node, dict.fromkeys("aby", row))) == ()
