"""Before and expected: what exporters take apart is put together again, and computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
import torch

from tests.support.kernels import run_graph
from tests.support.models import ints, model, node, value, weights
from tilegrad.frontend import load
from tilegrad.ir.graph import Graph, Node
from tilegrad.passes.fuse import fuse

ROOT_TWO = {"root2": np.array(2**0.5, np.float32), "half": np.array(0.5, np.float32), "one": np.array(1, np.float32)}
TANH = {
    "a": np.array(0.044715, np.float32),
    "k": np.array((2 / np.pi) ** 0.5, np.float32),
    "half": np.array(0.5, np.float32),
    "one": np.array(1, np.float32),
    "three": np.array(3, np.float32),
    "two": np.array(2, np.float32),
}
GAMMA_BETA = {"gamma": weights(8), "beta": weights(8, seed=1), "eps": np.array(1e-5, np.float32), "two": TANH["two"]}

ERF = [node("Div", "x root2", "d"), node("Erf", "d", "e"), node("Add", "e one", "s")]
CUBE = [node("Pow", "x three", "c"), node("Mul", "c a", "ca"), node("Add", "x ca", "i"), node("Mul", "i k", "t")]
GATE = [node("Tanh", "t", "th"), node("Add", "th one", "s")]
HALF_LAST = [node("Mul", "x s", "m"), node("Mul", "m half", "y", "last")]
HALF_FIRST = [node("Mul", "x half", "h"), node("Mul", "h s", "y", "last")]
HALF_INSIDE = [node("Mul", "s half", "hs"), node("Mul", "hs x", "y", "last")]
BY_TWO = [node("Mul", "s x", "m"), node("Div", "m two", "y", "last")]

GELUS = {
    "legacy exporter": ([*ERF, *HALF_LAST], ROOT_TWO, {}),
    "half first": ([*ERF, *HALF_FIRST], ROOT_TWO, {}),
    "half inside": ([*ERF, *HALF_INSIDE], ROOT_TWO, {}),
    "divided by two": ([*ERF, *BY_TWO], {**ROOT_TWO, "two": TANH["two"]}, {}),
    "multiplied by the reciprocal": (
        [node("Mul", "r x", "d"), *ERF[1:], *HALF_FIRST],
        {"r": np.array(0.70710678, np.float32), **{k: v for k, v in ROOT_TWO.items() if k != "root2"}},
        {},
    ),
    "tanh, cubed by Pow": ([*CUBE, *GATE, *HALF_LAST], TANH, {"approximate": "tanh"}),
    "tanh, cubed by Mul": (
        [node("Mul", "x x", "xx"), node("Mul", "xx x", "c"), *CUBE[1:], *GATE, *HALF_FIRST],
        TANH,
        {"approximate": "tanh"},
    ),
    "tanh, x factored out": (
        [
            node("Mul", "x x", "xx"),
            node("Mul", "xx a", "axx"),
            node("Add", "axx one", "i"),
            node("Mul", "x i", "j"),
            node("Mul", "j k", "t"),
            *GATE,
            *HALF_INSIDE,
        ],
        TANH,
        {"approximate": "tanh"},
    ),
}


def imported(nodes: Sequence[onnx.NodeProto], values: Mapping[str, object], shape: Sequence[int] = (3, 8)) -> Graph:
    used = {name for n in nodes for name in n.input}
    values = {name: content for name, content in values.items() if name in used}
    return load(model(nodes, [value("x", shape)], [value("y", None)], values)).graph


@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str) -> None:
    nodes, values, attributes = GELUS[name]
    before = imported(nodes, values)
    after = fuse(before)
    assert after.nodes == (Node("last", "Gelu", ("x",), ("y",), attributes),)
    assert after.constants == {}
    x = 3 * weights(3, 8)
    wanted = torch.nn.functional.gelu(torch.tensor(x), approximate="tanh" if attributes else "none").numpy()
    for graph in (before, after):
        assert np.allclose(run_graph(graph, {"x": x})["y"], wanted, atol=2e-6)


def test_gelu_of_a_sum() -> None:
    """x itself may come out of arithmetic."""
    nodes = [node("Add", "u b", "x"), *CUBE, *GATE, *HALF_LAST]
    values = {**{name: TANH[name] for name in ("a", "k", "half", "one", "three")}, "b": weights(8)}
    graph = load(model(nodes, [value("u", [3, 8])], [value("y", None)], values)).graph
    assert [(n.op, n.inputs) for n in fuse(graph).nodes] == [("Add", ("u", "b")), ("Gelu", ("x",))]


def test_something_like_gelu() -> None:
    """0.6 instead of 0.5, another root, another x: left as they are."""
    for values in ({"half": np.array(0.6, np.float32)}, {"root2": np.array(1.5, np.float32)}):
        graph = imported([*ERF, *HALF_LAST], {**ROOT_TWO, **values})
        assert fuse(graph) == graph
    other = [*ERF, node("Sigmoid", "x", "z"), node("Mul", "z s", "m"), node("Mul", "m half", "y")]
    graph = imported(other, ROOT_TWO)
    assert fuse(graph) == graph


def test_part_of_a_gelu_that_is_read_elsewhere() -> None:
    nodes = [*ERF, node("Mul", "x s", "m"), node("Mul", "m half", "g"), node("Add", "g s", "y")]
    graph = imported(nodes, ROOT_TWO)
    after = fuse(graph)
    assert [n.op for n in after.nodes] == ["Div", "Erf", "Add", "Gelu", "Add"]
    x = weights(3, 8)
    assert np.allclose(run_graph(after, {"x": x})["y"], run_graph(graph, {"x": x})["y"], atol=1e-6)


MEAN = [node("ReduceMean", "x", "mean", axes=[-1]), node("Sub", "x mean", "d")]
VARIANCE = [node("Pow", "d two", "dd"), node("ReduceMean", "dd", "var", axes=[-1]), node("Add", "var eps", "v")]
ROOT = [node("Sqrt", "v", "s"), node("Div", "d s", "n", "div")]
AFFINE = [node("Mul", "n gamma", "g", "mul"), node("Add", "g beta", "y", "add")]

NORMS = {
    "legacy exporter": [*MEAN, *VARIANCE, *ROOT, *AFFINE],
    "difference computed twice": [
        *MEAN,
        node("Sub", "x mean", "d2"),
        node("Pow", "d2 two", "dd"),
        *VARIANCE[1:],
        *ROOT,
        *AFFINE,
    ],
    "squared by Mul": [*MEAN, node("Mul", "d d", "dd"), *VARIANCE[1:], *ROOT, *AFFINE],
    "reciprocal": [
        *MEAN,
        *VARIANCE,
        node("Sqrt", "v", "s"),
        node("Reciprocal", "s", "r"),
        node("Mul", "d r", "n", "div"),
        *AFFINE,
    ],
    "operands the other way round": [
        *MEAN,
        *VARIANCE[:2],
        node("Add", "eps var", "v"),
        *ROOT,
        node("Mul", "gamma n", "g"),
        node("Add", "beta g", "y", "add"),
    ],
}


@pytest.mark.parametrize("name", NORMS)
def test_layer_norm(name: str) -> None:
    before = imported(NORMS[name], GAMMA_BETA)
    after = fuse(before)
    (only,) = after.nodes
    assert (only.name, only.op, only.inputs) == ("add", "LayerNormalization", ("x", "gamma", "beta"))
    assert only.attributes["axis"] == 1 and only.attributes["epsilon"] == pytest.approx(1e-5)
    assert list(after.constants) == ["gamma", "beta"]
    x = weights(3, 8)
    wanted = torch.nn.functional.layer_norm(
        torch.tensor(x), (8,), torch.tensor(GAMMA_BETA["gamma"]), torch.tensor(GAMMA_BETA["beta"])
    ).numpy()
    for graph in (before, after):
        assert np.allclose(run_graph(graph, {"x": x})["y"], wanted, atol=2e-6)


def test_layer_norm_without_affine_part() -> None:
    nodes = [*MEAN, *VARIANCE, node("Sqrt", "v", "s"), node("Div", "d s", "y", "div")]
    after = fuse(imported(nodes, GAMMA_BETA))
    assert [(n.op, n.inputs) for n in after.nodes] == [("LayerNormalization", ("x", "tg.ones_8"))]


def test_layer_norm_over_two_dimensions() -> None:
    axes = {"axes": [1, 2]}
    nodes = [
        node("ReduceMean", "x", "mean", **axes),
        node("Sub", "x mean", "d"),
        node("Pow", "d two", "dd"),
        node("ReduceMean", "dd", "var", **axes),
        *VARIANCE[2:],
        *ROOT,
        node("Mul", "n gamma", "y", "mul"),
    ]
    values = {**GAMMA_BETA, "gamma": weights(4, 5)}
    before = imported(nodes, values, (2, 4, 5))
    after = fuse(before)
    assert [(n.op, n.inputs, n.attributes["axis"]) for n in after.nodes] == [("LayerNormalization", ("x", "gamma"), 1)]
    x = weights(2, 4, 5)
    assert np.allclose(run_graph(after, {"x": x})["y"], run_graph(before, {"x": x})["y"], atol=2e-6)


def test_normalisation_over_other_dimensions_is_left() -> None:
    nodes = [
        node("ReduceMean", "x", "mean", axes=[0]),
        node("Sub", "x mean", "d"),
        node("Pow", "d two", "dd"),
        node("ReduceMean", "dd", "var", axes=[0]),
        *VARIANCE[2:],
        node("Sqrt", "v", "s"),
        node("Div", "d s", "y"),
    ]
    graph = imported(nodes, GAMMA_BETA)
    assert fuse(graph) == graph


def test_broadcast_scale_is_left_outside() -> None:
    """A scale of another shape than what is normalised is not LayerNormalization's."""
    nodes = [*MEAN, *VARIANCE, *ROOT, node("Mul", "n gamma", "y", "mul")]
    after = fuse(imported(nodes, {**GAMMA_BETA, "gamma": weights(3, 1)}))
    assert [n.op for n in after.nodes] == ["LayerNormalization", "Mul"]


def test_transposed_weight() -> None:
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y", "mm")]
    before = imported(nodes, {"w": weights(4, 8)})
    after = fuse(before)
    assert after.nodes == (Node("mm", "FusedMatMul", ("x", "w"), ("y",), {"transB": 1}),)
    x = weights(3, 8)
    assert np.allclose(run_graph(after, {"x": x})["y"], x @ weights(4, 8).T, atol=1e-6)


def test_transposed_batches() -> None:
    proto = model(
        [
            node("Transpose", "a", "p", perm=[0, 2, 1]),
            node("Transpose", "b", "q", perm=[0, 2, 1]),
            node("MatMul", "p q", "y"),
        ],
        [value("a", [2, 5, 3]), value("b", [2, 4, 5])],
        [value("y", [2, 3, 4])],
    )
    after = fuse(load(proto, batch=2).graph)
    assert [(n.op, n.inputs, dict(n.attributes)) for n in after.nodes] == [
        ("FusedMatMul", ("a", "b"), {"transA": 1, "transB": 1})
    ]
    a, b = weights(2, 5, 3), weights(2, 4, 5, seed=1)
    wanted = a.transpose(0, 2, 1) @ b.transpose(0, 2, 1)
    assert np.allclose(run_graph(after, {"a": a, "b": b})["y"], wanted, atol=1e-6)


def test_other_transpositions_stay() -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("MatMul", "t w", "y")]
    graph = imported(nodes, {"w": weights(8, 4)}, (2, 3, 8))
    assert fuse(graph) == graph


def test_nothing_to_fuse() -> None:
    graph = imported([node("Reshape", "x s", "r"), node("Relu", "r", "y")], {"s": ints(24)})
    assert fuse(graph) == graph
