"""All of a small dense layer's backward pass in one call: the same bits as the operators that it takes the place of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.errors import UserError

RATE = np.array(0.05, dtype=np.float32)


@given(
    st.integers(1, 20), st.integers(1, 20), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**31)
)  # fmt: skip
def test_same_bits_as_the_single_operators(
    m: int, n: int, has_bias: bool, has_below: bool, has_relu: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    u, v = (draw.standard_normal((1, size)).astype(np.float32) for size in (m, n))
    w, b = draw.standard_normal((m, n)).astype(np.float32), draw.standard_normal(m).astype(np.float32)
    if has_relu:
        v = np.maximum(v, 0.0)
    inputs = [u, v, w, b if has_bias else None, RATE]
    fused = one_node_graph("DenseSGD", inputs, {"relu": int(has_relu)}, outputs=(True, has_bias, has_below))
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    got = run_graph(fused, feeds)
    stepped = run_graph(one_node_graph("OuterSGD", [u, v, w, RATE]), {"x0": u, "x1": v, "x2": w, "x3": RATE})["y0"]
    assert got["y0"].tobytes() == stepped.tobytes()
    if has_bias:
        sgd = one_node_graph("SGD", [b, u[0], RATE])
        assert got["y1"].tobytes() == run_graph(sgd, {"x0": b, "x1": u[0], "x2": RATE})["y0"].tobytes()
    if has_below:
        below = run_graph(one_node_graph("Gemm", [u, w]), {"x0": u, "x1": w})["y0"]
        below = np.where(v > 0, below, np.float32(0.0)) if has_relu else below
        assert got["y2"].tobytes() == below.tobytes()
    assert_same_bits_tiled(fused, feeds, seed)


@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.integers(0, 2**31))
def test_is_a_step_along_pytorchs_gradients(m: int, n: int, has_relu: bool, seed: int) -> None:
    """The gradients are autograd's of a layer behind a Relu, or behind nothing, in float64."""
    draw = np.random.default_rng(seed)
    before = torch.tensor(draw.standard_normal((1, n)), requires_grad=True)
    layer = torch.nn.Linear(n, m).double()
    sample = torch.relu(before) if has_relu else before
    dy = torch.tensor(draw.standard_normal((1, m)))
    layer(sample).backward(dy)
    values = [value.detach().numpy().astype(np.float32) for value in (dy, sample, layer.weight, layer.bias)]
    feeds = dict(zip(("x0", "x1", "x2", "x3", "x4"), [*values, RATE], strict=True))
    fused = one_node_graph("DenseSGD", [*values, RATE], {"relu": int(has_relu)}, outputs=(True, True, True))
    got = run_graph(fused, feeds)
    stepped = [value.detach() - 0.05 * value.grad for value in (layer.weight, layer.bias)]  # type: ignore[operator]
    for name, wanted in zip(("y0", "y1", "y2"), [*stepped, before.grad], strict=True):
        assert wanted is not None
        assert np.allclose(got[name], wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_refuses_a_bias_of_another_size() -> None:
    ones = [np.ones(size, np.float32) for size in ((3,), (4,), (3, 4), (4,))]
    with pytest.raises(UserError) as caught:
        one_node_graph("DenseSGD", [*ones, RATE], outputs=(True, True))
    assert str(caught.value) == "node 'node': DenseSGD: the bias ('x3') has a wrong shape\n  expected: [3]\n  got: [4]"
