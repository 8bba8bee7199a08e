"""The inverse deviation of a constant variance: taken at compile time, with the kernel's bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.kernels import run_graph
from tests.support.operators import one_node_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Role
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.freeze_statistics import FreezeStatistics, frozen_variances, inverse_deviation
from tilegrad.passes.inference import inference_program
from tilegrad.passes.program import derive_program
from tilegrad.pipeline import forward_graph
from tilegrad.recipe import Recipe

VARIANCES = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(0.0, 2.0**120, width=32))
ROLES = {"scale": "parameter", "bias": "parameter", "mean": "statistic", "variance": "statistic"}


def model(*epsilons: float, constant: bool = True) -> Graph:
    """BatchNormalizations in a row, all with the same statistics."""
    builder = GraphBuilder("model")
    value = builder.add_input("x", TensorType(DType.F32, (1, 3, 4)))
    for i, name in enumerate(("scale", "bias", "mean", "variance")):
        if name == "variance" and not constant:
            builder.add_input(name, TensorType(DType.F32, (3,)))
            continue
        builder.constants[name] = Constant(np.array([0.5, 1.5, 2.5], np.float32) + np.float32(i))
        builder.types[name] = builder.constants[name].type
    for i, epsilon in enumerate(epsilons):
        inputs = (value, "scale", "bias", "mean", "variance")
        value = f"y{i}"
        builder.append(Node(f"bn{i}", "BatchNormalization", inputs, (value,), {"epsilon": epsilon}))
    return builder.finish((value,))


@given(VARIANCES, st.floats(0.0, 0.5))
def test_the_bits_are_the_kernels(variance: np.ndarray, epsilon: float) -> None:
    graph = one_node_graph("InverseDeviation", [variance], {"epsilon": epsilon})
    assert run_graph(graph, {"x0": variance})["y0"].tobytes() == inverse_deviation(variance, epsilon).tobytes()


def test_one_constant_for_each_epsilon() -> None:
    graph = model(1e-5, 1e-3, 1e-5)
    frozen, variances = FreezeStatistics().apply(graph), frozen_variances(graph)
    assert [node.op for node in frozen.nodes] == ["FrozenBatchNormalization"] * 3
    names = [node.inputs[4] for node in frozen.nodes]
    assert names == ["variance.inverse_deviation", "variance.inverse_deviation.1", "variance.inverse_deviation"]
    assert variances == dict.fromkeys(names, "variance") and "variance" not in frozen.constants
    got = frozen.constants[names[1]].array
    assert np.allclose(got, 1.0 / np.sqrt(np.array([3.5, 4.5, 5.5]) + 1e-3), rtol=1e-7)


def test_the_outputs_are_the_same_bits() -> None:
    before = model(1e-5, 1e-3)
    after = FreezeStatistics().apply(before)
    x = np.random.default_rng(1).standard_normal((1, 3, 4)).astype(np.float32)
    results = []
    for graph in (before, after):
        feeds = {"x": x, **{name: constant.array for name, constant in graph.constants.items()}}
        results.append(run_graph(graph, feeds)["y1"].tobytes())
    assert results[0] == results[1]


def test_a_variance_that_is_an_input_stays() -> None:
    graph = model(1e-5, constant=False)
    assert FreezeStatistics().apply(graph) is graph and frozen_variances(graph) == {}


@pytest.mark.parametrize("policy", ["frozen", "train", "fold"])
def test_which_policies_freeze(policy: str) -> None:
    recipe = Recipe(batchnorm=policy)
    forward = forward_graph(model(1e-5), freezes=policy != "train")
    made = derive_program(*forward, recipe, ROLES, ("scale", "bias"), "mse")
    statistics = {tensor.name: tensor.owner for tensor in made.with_role(Role.STATISTIC)}
    if policy == "train":
        assert statistics == {"mean": None, "variance": None}
    else:
        assert statistics == {"mean": None, "variance.inverse_deviation": "variance"}
    inference = inference_program(*forward_graph(model(1e-5), freezes=True), recipe, ROLES)
    assert [t.name for t in inference.with_role(Role.STATISTIC)] == ["mean", "variance.inverse_deviation"]
