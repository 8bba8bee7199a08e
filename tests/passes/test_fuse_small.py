"""FuseLossGrad and FuseDenseStep: which nodes of a small step they join, and that the bits are the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.passes.test_fuse_outer import operators, program
from tests.schedule.programs import KIB, quick_sim, siracusa
from tests.support.kernels import run_graph
from tests.support.models import model, node, value, weights
from tests.support.operators import one_node_graph, with_gradient
from tilegrad import frontend
from tilegrad.analysis.verify import verify_graph
from tilegrad.devices.host import HostDevice
from tilegrad.frontend import ImportedModel
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_dense_step import FuseDenseStep
from tilegrad.passes.fuse_loss_grad import FuseLossGrad
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.pipeline import compile_model, is_small
from tilegrad.recipe import SGD, Adam, Momentum, Recipe
from tilegrad.targets.base import get
from tilegrad.training.train import train

TOGETHER = "SoftmaxCrossEntropyLossWithGrad"


def outer(recipe: Recipe, name: str = "simplemlp") -> Program:
    return FuseOuterProduct().apply(FuseUpdate().apply(program(recipe, name)))


def test_a_small_step_is_five_nodes() -> None:
    before = outer(Recipe())
    after = FuseLossGrad().apply(FuseDenseStep().apply(before))
    assert operators(after) == ["Gemm", "Gemm", TOGETHER, "DenseSGD", "DenseSGD"]
    assert after.entries["step"].writes == before.entries["step"].writes and after.state == before.state
    names = [node.name for node in after.entries["step"].nodes[2:]]
    assert names == [f"loss/{TOGETHER}", "/fc2/Gemm_Grad/DenseSGD", "/fc1/Gemm_Grad/DenseSGD"]
    assert FuseLossGrad().apply(FuseDenseStep().apply(after)) is after


@pytest.mark.parametrize("recipe", [Recipe(batch=2), Recipe(optimizer=Adam()), Recipe(optimizer=SGD(weight_decay=0.1))])
def test_other_updates_stay(recipe: Recipe) -> None:
    before = outer(recipe)
    assert FuseDenseStep().apply(before).entries["step"] is before.entries["step"]
    assert operators(FuseLossGrad().apply(before)).count(TOGETHER) == 1


def test_layers_with_long_rows_stay() -> None:
    made = FuseDenseStep().apply(outer(Recipe(), "autoencoder"))
    widths = {
        op: [made.tensor(one.inputs[2]).type.shape[1] for one in made.entries["step"].nodes if one.op == op]
        for op in ("DenseSGD", "OuterSGD")
    }
    assert max(widths["DenseSGD"]) <= 256 < min(widths["OuterSGD"])


def losses(attributes: dict[str, Attribute], has_weights: bool = False) -> Graph:
    """A loss and its gradient, made from its log probabilities."""
    inputs = [np.ones((2, 3), np.float32), np.zeros(2, np.int64), *[np.ones(3, np.float32)] * has_weights]
    graph = one_node_graph("SoftmaxCrossEntropyLoss", inputs, attributes, outputs=(True, True))
    made = with_gradient(replace(graph, outputs=("y0",)), ["x0"])[0]
    assert [one.op for one in made.nodes] == ["SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"]
    return made


def joined(graph: Graph) -> Graph:
    return FuseLossGrad().apply(program(Recipe()).with_step(graph)).entries["step"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_and_its_gradient_are_one_node(reduction: str) -> None:
    before = losses({"reduction": reduction})
    after = joined(before)
    assert [one.op for one in after.nodes] == [TOGETHER] and set(after.types) < set(before.types)
    scores = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    feeds = {"x0": scores, "x1": np.array([2, 0]), "seed": np.array(0.5, np.float32)}
    for name in before.outputs:
        assert run_graph(before, feeds)[name].tobytes() == run_graph(after, feeds)[name].tobytes()


@pytest.mark.parametrize(
    "graph",
    [
        losses({"reduction": "none"}),
        losses({"ignore_index": 1}),
        losses({"smoothing": 0.1}),
        losses({}, has_weights=True),
        replace(losses({}), outputs=(*losses({}).outputs, "y1")),
    ],
    ids=["by row", "an ignored class", "smoothing", "class weights", "log probabilities are an output"],
)
def test_other_losses_stay(graph: Graph) -> None:
    assert joined(graph) is graph


def test_a_gradient_that_depends_on_the_loss_stays() -> None:
    graph = losses({})
    loss, gradient = graph.nodes
    double = Node("double", "Add", ("y0", "seed"), ("scaled",))
    types = {**graph.types, "scaled": graph.types["y0"]}
    gradient = replace(gradient, inputs=("scaled", *gradient.inputs[1:]))
    late = verify_graph(replace(graph, nodes=(loss, double, gradient), types=types))
    assert joined(late) is late


def network(has_bias: bool) -> ImportedModel:
    """Three layers with Relus between them, of sizes that share badly."""
    sizes = (13, 9, 7, 5)
    nodes, tensors = [], {}
    for i, (n, m) in enumerate(pairwise(sizes)):
        tensors[f"w{i}"] = weights(m, n, seed=i) * 0.4
        tensors[f"b{i}"] = weights(m, seed=9 + i)
        inputs = f"{'x' if i == 0 else f'r{i}'} w{i}" + (f" b{i}" if has_bias else "")
        nodes.append(node("Gemm", inputs, "y" if i == 2 else f"g{i}", f"/fc{i}", transB=1))
        if i < 2:
            nodes.append(node("Relu", f"g{i}", f"r{i + 1}", f"/relu{i}"))
    if not has_bias:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("w")}
    return frontend.load(model(nodes, [value("x", ["batch", 13])], [value("y", ["batch", 5])], tensors))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "has_bias", "l1_bytes"),
    [(Recipe(), True, KIB), (Recipe(), False, 64 * KIB), (Recipe(batch=3, optimizer=Momentum()), True, KIB)],
)
def test_a_small_network_has_the_bits_of_the_host(recipe: Recipe, has_bias: bool, l1_bytes: int) -> None:
    """In 1 KB of L1, where rows come in tiles, as in much of it."""
    made = network(has_bias).with_batch(recipe.batch)
    found, host = compile_model(made, recipe, siracusa(l1_bytes)), compile_model(made, recipe, get("host"))
    assert operators(found.program).count("DenseSGD") == (3 if recipe.batch == 1 else 0)
    assert TOGETHER in operators(found.program) and not {TOGETHER, "DenseSGD"} & set(operators(host.program))
    with quick_sim() as sim, HostDevice() as device:
        runs = [train(found, sim, steps=3, verify=False), train(host, device, steps=3, verify=False)]
    assert runs[0].losses == runs[1].losses and runs[0].weights_sha256 == runs[1].weights_sha256


def test_what_is_small() -> None:
    assert is_small(program(Recipe())) and is_small(program(Recipe(batch=4)))
    assert not is_small(program(Recipe(), "autoencoder_tiny")) and not is_small(program(Recipe(batch=8)))
