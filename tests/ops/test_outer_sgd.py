"""Outer products that are used without being made: the same bits as Gemm followed by what uses it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.errors import UserError


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**31))
def test_same_bits_as_gemm_and_sgd(m: int, n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    u, v = (draw.standard_normal(size).astype(np.float32) for size in (m, n))
    w = draw.standard_normal((m, n)).astype(np.float32)
    lr = np.array(0.05, dtype=np.float32)
    fused = one_node_graph("OuterSGD", [u, v, w, lr])
    feeds = {"x0": u, "x1": v, "x2": w, "x3": lr}
    got = run_graph(fused, feeds)["y0"]
    gradient = run_graph(one_node_graph("Gemm", [u[:, None], v[None, :]]), {"x0": u[:, None], "x1": v[None, :]})["y0"]
    wanted = run_graph(one_node_graph("SGD", [w, gradient, lr]), {"x0": w, "x1": gradient, "x2": lr})["y0"]
    assert got.tobytes() == wanted.tobytes()
    assert np.allclose(got, w.astype(np.float64) - 0.05 * np.outer(u, v), rtol=1e-5, atol=1e-6)
    assert_same_bits_tiled(fused, feeds, seed)


@given(st.integers(1, 20), st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
def test_the_gradient_below_and_the_step_have_the_bits_of_gemm_and_outer_sgd(
    m: int, n: int, has_relu: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    u, v = (draw.standard_normal((1, size)).astype(np.float32) for size in (m, n))
    w = draw.standard_normal((m, n)).astype(np.float32)
    lr = np.array(0.05, dtype=np.float32)
    if has_relu:
        v = np.maximum(v, 0.0)
    fused = one_node_graph("DenseGradSGD", [u, v, w, lr], {"relu": int(has_relu)}, outputs=(True, True))
    feeds = {"x0": u, "x1": v, "x2": w, "x3": lr}
    got = run_graph(fused, feeds)
    below = run_graph(one_node_graph("Gemm", [u, w]), {"x0": u, "x1": w})["y0"]
    if has_relu:
        below = np.where(v > 0, below, np.float32(0.0))
    stepped = run_graph(one_node_graph("OuterSGD", [u, v, w, lr]), feeds)["y0"]
    assert got["y0"].tobytes() == stepped.tobytes() and got["y1"].tobytes() == below.tobytes()
    assert np.allclose(got["y1"], u.astype(np.float64) @ w * (v > 0 if has_relu else 1), rtol=1e-4, atol=1e-5)
    assert_same_bits_tiled(fused, feeds, seed)


@given(st.integers(1, 20), st.integers(1, 20), st.booleans(), st.integers(0, 2**31))
def test_accumulates_the_bits_of_gemm_and_accumulator(m: int, n: int, overwrite: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    u, v = (draw.standard_normal(size).astype(np.float32) for size in (m, n))
    buffer = draw.standard_normal((m, n)).astype(np.float32)
    flag = np.array([overwrite])
    fused = one_node_graph("OuterAccumulate", [u, v, buffer, flag])
    feeds = {"x0": u, "x1": v, "x2": buffer, "x3": flag}
    got = run_graph(fused, feeds)["y0"]
    wanted = np.outer(u, v) if overwrite else buffer + np.outer(u, v)
    assert got.tobytes() == wanted.astype(np.float32).tobytes()
    assert_same_bits_tiled(fused, feeds, seed)


def test_refuses_a_weight_of_another_shape() -> None:
    ones = [np.ones(3, np.float32), np.ones(4, np.float32), np.ones((4, 3), np.float32), np.float32(0.1)]
    with pytest.raises(UserError) as caught:
        one_node_graph("OuterSGD", [np.asarray(value) for value in ones])
    assert str(caught.value) == (
        "node 'node': OuterSGD: the weight is not the shape of the outer product\n  expected: [3, 4]\n  got: [4, 3]"
    )
