"""A loss and its gradient in one call: the bits of the two operators, and what PyTorch says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.errors import UserError

OP = "SoftmaxCrossEntropyLossWithGrad"


def _unfused(scores: np.ndarray, labels: np.ndarray, dy: np.ndarray, reduction: str) -> list[np.ndarray]:
    how = {"reduction": reduction}
    loss = one_node_graph("SoftmaxCrossEntropyLoss", [scores, labels], how, outputs=(True, True))
    made = run_graph(loss, {"x0": scores, "x1": labels})
    gradient = one_node_graph("SoftmaxCrossEntropyLossGrad", [dy, made["y1"], labels], how)
    return [made["y0"], run_graph(gradient, {"x0": dy, "x1": made["y1"], "x2": labels})["y0"]]


@given(
    st.sampled_from([1, 1, 2, 5, 17]),
    st.integers(1, 12),
    st.lists(st.integers(1, 3), max_size=2),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([1.0, 30.0, 200.0]),
    st.integers(0, 2**31),
)
def test_same_bits_as_the_loss_and_its_gradient(
    batch: int, classes: int, rest: list[int], reduction: str, label_type: type, size: float, seed: int
) -> None:
    """Up to scores whose exponentials vanish."""
    draw = np.random.default_rng(seed)
    scores = (size * draw.standard_normal((batch, classes, *rest))).astype(np.float32)
    labels = draw.integers(0, classes, (batch, *rest)).astype(label_type)
    dy = np.array(draw.uniform(0.5, 2.0), np.float32)
    fused = one_node_graph(OP, [scores, labels, dy], {"reduction": reduction}, outputs=(True, True))
    feeds = {"x0": scores, "x1": labels, "x2": dy}
    got = run_graph(fused, feeds)
    for name, wanted in zip(("y0", "y1"), _unfused(scores, labels, dy, reduction), strict=True):
        assert got[name].tobytes() == wanted.tobytes()
    assert_same_bits_tiled(fused, feeds, seed)
    x = torch.tensor(scores.astype(np.float64), requires_grad=True)
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels).long(), reduction=reduction)
    (loss * float(dy)).backward()
    assert x.grad is not None
    assert np.allclose(got["y0"], loss.detach().numpy(), rtol=1e-5, atol=1e-5 * size)
    assert np.allclose(got["y1"], x.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("label", [-1, 5, 2**40, -(2**40)])
def test_a_label_that_is_no_class_makes_both_nan(batch: int, label: int) -> None:
    scores = np.random.default_rng(0).standard_normal((batch, 5)).astype(np.float32)
    labels, dy = np.array([label] + [1] * (batch - 1)), np.array(1.0, np.float32)
    fused = one_node_graph(OP, [scores, labels, dy], outputs=(True, True))
    got = run_graph(fused, {"x0": scores, "x1": labels, "x2": dy})
    loss, gradient = _unfused(scores, labels, dy, "mean")
    assert np.isnan(got["y0"]) and np.isnan(loss)
    assert np.isnan(got["y1"][0]).all() and np.array_equal(got["y1"], gradient, equal_nan=True)


def test_refuses_what_only_the_two_operators_have() -> None:
    inputs = [np.ones((2, 3), np.float32), np.zeros(2, np.int64), np.array(1.0, np.float32)]
    with pytest.raises(UserError) as caught:
        one_node_graph(OP, inputs, {"reduction": "none"}, outputs=(True, True))
    assert str(caught.value) == f"node 'node': {OP}: unknown reduction\n  expected: mean or sum\n  got: none"
