"""Four words for a run: verified, disagrees, diverged, inconclusive. Only the first is exit status 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tests.support.models import mlp, model, node, value
from tilegrad.commands.train import disagreement
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.tanh import Tanh
from tilegrad.optimizers import SGD
from tilegrad.report.training import outcome_text, verdict_table
from tilegrad.training import train as training
from tilegrad.verify import torch_reference
from tilegrad.verify.compare import JITTERS, Measured, Reference, compare
from tilegrad.verify.reference import ReferenceRecipe

W, G = np.linspace(1.0, 2.0, 50), np.linspace(-1.0, 1.0, 50)
NAN = float("nan")
RUN = Measured((2.0, 1.0), {"w": G}, {"w": W})


def off(amount: float) -> Measured:
    return dataclasses.replace(RUN, weights={"w": W * (1.0 + amount)})


class Jitters:
    """A reference's jittered runs, which count how often they were asked for."""

    def __init__(self, amount: float) -> None:
        self.amount, self.asked = amount, 0

    def __call__(self, number: int) -> Measured:
        assert number == self.asked
        self.asked += 1
        return off(self.amount)


def reference(**changes: Any) -> Reference:
    plain = Reference("r", RUN.losses, RUN.first_gradients, RUN.weights, weight_differences={"w": 1e-7})
    return dataclasses.replace(plain, **changes)


def test_a_difference_within_jittered_runs_is_inconclusive() -> None:
    verdict = compare(off(0.05), reference(jittered=Jitters(0.01)))
    assert verdict.outcome == "inconclusive" and not verdict.verified
    assert verdict.tensors[-1].jitter_difference == pytest.approx(0.01)
    assert verdict.as_json()["verdict"] == "inconclusive" and verdict.as_json()["verified"] is False
    error = disagreement(verdict)
    assert "neither verified nor wrong" in error.message and error.hint is not None
    assert str(outcome_text(verdict)) == "INCONCLUSIVE"
    assert "with weights one ulp off" in "\n".join(line.plain for line in verdict_table(verdict).lines(200))


def test_a_difference_beyond_them_disagrees() -> None:
    jitters = Jitters(0.004)
    verdict = compare(off(0.05), reference(jittered=jitters))
    assert verdict.outcome == "disagrees" and jitters.asked == JITTERS
    assert disagreement(verdict).message == "the run disagrees with r"


def test_a_verified_run_costs_no_jitter() -> None:
    jitters = Jitters(1.0)
    verdict = compare(off(1e-6), reference(jittered=jitters))
    assert verdict.outcome == "verified" and jitters.asked == 0
    assert "with weights one ulp off" not in "\n".join(line.plain for line in verdict_table(verdict).lines(200))


LOST = Measured((2.0, NAN), {"w": G}, {"w": W * NAN})


@pytest.mark.parametrize(
    ("run", "judge", "outcome"),
    [
        (LOST, reference(losses=(2.0, NAN), weights={"w": W * NAN}), "diverged"),
        (LOST, reference(loss_differences=(0.0, float("inf"))), "diverged"),
        (LOST, reference(), "disagrees"),
        (RUN, reference(losses=(2.0, NAN), weights={"w": W * NAN}), "disagrees"),
        (dataclasses.replace(LOST, first_gradients={"w": G * 1.1}), reference(losses=(2.0, NAN)), "disagrees"),
        (dataclasses.replace(LOST, losses=(2.1, NAN)), reference(losses=(2.0, NAN)), "disagrees"),
    ],
)
def test_what_has_diverged(run: Measured, judge: Reference, outcome: str) -> None:
    """Not finite here and in the reference too; what was wrong before that stays wrong."""
    judge = dataclasses.replace(judge, loss_differences=judge.loss_differences or (0.0, 0.0))
    assert compare(run, judge).outcome == outcome


def test_a_training_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp().SerializeToString())
    tilegrad = CommandLine(capsys)
    options = ("--device", "host", "--loss", "mse", "--lr", "1e20", "--steps", "5")
    answer = tilegrad("train", path, *options, "--json", "-")
    assert answer.status == 1
    assert answer.json["verdict"] == "diverged" and answer.json["verified"] is False
    assert answer.json["error"]["message"].startswith("the run diverged")
    answer = tilegrad("train", path, *options)
    assert answer.status == 1 and "DIVERGED against" in answer.out and "a smaller --lr" in answer.err
    answer = tilegrad("train", path, *options, "--no-verify", "--json", "-")
    assert answer.status == 0 and answer.json["verdict"] is None


def test_a_wrong_gradient_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """On purpose: the gradient of Tanh loses a tenth of a percent."""
    right = Tanh.gradient

    def wrong(
        self: Tanh, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("Mul", [right(self, node, upstream, wanted, build)[0], build.constant(0.999)])

    monkeypatch.setattr(Tanh, "gradient", wrong)
    proto = model(
        [node("MatMul", "x w", "h", "fc"), node("Tanh", "h", "r", "tanh"), node("MatMul", "r v", "y", "head")],
        [value("x", ["n", 8])],
        [value("y", ["n", 4])],
        {"w": 0.3 * np.cos(np.arange(64, dtype=np.float32)).reshape(8, 8), "v": np.eye(8, 4, dtype=np.float32)},
    )
    with tg.open_device("host") as device:
        run = training.train(tg.compile(proto), device, steps=3)
    assert run.verdict is not None and run.verdict.outcome == "disagrees" and run.verdict.worst_tensor == "w"
    assert any(row.jitter_difference is not None for row in run.verdict.tensors)


def on_the_kink() -> tuple[Any, list[tuple[np.ndarray, np.ndarray]]]:
    """Pre-activations that are 0 exactly: a weight one ulp larger opens the Relu, one ulp smaller does not."""
    proto = model(
        [node("Gemm", "x w b", "h", "fc", transB=1), node("Relu", "h", "r", "relu"), node("Gemm", "r v c", "y", "out")],
        [value("x", [1, 1])],
        [value("y", [1, 1])],
        {"w": np.ones((16, 1), np.float32), "b": -np.ones(16, np.float32)}
        | {"v": np.ones((16, 1), np.float32), "c": np.zeros(1, np.float32)},
    )
    return proto, [(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))]


def test_jittered_runs_of_pytorch_are_one_ulp_apart_and_repeatable() -> None:
    proto, batches = on_the_kink()
    recipe = ReferenceRecipe(loss="mse", optimizer=SGD(lr=0.0))
    runs = [torch_reference.run(proto, recipe, batches, ["w", "b"], "float32", jitter=n) for n in (0, 0, 1)]
    for name, start in (("w", np.float32(1.0)), ("b", np.float32(-1.0))):
        first, again, other = (run.weights[name] for run in runs)
        assert np.array_equal(first, again) and not np.array_equal(first, other)
        either_way = {float(np.nextafter(start, np.float32(to))) for to in (-np.inf, np.inf)}
        assert set(first.reshape(-1).tolist()) == either_way


def test_a_run_on_the_other_side_of_a_kink_is_inconclusive() -> None:
    """PyTorch's float32 run has the float64 run's very bits here; only jitter shows how little they mean."""
    proto, batches = on_the_kink()
    recipe = ReferenceRecipe(loss="mse")
    pair = torch_reference.run_pair(proto, recipe, batches, ["w", "b", "v"])
    assert max(pair.gradient_differences.values()) == 0.0
    other = torch_reference.run(proto, recipe, batches, ["w", "b", "v"], "float32", jitter=99)
    measured = Measured(other.losses, other.first_gradients, other.weights)
    assert compare(measured, dataclasses.replace(pair.as_reference(), jittered=None)).outcome == "disagrees"
    assert compare(measured, pair.as_reference()).outcome == "inconclusive"
