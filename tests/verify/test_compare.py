"""The verdict: what passes, what does not, and what it says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from tilegrad.errors import UserError
from tilegrad.optimizers import SGD, Momentum
from tilegrad.verify.compare import Measured, Reference, compare
from tilegrad.verify.reference import ReferenceRecipe, loss_errors, relative_error, relative_errors
from tilegrad.verify.sketch import sketch, sketch_error

W = np.linspace(1.0, 2.0, 50)
G = np.linspace(-1.0, 1.0, 50)
REFERENCE = Reference("PyTorch 2.13.0 float64", (2.0, 1.0), {"w": G}, {"w": W})


def measured(**changes: Any) -> Measured:
    return dataclasses.replace(Measured((2.0, 1.0), {"w": G}, {"w": W}), **changes)


def test_equal_runs_are_verified() -> None:
    verdict = compare(measured(), REFERENCE)
    assert verdict.verified and verdict.failures() == ()
    assert (verdict.max_loss_error, verdict.max_gradient_error, verdict.max_weight_error) == (0.0, 0.0, 0.0)
    assert verdict.max_statistic_error is None
    assert verdict.reference == "PyTorch 2.13.0 float64" and verdict.reference_losses == (2.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"losses": (2.0, 1.001)}, "loss of mini-batch 2 is off by 0.001, allowed 0.0001"),
        ({"first_gradients": {"w": G * 1.01}}, "gradient of w is off by 0.01, allowed 0.0001"),
        ({"weights": {"w": W * 0.99}}, "weight of w is off by 0.01, allowed 0.0001"),
        ({"weights": {"w": W * np.nan}}, "weight of w is off by inf, allowed 0.0001"),
        ({"losses": (2.0, float("nan"))}, "loss of mini-batch 2 is off by inf, allowed 0.0001"),
    ],
)
def test_each_figure_is_judged(changes: dict[str, Any], failure: str) -> None:
    verdict = compare(measured(**changes), REFERENCE)
    assert not verdict.verified and verdict.failures() == (failure,)


def test_ten_times_the_float32_difference_is_allowed() -> None:
    reference = dataclasses.replace(
        REFERENCE,
        loss_differences=(1e-7, 1e-3),
        gradient_differences={"w": 2e-3},
        weight_differences={"w": 1e-9},
    )
    off = measured(losses=(2.0, 1.009), first_gradients={"w": G * 1.019})
    verdict = compare(off, reference)
    assert verdict.verified
    worst = verdict.worst("gradient")
    assert worst is not None and worst.allowed == pytest.approx(0.02) and worst.float32_difference == 2e-3
    assert [row.allowed for row in verdict.losses] == pytest.approx([1e-4, 1e-2])
    assert not compare(measured(losses=(2.001, 1.0)), reference).verified
    assert not compare(measured(first_gradients={"w": G * 1.021}), reference).verified


def test_a_float32_run_that_is_not_finite_allows_nothing_more() -> None:
    reference = dataclasses.replace(
        REFERENCE, loss_differences=(1e-7, np.inf), gradient_differences={"w": 0.0}, weight_differences={"w": np.inf}
    )
    verdict = compare(measured(losses=(2.0, float("nan")), weights={"w": W * np.nan}), reference)
    assert not verdict.verified and verdict.outcome == "diverged"
    assert set(verdict.failures()) == {
        "loss of mini-batch 2 is off by inf, allowed 0.0001",
        "weight of w is off by inf, allowed 0.0001",
    }
    assert compare(measured(), reference).outcome == "verified"


def test_the_worst_tensor_is_the_one_nearest_to_its_limit() -> None:
    reference = Reference("r", (1.0,), {}, {"a": W, "b": W}, weight_differences={"a": 1e-2, "b": 0.0})
    verdict = compare(Measured((1.0,), {}, {"a": W * 1.02, "b": W * 1.00009}), reference)
    assert verdict.verified and verdict.worst_tensor == "b" and verdict.max_weight_error == pytest.approx(0.02)


def test_losses_are_relative_to_one_percent_of_the_first_at_least() -> None:
    assert loss_errors((1.0, 1e-6), (1.0, 0.0)) == pytest.approx((0.0, 1e-4))
    assert loss_errors((0.5,), (0.0,)) == (0.5,)
    assert loss_errors((float("nan"),), (float("nan"),)) == (0.0,)
    assert loss_errors((float("inf"),), (float("inf"),)) == (0.0,)


def test_nans_and_infinities_agree_with_their_like() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 2.0])
    assert relative_error(odd, odd) == 0.0
    assert relative_error(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == float("inf")
    assert relative_error(-odd, odd) == float("inf")


def test_zero_tensors_are_compared_absolutely_and_noise_beside_the_largest() -> None:
    assert relative_error(np.full(4, 0.5), np.zeros(4)) == 1.0
    errors = relative_errors({"big": G, "zero": np.array([1e-9])}, {"big": G, "zero": np.array([1e-18])})
    assert errors["zero"] == pytest.approx(1e-9 / np.linalg.norm(G))
    assert relative_error(np.zeros(0), np.zeros(0)) == 0.0


def test_a_missing_tensor_is_no_pass() -> None:
    with pytest.raises(UserError, match="the run has no weight for w"):
        compare(measured(weights={}), REFERENCE)
    with pytest.raises(UserError, match="different numbers of mini-batches"):
        compare(measured(losses=(2.0,)), REFERENCE)
    with pytest.raises(UserError, match="differ in size"):
        compare(measured(weights={"w": W[1:]}), REFERENCE)


def test_json_has_the_contract_and_reads_back_exactly() -> None:
    document = json.loads(json.dumps(compare(measured(losses=(2.0, 1.1)), REFERENCE).as_json()))
    wanted = {"reference", "reference_losses", "max_loss_error", "max_gradient_error", "max_weight_error"}
    assert wanted | {"worst_tensor", "verified"} <= set(document)
    assert document["verified"] is False and document["max_loss_error"] == abs(1.1 - 1.0)
    assert {row["kind"] for row in document["verification"]["tensors"]} == {"gradient", "weight"}


@pytest.mark.parametrize("samples", [4, 64])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_sketch_notices_a_change_anywhere(size: int, samples: int) -> None:
    tensor = np.random.default_rng(size).standard_normal(size)
    held = sketch(tensor, samples)
    assert sketch_error(tensor, held) == 0.0
    for index in (0, size // 2, size - 1):
        other = tensor.copy()
        other[index] += 0.01 * held.norm
        assert sketch_error(other, held) >= 0.0099


def test_a_sketch_estimates_the_relative_error() -> None:
    random = np.random.default_rng(0)
    tensor = random.standard_normal(5000)
    held = sketch(tensor, 16)
    estimates = []
    for _ in range(40):
        noise = random.standard_normal(5000)
        estimates.append(sketch_error(tensor + 1e-3 * np.linalg.norm(tensor) * noise / np.linalg.norm(noise), held))
    assert 0.5e-3 < np.median(estimates) < 2e-3 and max(estimates) < 4e-3


def test_recipes_that_train_equally_are_equal() -> None:
    assert ReferenceRecipe().as_dict() == ReferenceRecipe(optimizer=SGD(lr=0.01)).as_dict()
    assert (
        ReferenceRecipe(optimizer=Momentum()).as_dict() != ReferenceRecipe(optimizer=Momentum(momentum=0.1)).as_dict()
    )
    for wrong in (
        {"loss": "hinge"},
        {"accum_mode": "max"},
        {"batchnorm": "fold"},
        {"accumulate": 0},
    ):
        with pytest.raises(UserError):
            ReferenceRecipe(**wrong)  # type: ignore[arg-type]
