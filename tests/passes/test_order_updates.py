"""OrderUpdates: a step on a product's weight comes one node later, and nothing that depends on the order moves."""

from __future__ import annotations

import pytest

from tests.passes.test_fuse_outer import program
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.order_updates import OrderUpdates
from tilegrad.recipe import Recipe


def step_of(size: int, reads_weight: bool) -> Graph:
    """A weight gradient, its step, and two nodes behind it, of which the first may read the weight."""
    builder = GraphBuilder("step")
    for name in ("w", "x", "dy"):
        builder.add_state(name, TensorType(DType.F32, (size, size)))
    builder.add_state("lr", TensorType(DType.F32, ()))
    builder.append(Node("of_w", "MatMul", ("x", "dy"), ("dw",)))
    builder.append(Node("SGD", "SGD", ("w", "dw", "lr"), ("w_new",)))
    builder.append(Node("first", "Neg", ("w" if reads_weight else "x",), ("a",)))
    builder.append(Node("second", "Neg", ("a",), ("x_new",)))
    builder.writes += [("w_new", "w"), ("x_new", "x")]
    return builder.finish(())


@pytest.mark.parametrize(
    ("size", "reads_weight", "order"),
    [
        (64, False, ["of_w", "first", "SGD", "second"]),
        (64, True, ["of_w", "SGD", "first", "second"]),
        (8, False, ["of_w", "SGD", "first", "second"]),
    ],
)
def test_a_long_step_comes_a_node_later(size: int, reads_weight: bool, order: list[str]) -> None:
    made = program(Recipe()).with_step(step_of(size, reads_weight))
    after = OrderUpdates().apply(made).entries["step"]
    assert [node.name for node in after.nodes] == order
    assert after.writes == made.entries["step"].writes
