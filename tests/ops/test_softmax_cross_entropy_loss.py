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

LOSSES = {"SoftmaxCrossEntropyLoss": F.cross_entropy, "NegativeLogLikelihoodLoss": F.nll_loss}


@pytest.mark.parametrize("op", LOSSES)
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.lists(st.integers(1, 3), max_size=2),
    st.sampled_from(["mean", "sum", "none"]),
    st.sampled_from([None, -1, 0, 2]),
    st.booleans(),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([0.0, 0.0, 0.2]),
    st.integers(0, 2**31),
)
def test_against_pytorch(
    op: str,
    batch: int,
    classes: int,
    rest: list[int],
    reduction: str,
    ignored: int | None,
    has_weights: bool,
    label_type: type,
    smoothing: float,
    seed: int,
) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.standard_normal((batch, classes, *rest)).astype(np.float32)
    labels = draw.integers(0, classes, (batch, *rest))
    if ignored == -1:
        labels[draw.random(labels.shape) < 0.3] = -1
    if np.all(labels == ignored):  # a mean over nothing is NaN; tested apart
        labels[0] = classes - 1 if ignored != classes - 1 else 0
        ignored = None if np.all(labels == ignored) else ignored
    inputs: list[np.ndarray | None] = [scores, labels.astype(label_type)]
    if has_weights:
        inputs.append(draw.uniform(0.5, 2.0, classes).astype(np.float32))

    def reference(x: torch.Tensor, label: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        ignore_index = -100 if ignored is None else ignored
        more = {"label_smoothing": smoothing} if op == "SoftmaxCrossEntropyLoss" else {}
        return LOSSES[op](x, label.long(), weight=weight, reduction=reduction, ignore_index=ignore_index, **more)

    attributes: dict[str, int | str | float] = {"reduction": reduction}
    if smoothing and op == "SoftmaxCrossEntropyLoss":
        attributes["smoothing"] = smoothing
    if ignored is not None:
        attributes["ignore_index"] = ignored
    check_operator(op, inputs, reference, attributes, seed=seed)


def test_log_prob_is_the_second_output_and_carries_a_gradient() -> None:
    draw = np.random.default_rng(1)
    x, labels = draw.standard_normal((3, 5)).astype(np.float32), np.array([0, 4, 2])
    graph = one_node_graph("SoftmaxCrossEntropyLoss", [x, labels], outputs=(True, True))
    weights = draw.standard_normal((3, 5)).astype(np.float32)
    full, gradients = with_gradient(graph, ["x0"], "y1")
    values = run_graph(full, {"x0": x, "x1": labels, "seed": weights})
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = F.log_softmax(tensor, 1)
    (expected * torch.tensor(weights)).sum().backward()
    assert np.allclose(values["y1"], expected.detach(), atol=1e-6)
    assert tensor.grad is not None
    assert np.allclose(values[gradients["x0"]], tensor.grad, atol=1e-6)


@pytest.mark.parametrize("op", LOSSES)
@pytest.mark.parametrize("label", [5, -1, 2**31, 2**40, -(2**63)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_label_that_is_no_class_makes_the_loss_nan(op: str, label: int, reduction: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    labels = np.array([1, label, 3], np.int64)
    graph = one_node_graph(op, [x, labels], {"reduction": reduction})
    full, gradients = with_gradient(graph, ["x0"])
    values = run_graph(full, {"x0": x, "x1": labels, "seed": np.ones(graph.types["y0"].shape, np.float32)})
    assert np.isnan(values["y0"]).any()
    assert np.isnan(values[gradients["x0"]][1]).all()


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[1000.0, 0.0, -1000.0], [-500.0, -500.0, -500.0]], np.float32)
    labels = np.array([0, 1])
    values = run_graph(one_node_graph("SoftmaxCrossEntropyLoss", [x, labels]), {"x0": x, "x1": labels})
    assert values["y0"] == pytest.approx(np.log(3.0) / 2, rel=1e-6)


def test_a_mean_over_ignored_labels_only_is_nan_as_in_pytorch() -> None:
    x, labels = np.zeros((2, 3), np.float32), np.array([1, 1])
    graph = one_node_graph("SoftmaxCrossEntropyLoss", [x, labels], {"ignore_index": 1})
    assert np.isnan(run_graph(graph, {"x0": x, "x1": labels})["y0"])


def test_refusals() -> None:
    op = "SoftmaxCrossEntropyLoss"
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UserError, match=r"the labels \('x1'\) has a wrong shape"):
        one_node_graph(op, [x, np.zeros(3, np.int64)])
    with pytest.raises(UserError, match="does not take element type f32 for input 1"):
        one_node_graph(op, [x, np.zeros(2, np.float32)])
    with pytest.raises(UserError, match="unknown reduction"):
        one_node_graph(op, [x, np.zeros(2, np.int64)], {"reduction": "median"})
    with pytest.raises(UserError, match="takes scores with a batch and a class dimension"):
        one_node_graph(op, [x[0], np.zeros(3, np.int64)])
    with pytest.raises(UserError, match=r"the class weights \('x2'\) has a wrong shape"):
        one_node_graph(op, [x, np.zeros(2, np.int64), np.zeros(2, np.float32)])
