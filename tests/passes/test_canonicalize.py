"""Identities and dead code go; names of inputs, outputs and initializers stay."""

from __future__ import annotations

import numpy as np

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.canonicalize import canonicalize


def graph(*nodes: Node, outputs: tuple[str, ...] = ("y",), constants: dict[str, np.ndarray] | None = None) -> Graph:
    builder = GraphBuilder("test")
    builder.add_input("x", TensorType(DType.F32, (2, 3)))
    for name, array in (constants or {}).items():
        builder.constants[name] = Constant(array)
        builder.types[name] = builder.constants[name].type
    for node in nodes:
        builder.append(node)
    return builder.finish(outputs)


def unary(op: str, source: str, target: str, **attributes: object) -> Node:
    return Node(target, op, (source,), (target,), attributes)  # type: ignore[arg-type]


def test_identities_vanish() -> None:
    before = graph(
        unary("Identity", "x", "a"),
        unary("Reshape", "a", "b", shape=(2, 3)),
        unary("Transpose", "b", "c", perm=(0, 1)),
        unary("Cast", "c", "d", to="f32"),
        unary("Expand", "d", "e", shape=(2, 3)),
        unary("Relu", "e", "y"),
    )
    assert canonicalize(before) == graph(Node("y", "Relu", ("x",), ("y",)))


def test_other_views_stay() -> None:
    before = graph(unary("Reshape", "x", "a", shape=(3, 2)), unary("Transpose", "a", "y", perm=(1, 0)))
    assert canonicalize(before) == before


def test_an_output_keeps_its_name() -> None:
    before = graph(unary("Relu", "x", "a"), unary("Identity", "a", "y"))
    assert canonicalize(before) == graph(Node("a", "Relu", ("x",), ("y",)))


def test_an_output_that_is_read_too() -> None:
    before = graph(
        unary("Relu", "x", "a"), unary("Identity", "a", "y"), unary("Neg", "a", "z"), outputs=("y", "z")
    )
    after = canonicalize(before)
    assert [(n.op, n.inputs, n.outputs) for n in after.nodes] == [("Relu", ("x",), ("y",)), ("Neg", ("y",), ("z",))]


def test_one_value_behind_two_outputs() -> None:
    before = graph(
        unary("Relu", "x", "a"), unary("Identity", "a", "y"), unary("Identity", "a", "z"), outputs=("y", "z")
    )
    after = canonicalize(before)
    assert after.outputs == ("y", "z") and [n.op for n in after.nodes] == ["Relu", "Identity"]


def test_an_input_or_a_constant_as_output() -> None:
    before = graph(unary("Identity", "x", "y"))
    assert canonicalize(before) == before
    constant = graph(unary("Identity", "c", "y"), constants={"c": np.ones(2, np.float32)})
    assert canonicalize(constant) == constant


def test_dead_code_and_its_constants_vanish() -> None:
    before = graph(
        Node("dead", "Add", ("x", "c"), ("unused",)),
        unary("Relu", "x", "y"),
        constants={"c": np.ones(3, np.float32)},
    )
    assert canonicalize(before) == graph(unary("Relu", "x", "y"))
