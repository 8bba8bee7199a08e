"""Central differences find wrong gradients, leave right ones alone, and say what they could not resolve."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.verify.conftest import TRAINABLE, convolution_model, make_batches, make_model
from tilegrad.errors import UserError
from tilegrad.optimizers import OPTIMIZERS
from tilegrad.verify.finite_differences import directional_check, gradient_verdict
from tilegrad.verify.first_update import FirstUpdate, verify_first_update
from tilegrad.verify.float64_model import Float64Model, with_unit_variance
from tilegrad.verify.reference import ReferenceRecipe

HAS_TORCH = importlib.util.find_spec("torch") is not None
EVALUATORS = ["onnx", *(["torch"] if HAS_TORCH else [])]


def linear_model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    return make_model(nodes, {"x": ("N", 4)}, ["y"], weights)


def linear_case() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]], float]:
    """Mean squared error of a linear map, whose gradient is a line of algebra."""
    random = np.random.default_rng(5)
    x, y = random.standard_normal((6, 4)), random.standard_normal((6, 3))
    weights = Float64Model(linear_model(), "mse", evaluator="onnx").weights
    residual = x @ weights["w"] + weights["b"] - y
    gradients = {"w": 2 * x.T @ residual / residual.size, "b": 2 * residual.sum(axis=0) / residual.size}
    return x, y, gradients, float(np.square(residual).mean())


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_right_gradients_pass_and_wrong_ones_are_named(evaluator: Any) -> None:
    model = Float64Model(linear_model(), "mse", evaluator=evaluator)
    x, y, gradients, loss = linear_case()
    verdict = gradient_verdict(model, (x, y), loss, gradients)
    assert verdict.verified and verdict.max_gradient_error is not None and verdict.max_gradient_error < 1e-7
    assert evaluator.upper() in verdict.reference.upper() or "PyTorch" in verdict.reference
    for index in range(12):
        wrong = {**gradients, "w": gradients["w"].copy()}
        wrong["w"].flat[index] += 0.01 * np.linalg.norm(wrong["w"])
        verdict = gradient_verdict(model, (x, y), loss, wrong)
        assert not verdict.verified and verdict.worst_tensor == "w"
        assert verdict.failures()[0].startswith("gradient of w is off by")
    assert not gradient_verdict(model, (x, y), loss * 1.001, gradients).verified


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1.01, np.nan])
def test_zero_flipped_scaled_and_undefined_gradients_fail(wrong: float) -> None:
    model = Float64Model(linear_model(), "mse", evaluator="onnx")
    x, y, gradients, _ = linear_case()
    rows = directional_check(model, (x, y), {**gradients, "b": gradients["b"] * wrong})
    assert [row.passed for row in rows] == [True, False]


def test_an_accumulated_mean_is_scaled() -> None:
    model = Float64Model(linear_model(), "mse", evaluator="onnx")
    x, y, gradients, _ = linear_case()
    halves = {name: gradient / 2 for name, gradient in gradients.items()}
    assert all(row.passed for row in directional_check(model, (x, y), halves, gradient_scale=0.5))
    assert not any(row.passed for row in directional_check(model, (x, y), halves))


def test_unknown_and_misshapen_gradients_are_refused() -> None:
    model = Float64Model(linear_model(), "mse", evaluator="onnx")
    x, y, _, _ = linear_case()
    with pytest.raises(UserError, match="no initializer other"):
        directional_check(model, (x, y), {"other": np.zeros(3)})
    with pytest.raises(UserError, match="gradient of 'b' has the wrong size"):
        directional_check(model, (x, y), {"b": np.zeros(4)})


def test_a_kink_is_stepped_around_and_mentioned() -> None:
    """A pre-activation within the first step of zero: the difference straddles the kink unless the step shrinks."""
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = make_model(nodes, {"x": (1, 1)}, ["y"], {"b": np.array([[0.1]], np.float32)})
    bias = float(np.float32(0.1))
    x, y = np.array([[-bias + 0.7e-7]]), np.array([[-1.0]])
    gradient = {"b": np.array([[2.0 * (1.0 + 0.7e-7)]])}
    (row,) = directional_check(Float64Model(model, "mse", evaluator="onnx"), (x, y), gradient)
    assert row.passed and "kink" in row.note


def test_a_gradient_that_is_zero_by_mathematics_may_be_rounding() -> None:
    """A bias shared by all classes cannot change a softmax."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["g"]), helper.make_node("Add", ["g", "shift"], ["y"])]
    weights = {
        "w": np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32),
        "shift": np.zeros(1, np.float32),
    }
    model = Float64Model(make_model(nodes, {"x": (2, 4)}, ["y"], weights), "cross_entropy", evaluator="onnx")
    x, y = np.random.default_rng(3).standard_normal((2, 4)), np.array([0, 2])
    logits = x @ weights["w"].astype(np.float64)
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    exact = x.T @ (probability - np.eye(3)[y]) / 2
    rows = directional_check(model, (x, y), {"w": exact, "shift": np.array([3e-8])})
    assert all(row.passed for row in rows) and "zero but for float32 rounding" in rows[1].note
    assert not directional_check(model, (x, y), {"w": exact, "shift": np.array([1e-3])})[1].passed


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch, which gives the gradients")
@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("policy", ["frozen", "train"])
def test_pytorchs_float32_gradients_pass(policy: Any, evaluator: Any) -> None:
    from tilegrad.verify import torch_reference

    proto, (batch,) = convolution_model(), make_batches(1, batch=4)
    run = torch_reference.run(proto, ReferenceRecipe(batchnorm=policy), [batch], TRAINABLE, "float32")
    model = Float64Model(proto, "cross_entropy", batchnorm=policy, evaluator=evaluator)
    verdict = gradient_verdict(model, batch, run.losses[0], run.first_gradients)
    assert verdict.verified, verdict.failures()
    gradients = dict(run.first_gradients)
    gradients["conv.weight"] = np.flip(gradients["conv.weight"], axis=-1)
    verdict = gradient_verdict(model, batch, run.losses[0], gradients)
    assert [row.name for row in verdict.tensors if not row.passed] == ["conv.weight"]


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch, which does the training")
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize(("accumulate", "mode"), [(1, "mean"), (3, "mean"), (3, "sum")])
def test_the_first_update_is_verified_without_a_second_training(optimizer: Any, accumulate: int, mode: Any) -> None:
    from tilegrad.verify.torch_trainer import TorchTrainer

    proto, batches = convolution_model(), make_batches(accumulate)
    recipe = ReferenceRecipe(optimizer=OPTIMIZERS[optimizer](weight_decay=0.1), accumulate=accumulate, accum_mode=mode)
    trainer = TorchTrainer(proto, recipe, TRAINABLE, "float32")
    losses, first = [], {}
    for index, (x, y) in enumerate(batches):
        losses.append(trainer.step(x, y))
        first = first if index else trainer.gradients()
    buffers = trainer.gradients()
    trainer.update()
    measured = FirstUpdate(losses, first, trainer.weights(), buffers if accumulate > 1 else {})
    model = Float64Model(proto, "cross_entropy")
    verdict = verify_first_update(model, recipe, batches, measured)
    assert verdict.verified, verdict.failures()
    assert "later steps are not verified" in verdict.coverage
    wrong = {**trainer.weights(), "fc.bias": trainer.weights()["fc.bias"] * 1.01}
    verdict = verify_first_update(model, recipe, batches, FirstUpdate(losses, first, wrong, buffers))
    assert verdict.failures()[0].startswith("weight of fc.bias")


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch for the other evaluator")
@pytest.mark.parametrize("policy", ["frozen", "train"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "l1", "bce_with_logits"])
def test_both_evaluators_and_partial_evaluation_agree(loss: Any, policy: Any) -> None:
    proto, (x, y) = convolution_model(), make_batches(1, batch=3)[0]
    y = y if loss == "cross_entropy" else np.random.default_rng(0).random((3, 5))
    left, right = (Float64Model(proto, loss, batchnorm=policy, evaluator=name) for name in ("onnx", "torch"))  # type: ignore[arg-type]
    assert left.loss((x, y)) == pytest.approx(right.loss((x, y)), rel=1e-12)
    moved = {"bn.bias": left.weights["bn.bias"] + 0.1}
    assert left.loss((x, y), moved) == pytest.approx(right.loss((x, y), moved), rel=1e-12)
    assert left.loss((x, y), moved) != left.loss((x, y))
    assert left.loss((x, y)) == pytest.approx(right.loss((x, y)), rel=1e-12)


def test_unit_variance_scales_running_variances_only() -> None:
    proto, (x, _) = convolution_model(), make_batches(1, batch=3)[0]
    scaled = with_unit_variance(proto, x)
    before, after = ({p.name: onnx.numpy_helper.to_array(p) for p in m.graph.initializer} for m in (proto, scaled))
    assert [name for name in before if not np.array_equal(before[name], after[name])] == ["bn.variance"]
    model = Float64Model(scaled, "cross_entropy", evaluator="onnx")
    model.logits(x)
    assert float(np.var(model._base["b"])) == pytest.approx(1.0, rel=0.1)
