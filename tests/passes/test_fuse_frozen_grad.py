"""FuseFrozenGrad: which gradients it takes, and that the program computes the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.test_fuse_outer import operators, program
from tests.support.kernels import run_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.fuse_activation import FuseActivationGrad
from tilegrad.passes.fuse_frozen_grad import FuseFrozenGrad
from tilegrad.recipe import Recipe

IMAGES, CHANNELS = ("a", "b", "y", "x"), ("scale", "mean", "inverse")
SUMS = ("dx", "dscale", "dbias")


def norm(gradient: str, *output: str, outputs: tuple[str, ...] = SUMS) -> Node:
    """The gradient of a normalisation, perhaps with a Relu of its own."""
    inputs = (gradient, "scale", "x", "mean", "inverse", *output)
    return Node("norm", "FrozenBatchNormalizationGrad", inputs, outputs)


def backward(*nodes: Node, outputs: tuple[str, ...] = SUMS, plane: tuple[int, ...] = (3, 3)) -> Graph:
    builder = GraphBuilder("step")
    for name in IMAGES:
        builder.add_input(name, TensorType(DType.F32, (2, 5, *plane)))
    for name in CHANNELS:
        builder.add_input(name, TensorType(DType.F32, (5,)))
    for node in nodes:
        builder.append(node)
    return builder.finish(outputs)


def fused(step: Graph) -> Graph:
    return FuseFrozenGrad().apply(program(Recipe()).with_step(step)).entries["step"]


MASKED = Node("sum", "AddReluGrad", ("a", "b", "y"), ("d",))
SUM = Node("sum", "Add", ("a", "b"), ("d",))
SKIP = Node("skip", "Neg", ("d",), ("z",))


@pytest.mark.parametrize(
    ("graph", "kept"),
    [
        (backward(MASKED, norm("d")), ""),
        (backward(MASKED, norm("d"), SKIP, outputs=(*SUMS, "z")), "d"),
        (backward(MASKED, SKIP, norm("d"), outputs=(*SUMS, "z")), "d"),
        (backward(MASKED, norm("d"), outputs=(*SUMS, "d")), "d"),
        (backward(SUM, norm("d", "y")), ""),
    ],
    ids=["alone", "read behind", "read before", "an output", "the normalisation's own Relu"],
)
def test_a_masked_sum_is_taken(graph: Graph, kept: str) -> None:
    after = fused(graph)
    made = after.nodes[0]
    assert (made.op, made.name) == ("FrozenAddReluGrad", "norm") and len(after.nodes) == len(graph.nodes) - 1
    assert made.outputs == (*SUMS, kept) and ("d" in after.types) == bool(kept)
    draw = np.random.default_rng(4)
    feeds = {name: draw.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    expected, found = run_graph(graph, feeds), run_graph(after, feeds)
    for name in graph.outputs:
        assert expected[name].tobytes() == found[name].tobytes()


@pytest.mark.parametrize(
    "graph",
    [
        backward(SUM, norm("d")),
        backward(SUM, norm("d", "y"), SKIP, outputs=(*SUMS, "z")),
        backward(SUM, norm("d", "y"), outputs=(*SUMS, "d")),
        backward(MASKED, norm("d", "a")),
        backward(MASKED, norm("d", outputs=("dx", "", "dbias")), outputs=("dx", "dbias")),
        backward(MASKED, norm("d"), plane=(1, 1)),
        backward(Node("mask", "ReluGrad", ("a", "y"), ("d",)), norm("d")),
    ],
    ids=["no Relu", "read unmasked", "an output", "two Relus", "a frozen scale", "one element", "no sum"],
)
def test_others_stay(graph: Graph) -> None:
    assert fused(graph) is graph


def test_every_branch_of_a_residual_network_is_taken() -> None:
    before = FuseActivationGrad().apply(program(Recipe(), "resnet8"))
    after = FuseFrozenGrad().apply(before)
    assert operators(before).count("AddRelu") == 3 and operators(before).count("AddReluGrad") == 2
    assert operators(after).count("FrozenAddReluGrad") == 3
    assert not {"Add", "AddReluGrad", "Relu"} & set(operators(after))
    assert after.state == before.state and after.entries["step"].writes == before.entries["step"].writes
