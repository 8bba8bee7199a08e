from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph, with_gradient
from tilegrad.errors import UserError
from tilegrad.ir.graph import Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder

Case = tuple[list[np.ndarray], float, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """[X, scale, bias, mean, variance], epsilon, seed."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 9)), *draw(st.lists(st.integers(1, 5), max_size=2)))
    seed = draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    c = shape[1]
    arrays = [
        random.standard_normal(shape) + random.standard_normal(),
        random.uniform(0.5, 2.0, c),
        random.standard_normal(c),
        random.uniform(-0.5, 0.5, c),
        random.uniform(0.5, 1.5, c),
    ]
    return [a.astype(np.float32) for a in arrays], draw(st.sampled_from([1e-5, 1e-3])), seed


@given(cases(), st.sampled_from([(0,), (1,), (2,), (0, 1, 2), (0, 2)]))
def test_frozen_against_pytorch(case: Case, differentiate: tuple[int, ...]) -> None:
    arrays, epsilon, seed = case

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        x, scale, bias, mean, variance = tensors
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)

    attributes = {"epsilon": epsilon, "momentum": 0.9}
    check_operator("BatchNormalization", arrays, reference, attributes, differentiate=differentiate, seed=seed)


def away_from_the_kink(arrays: list[np.ndarray]) -> np.ndarray:
    """x, moved where the normalised value is so near 0 that rounding or a finite difference decides about the Relu."""
    x, scale, bias, mean, inverse = arrays
    factor, shift, center = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (scale * inverse, bias, mean))
    y = (x - center) * factor + shift
    return np.where(np.abs(y) < 1e-3, x + np.float32(0.25), x).astype(np.float32)


@given(cases(), st.sampled_from([(0,), (1,), (2,), (0, 1, 2), (0, 1), (0, 2), (1, 2)]), st.booleans())
def test_constant_statistics_against_pytorch(case: Case, differentiate: tuple[int, ...], has_relu: bool) -> None:
    """The operators that passes make of policy `frozen`, whose last input is the inverse deviation."""
    arrays, _, seed = case

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        x, scale, bias, mean, inverse = tensors
        by_channel = [t.reshape(-1, *(1,) * (x.ndim - 2)) for t in (scale * inverse, bias, mean)]
        y = (x - by_channel[2]) * by_channel[0] + by_channel[1]
        return F.relu(y) if has_relu else y

    arrays[0] = away_from_the_kink(arrays)
    attributes = {"relu": int(has_relu)}
    check_operator("FrozenBatchNormalization", arrays, reference, attributes, differentiate=differentiate, seed=seed)


@given(cases(), st.booleans())
def test_a_fused_relu_gives_the_bits_of_two_operators(case: Case, awkward: bool) -> None:
    arrays, _, seed = case
    if awkward:
        draw = np.random.default_rng(seed)
        values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-41], np.float32)
        arrays[0] = np.where(draw.random(arrays[0].shape) < 0.2, draw.choice(values, arrays[0].shape), arrays[0])
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    feeds["seed"] = np.random.default_rng(seed).standard_normal(arrays[0].shape).astype(np.float32)
    fused = one_node_graph("FrozenBatchNormalization", arrays, {"relu": 1})
    builder = GraphBuilder("apart")
    for i, array in enumerate(arrays):
        builder.add_input(f"x{i}", TensorType(DType.F32, array.shape))
    builder.append(Node("norm", "FrozenBatchNormalization", tuple(f"x{i}" for i in range(5)), ("n",)))
    builder.append(Node("relu", "Relu", ("n",), ("y0",)))
    results = []
    for graph in (fused, builder.finish(("y0",))):
        full, gradients = with_gradient(graph, ("x0", "x1", "x2"))
        values = run_graph(full, feeds)
        results.append([values[name] for name in ("y0", *(gradients[f"x{i}"] for i in range(3)))])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.array_equal(np.signbit(one[one == 0.0]), np.signbit(other[other == 0.0]))


@given(cases(), st.booleans())
def test_a_mask_from_what_was_normalised_is_that_of_the_relu(case: Case, awkward: bool) -> None:
    """Against PyTorch, and bit for bit what the gradient with the Relu's output gives."""
    arrays, _, seed = case
    draw = np.random.default_rng(seed)
    arrays[0] = away_from_the_kink(arrays)
    dy = draw.standard_normal(arrays[0].shape).astype(np.float32)

    def reference(dy: torch.Tensor, x: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        scale, bias, mean, inverse = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in vectors)
        return torch.where((x - mean) * inverse * scale + bias > 0, dy, torch.zeros_like(dy))

    check_operator("FrozenReluGrad", [dy, *arrays], reference, differentiate=(), seed=seed)
    if awkward:
        values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-41], np.float32)
        arrays[0] = np.where(draw.random(arrays[0].shape) < 0.2, draw.choice(values, arrays[0].shape), arrays[0])
    x, scale, bias, mean, inverse = arrays
    y = run_graph(one_node_graph("FrozenBatchNormalization", arrays, {"relu": 1}), feeds_of(arrays))["y0"]
    inputs = [dy, scale, x, mean, inverse, y]
    expected = run_graph(one_node_graph("FrozenBatchNormalizationGrad", inputs, outputs=ALL), feeds_of(inputs))
    inputs = [dy, x, scale, bias, mean, inverse]
    masked = run_graph(one_node_graph("FrozenReluGrad", inputs), feeds_of(inputs))["y0"]
    inputs = [masked, scale, x, mean, inverse]
    found = run_graph(one_node_graph("FrozenBatchNormalizationGrad", inputs, outputs=ALL), feeds_of(inputs))
    for name in ("y0", "y1", "y2"):
        np.testing.assert_array_equal(found[name], expected[name])


ALL = (True, True, True)


def feeds_of(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


@given(cases(), st.sampled_from([(0,), (1,), (0, 1, 2), (1, 2)]), st.sampled_from([0.9, 0.5]))
def test_batch_statistics_against_pytorch(case: Case, differentiate: tuple[int, ...], momentum: float) -> None:
    arrays, epsilon, seed = case
    x = arrays[0]
    if x.size // x.shape[1] < 8:  # the gradient of few values is what little the statistics leave: mostly rounding
        extra = np.random.default_rng(seed + 1).standard_normal((8, *x.shape[1:]))
        arrays[0] = x = np.concatenate([x, extra]).astype(np.float32)
    running: list[torch.Tensor] = []

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        x, scale, bias, mean, variance = tensors
        running[:] = [mean.clone(), variance.clone()]
        return F.batch_norm(x, *running, scale, bias, True, 1 - momentum, epsilon)

    attributes = {"epsilon": epsilon, "momentum": momentum}
    check_operator(
        "BatchNormInternal",
        arrays,
        reference,
        attributes,
        differentiate=differentiate,
        outputs=(True,) * 5,
        tolerance=1e-4,
        seed=seed,
    )
    graph = one_node_graph("BatchNormInternal", arrays, attributes, outputs=(True,) * 5)
    values = run_graph(graph, {f"x{i}": array for i, array in enumerate(arrays)})
    reference(*(torch.tensor(array, dtype=torch.float64) for array in arrays))
    for name, expected in zip(("y1", "y2"), running, strict=True):
        assert np.allclose(values[name], expected.numpy(), rtol=1e-5, atol=1e-6)


def test_training_mode_is_onnx_with_population_variance() -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 3, 4)).astype(np.float32)
    arrays = [x, *(random.uniform(0.5, 1.5, 3).astype(np.float32) for _ in range(4))]
    attributes = {"training_mode": 1, "momentum": 0.8}
    graph = one_node_graph("BatchNormalization", arrays, attributes, outputs=(True, True, True))
    values = run_graph(graph, {f"x{i}": array for i, array in enumerate(arrays)})
    assert np.allclose(values["y1"], 0.8 * arrays[3] + 0.2 * x.mean((0, 2)), atol=1e-6)
    assert np.allclose(values["y2"], 0.8 * arrays[4] + 0.2 * x.var((0, 2)), atol=1e-6)


def test_the_variance_of_a_large_mean_is_accurate() -> None:
    random = np.random.default_rng(4)
    x = (random.standard_normal((4, 2, 8, 8)) + 1000.0).astype(np.float32)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    graph = one_node_graph("BatchNormInternal", [x, one, zero, zero, one], outputs=(True,) * 5)
    got = run_graph(graph, {"x0": x, "x1": one, "x2": zero, "x3": zero, "x4": one})["y4"]
    assert np.allclose(got, 1 / np.sqrt(x.astype(np.float64).var((0, 2, 3)) + 1e-5), rtol=1e-5)


def test_refusals() -> None:
    x, c = np.zeros((2, 3, 4), np.float32), np.ones(3, np.float32)
    with pytest.raises(UserError, match=r"the running mean \('x3'\) has a wrong shape"):
        one_node_graph("BatchNormalization", [x, c, c, np.ones(4, np.float32), c])
    with pytest.raises(UserError, match="takes a batch and a channel dimension"):
        one_node_graph("BatchNormalization", [c, c, c, c, c])
    with pytest.raises(UserError, match="batch statistics need more than one value per channel"):
        one_node_graph("BatchNormInternal", [x[:1, :, 0], c, c, c, c], outputs=(True,) * 5)
