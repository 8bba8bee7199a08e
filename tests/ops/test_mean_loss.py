from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

TORCH = {
    "MSELoss": F.mse_loss,
    "L1Loss": F.l1_loss,
    "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("op", TORCH)
@given(st.lists(st.integers(1, 40), max_size=3), st.integers(0, 2**31))
def test_against_pytorch(op: str, shape: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape).astype(np.float32)
    if op == "BCEWithLogitsLoss":
        x, t = 5 * x, draw.random(shape).astype(np.float32)
    else:  # L1's kink is where they are equal: keep away
        t = (x + np.sign(draw.standard_normal(shape)) * draw.uniform(0.1, 2.0, shape)).astype(np.float32)
    check_operator(op, [x, t], TORCH[op], differentiate=(0, 1), seed=seed)


@given(st.lists(st.integers(1, 40), max_size=3), st.sampled_from([0.25, 1.0, 3.0]), st.integers(0, 2**31))
def test_huber_against_pytorch(shape: list[int], delta: float, seed: int) -> None:
    """Near a difference of delta the second derivative jumps, and at it nothing does."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape).astype(np.float32)
    apart = delta * draw.choice([0.3, 0.6, 1.5, 2.5], shape) * np.sign(draw.standard_normal(shape))
    t = (x + apart).astype(np.float32)
    attributes = {"delta": delta}
    huber = lambda a, b: F.huber_loss(a, b, delta=delta)  # noqa: E731
    check_operator("HuberLoss", [x, t], huber, attributes, differentiate=(0, 1), seed=seed)


def test_huber_refuses_a_delta_that_is_not_positive() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(UserError, match="HuberLoss: bad attribute 'delta'"):
        one_node_graph("HuberLoss", [x, x], {"delta": 0.0})


def test_the_loss_of_no_elements_is_nan_as_in_pytorch() -> None:
    x = np.zeros((0, 3), np.float32)
    assert np.isnan(run_graph(one_node_graph("MSELoss", [x, x]), {"x0": x, "x1": x})["y0"])


def test_extreme_logits() -> None:
    x, t = np.array([-1e4, 1e4, 0.0, 90.0], np.float32), np.array([0.0, 1.0, 0.5, 0.0], np.float32)
    got = run_graph(one_node_graph("BCEWithLogitsLoss", [x, t]), {"x0": x, "x1": t})["y0"]
    assert got == pytest.approx((np.log(2.0) + 90.0) / 4, rel=1e-6)


def test_refuses_a_target_of_another_shape() -> None:
    with pytest.raises(UserError, match=r"MSELoss: the target \('x1'\) has a wrong shape"):
        one_node_graph("MSELoss", [np.zeros((2, 3), np.float32), np.zeros(6, np.float32)])
