"""OrderEnd: a step ends with its smallest updates, and nothing that depends on the order moves."""

from __future__ import annotations

from tests.passes.test_fuse_outer import program
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.order_end import OrderEnd
from tilegrad.recipe import Recipe


def updates(made: Program) -> list[str]:
    return [node.op for node in made.entries["step"].nodes if node.op in ("SGD", "OuterSGD")]


def test_the_largest_comes_first() -> None:
    before = FuseOuterProduct().apply(FuseUpdate().apply(program(Recipe())))
    after = OrderEnd().apply(before)
    step = after.entries["step"]
    assert updates(before) == ["OuterSGD", "SGD", "OuterSGD", "SGD"]
    assert updates(after) == ["OuterSGD", "OuterSGD", "SGD", "SGD"]
    first, second = (step.types[node.inputs[2]].size for node in step.nodes if node.op == "OuterSGD")
    assert first > second
    assert step.writes == before.entries["step"].writes
    assert sorted(node.name for node in step.nodes) == sorted(node.name for node in before.entries["step"].nodes)


def updated_twice() -> Graph:
    """The step on w reads b, which the step on b overwrites."""
    builder = GraphBuilder("step")
    for name, size in (("b", 2), ("w", 8)):
        builder.add_state(name, TensorType(DType.F32, (size,)))
    builder.append(Node("of_b", "Neg", ("b",), ("b_new",)))
    builder.append(Node("of_w", "Concat", ("b", "b", "b", "b"), ("w_new",), {"axis": 0}))
    builder.writes += [("b_new", "b"), ("w_new", "w")]
    return builder.finish(())


def test_readers_of_state_keep_their_place() -> None:
    made = program(Recipe())
    for step in (updated_twice(), made.entries["step"]):
        changed = made.with_step(step)
        assert OrderEnd().apply(changed) is changed
