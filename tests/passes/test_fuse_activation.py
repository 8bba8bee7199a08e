"""FuseActivation and FuseActivationGrad: which Relus they take, and that the program computes the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.test_fuse_outer import program
from tests.support.kernels import run_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.fuse_activation import FuseActivation, FuseActivationGrad
from tilegrad.passes.program import derive_program
from tilegrad.pipeline import forward_graph
from tilegrad.recipe import Recipe

CHANNELS = ("scale", "bias", "mean", "inverse")


def model(*tail: Node, outputs: tuple[str, ...] = ("y",)) -> Graph:
    """A frozen BatchNormalization from x to n, and what follows."""
    builder = GraphBuilder("model")
    builder.add_input("x", TensorType(DType.F32, (2, 3, 5)))
    for name in CHANNELS:
        builder.add_input(name, TensorType(DType.F32, (3,)))
    builder.append(Node("norm", "FrozenBatchNormalization", ("x", *CHANNELS), ("n",)))
    for node in tail:
        builder.append(node)
    return builder.finish(outputs)


def test_a_relu_behind_is_taken() -> None:
    before = model(Node("relu", "Relu", ("n",), ("r",)), Node("neg", "Neg", ("r",), ("y",)))
    after = FuseActivation().apply(before)
    fused, neg = after.nodes
    assert (fused.name, fused.op, fused.outputs, dict(fused.attributes)) == (
        "norm", "FrozenBatchNormalization", ("r",), {"relu": 1},
    )  # fmt: skip
    assert neg == before.nodes[2] and "n" not in after.types
    draw = np.random.default_rng(2)
    feeds = {name: draw.standard_normal(before.types[name].shape).astype(np.float32) for name in before.inputs}
    assert run_graph(before, feeds)["y"].tobytes() == run_graph(after, feeds)["y"].tobytes()


@pytest.mark.parametrize(
    "graph",
    [
        model(Node("relu", "Relu", ("n",), ("r",)), Node("add", "Add", ("r", "n"), ("y",))),
        model(Node("relu", "Relu", ("n",), ("y",)), outputs=("n", "y")),
        model(Node("neg", "Neg", ("n",), ("m",)), Node("relu", "Relu", ("m",), ("y",))),
        model(Node("relu", "Relu", ("x",), ("r",)), Node("add", "Add", ("r", "n"), ("y",))),
    ],
    ids=["read twice", "an output", "not behind", "of another value"],
)
def test_others_stay(graph: Graph) -> None:
    assert FuseActivation().apply(graph) is graph


def products(*tail: Node, outputs: tuple[str, ...] = ("y",)) -> Graph:
    """A Gemm from a and b to g, and what follows."""
    builder = GraphBuilder("model")
    for name, shape in (("a", (3, 5)), ("b", (5, 4)), ("z", (3, 4))):
        builder.add_input(name, TensorType(DType.F32, shape))
    builder.append(Node("gemm", "Gemm", ("a", "b"), ("g",)))
    for node in tail:
        builder.append(node)
    return builder.finish(outputs)


@pytest.mark.parametrize("op", ["Relu", "ReluGrad"])
def test_what_is_behind_a_gemm_is_taken(op: str) -> None:
    inputs = ("g",) if op == "Relu" else ("g", "z")
    before = products(Node("relu", op, inputs, ("r",)), Node("neg", "Neg", ("r",), ("y",)))
    after = FuseActivation().apply(before) if op == "Relu" else fused_grad(before)
    assert [node.op for node in after.nodes] == ["GemmRelu" if op == "Relu" else "GemmReluGrad", "Neg"]
    assert after.nodes[0].outputs == ("r",) and "g" not in after.types
    draw = np.random.default_rng(3)
    feeds = {name: draw.standard_normal(before.types[name].shape).astype(np.float32) for name in before.inputs}
    assert run_graph(before, feeds)["y"].tobytes() == run_graph(after, feeds)["y"].tobytes()


def sums(*tail: Node, outputs: tuple[str, ...] = ("y",)) -> Graph:
    """An Add of a and b to s, and what follows; c is broadcast."""
    builder = GraphBuilder("model")
    for name, shape in (("a", (3, 5)), ("b", (3, 5)), ("c", (5,)), ("z", (3, 5))):
        builder.add_input(name, TensorType(DType.F32, shape))
    builder.append(Node("add", "Add", ("a", "b"), ("s",)))
    for node in tail:
        builder.append(node)
    return builder.finish(outputs)


@pytest.mark.parametrize("op", ["Relu", "ReluGrad"])
def test_what_is_behind_a_sum_is_taken(op: str) -> None:
    inputs = ("s",) if op == "Relu" else ("s", "z")
    before = sums(Node("relu", op, inputs, ("r",)), Node("neg", "Neg", ("r",), ("y",)))
    after = FuseActivation().apply(before) if op == "Relu" else fused_grad(before)
    assert [node.op for node in after.nodes] == ["AddRelu" if op == "Relu" else "AddReluGrad", "Neg"]
    assert after.nodes[0].outputs == ("r",) and "s" not in after.types
    draw = np.random.default_rng(5)
    feeds = {name: draw.standard_normal(before.types[name].shape).astype(np.float32) for name in before.inputs}
    assert run_graph(before, feeds)["y"].tobytes() == run_graph(after, feeds)["y"].tobytes()


@pytest.mark.parametrize("op", ["Relu", "ReluGrad"])
def test_other_sums_stay(op: str) -> None:
    """Of values that are broadcast, that others read, or that are there before the Relu's output is."""
    rest = ("z",) if op == "ReluGrad" else ()
    relu = Node("relu", op, ("s", *rest), ("y",))
    wide = Node("wide", "Add", ("s", "c"), ("w",))
    graphs = [
        sums(wide, Node("relu", op, ("w", *rest), ("y",))),
        sums(relu, outputs=("s", "y")),
        sums(relu, Node("neg", "Neg", ("s",), ("n",)), outputs=("y", "n")),
    ]
    if op == "ReluGrad":
        graphs.append(sums(Node("late", "Relu", ("z",), ("o",)), Node("relu", op, ("s", "o"), ("y",))))
    for graph in graphs:
        assert (FuseActivation().apply(graph) if op == "Relu" else fused_grad(graph)) is graph


def fused_grad(step: Graph) -> Graph:
    return FuseActivationGrad().apply(program(Recipe()).with_step(step)).entries["step"]


@pytest.mark.parametrize(
    "graph",
    [
        products(Node("relu", "ReluGrad", ("g", "z"), ("r",)), Node("add", "Add", ("r", "g"), ("y",))),
        products(Node("relu", "ReluGrad", ("g", "z"), ("y",)), outputs=("g", "y")),
        products(Node("relu", "ReluGrad", ("z", "g"), ("y",))),
        products(Node("neg", "Neg", ("g",), ("n",)), Node("relu", "ReluGrad", ("n", "z"), ("y",))),
    ],
    ids=["read twice", "an output", "as the Relu's output", "of another value"],
)
def test_other_gradients_stay(graph: Graph) -> None:
    assert fused_grad(graph) is graph


def test_a_dense_network_has_no_relus_left() -> None:
    made = FuseActivationGrad().apply(program(Recipe(), "autoencoder_tiny"))
    operators = [node.op for node in made.entries["step"].nodes]
    assert operators.count("GemmRelu") == operators.count("GemmReluGrad") == 6
    assert not {"Relu", "ReluGrad"} & set(operators)


def test_the_gradient_is_one_operator() -> None:
    builder = GraphBuilder("model")
    builder.add_input("x", TensorType(DType.F32, (1, 3, 4)))
    for name in ("scale", "bias", "mean", "variance"):
        constant = builder.constant(np.full(3, 0.5 + len(name), np.float32))
        builder.constants[name], builder.types[name] = builder.constants.pop(constant), builder.types.pop(constant)
    builder.append(Node("bn", "BatchNormalization", ("x", "scale", "bias", "mean", "variance"), ("n",)))
    builder.append(Node("relu", "Relu", ("n",), ("y",)))
    forward = forward_graph(builder.finish(("y",)), freezes=True)
    made = derive_program(*forward, Recipe(), {}, ("scale", "bias"), "mse")
    for entry in ("infer", "step"):
        forward = made.entries[entry].nodes[0]
        assert (forward.op, forward.outputs) == ("FrozenBatchNormalization", ("y",))
    operators = [node.op for node in made.entries["step"].nodes]
    assert operators.count("FrozenBatchNormalizationGrad") == 1
    assert not {"Relu", "ReluGrad", "BatchNormalization"} & set(operators)
