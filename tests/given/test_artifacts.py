"""Training graphs that others made, run as they are, against what their makers computed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.conftest import NO_TORCH
from tests.devices.siracusa import needs_compiler
from tests.given import two_graphs
from tests.support.command_line import CommandLine
from tilegrad.optimizers.adamw_ort import AdamWOrt
from tilegrad.training.train import Run

DATA = Path(__file__).parent / "data"
ARTIFACTS = sorted(path.name for path in (DATA / "ort-artifacts").iterdir())
FIXTURES = sorted(path.name for path in (DATA / "deeploy-fixtures").iterdir())
LIMIT = 1e-5


def rate_of(name: str) -> float:
    return 0.005 if "adamw" in name else 0.05


def train(folder: Path, device: str = "host", recipe: tg.Recipe | None = None, **options: Any) -> Run:
    with tg.open_device(device) as opened:
        target = opened.target_name
        compiled = tg.compile(str(folder), recipe, target, **options)
        return tg.train(compiled, opened, tolerance=LIMIT)


def check_artifacts(name: str, device: str) -> Run:
    run = train(DATA / "ort-artifacts" / name, device, tg.Recipe(optimizer=tg.SGD(lr=rate_of(name))))
    stored = np.load(DATA / "ort-artifacts" / name / "reference.npz")
    after = np.load(DATA / "ort-artifacts" / name / "params_after30.npz")
    np.testing.assert_allclose(run.losses, stored["losses"], rtol=LIMIT)
    assert set(after) == set(run.weights)
    for parameter, expected in after.items():
        assert np.linalg.norm(run.weights[parameter] - expected) <= LIMIT * np.linalg.norm(expected), parameter
    verdict = run.verdict
    assert verdict is not None and verdict.verified and "params_after30.npz" in verdict.reference
    evaluations = [row for row in verdict.tensors if row.kind == "evaluation"]
    assert len(evaluations) == 2 and all(row.error <= LIMIT for row in evaluations)
    return run


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifacts_on_the_host(name: str) -> None:
    run = check_artifacts(name, "host")
    assert run.compiled.program.recipe.batch == 8 and len(run.losses) == 30
    assert "a training graph with an optimizer graph" in run.compiled.model.notes[0]


@pytest.mark.parametrize(
    "name", ["mlp_adamw", *(pytest.param(n, marks=pytest.mark.slow) for n in ARTIFACTS if n != "mlp_adamw")]
)
def test_artifacts_on_the_simulator(name: str) -> None:
    host = check_artifacts(name, "host")
    assert check_artifacts(name, "sim:siracusa").weights_sha256 == host.weights_sha256


@needs_compiler
@pytest.mark.slow
def test_artifacts_in_an_image_of_the_chip() -> None:
    """Which stores the mini-batches that came with the graphs, and compares bits with the simulator's."""
    run = check_artifacts("mlp_adamw", "iss:siracusa")
    assert run.weights_sha256 == check_artifacts("mlp_adamw", "host").weights_sha256 and (run.cycles["step"] or 0) > 0


@pytest.mark.parametrize("name", ARTIFACTS)
def test_the_forward_graph_through_our_own_differentiation(name: str) -> None:
    """The losses of the training graph, from the forward graph alone."""
    folder = DATA / "ort-artifacts" / name
    stored = np.load(folder / "reference.npz")
    optimizer = AdamWOrt(lr=0.005) if "adamw" in name else tg.SGD(lr=0.05)
    policy = "train" if "dscnn" in name else "frozen"
    compiled = tg.compile(
        str(folder / "forward.onnx"),
        tg.Recipe(optimizer=optimizer, batch=8, batchnorm=policy),  # type: ignore[arg-type]
    )
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=30, data=folder / "reference.npz", verify=not NO_TORCH)
    np.testing.assert_allclose(run.losses, stored["losses"], rtol=LIMIT)


def check_fixture(name: str, device: str, **options: Any) -> Run:
    run = train(DATA / "deeploy-fixtures" / name, device, **options)
    stored = np.load(DATA / "deeploy-fixtures" / name / "outputs.npz")
    assert {f"{parameter}_updated" for parameter in run.weights} == set(stored)
    for parameter, value in run.weights.items():
        expected = stored[f"{parameter}_updated"]
        assert np.linalg.norm(value - expected) <= LIMIT * np.linalg.norm(expected), parameter
        np.testing.assert_allclose(value, expected, rtol=0.0, atol=LIMIT)
    assert run.verdict is not None and run.verdict.verified and "outputs.npz" in run.verdict.reference
    assert run.steps == 1 and run.compiled.program.recipe.optimizer.lr == pytest.approx(0.01)
    return run


@pytest.mark.parametrize("name", FIXTURES)
def test_a_graph_with_its_optimizer_inside(name: str) -> None:
    check_fixture(name, "host")


@pytest.mark.matrix
@pytest.mark.parametrize("name", FIXTURES)
def test_it_is_the_same_everywhere(name: str) -> None:
    bits = {check_fixture(name, "host").weights_sha256, check_fixture(name, "qemu:riscv32").weights_sha256}
    for options in ({"tiling": False}, {"buffering": "single"}, {"buffering": "double"}):
        bits.add(check_fixture(name, "sim:siracusa", **options).weights_sha256)
    assert len(bits) == 1


def test_a_graph_whose_gelu_lost_its_bias_is_told() -> None:
    model = tg.load(str(DATA / "deeploy-fixtures" / "CCT2_FT1"))
    assert any("GeluGrad" in note and "add_bias" in note for note in model.notes)


@pytest.mark.skipif(NO_TORCH, reason="PyTorch computes what is expected")
@pytest.mark.parametrize("device", ["host", pytest.param("sim:siracusa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("split", [False, True])
def test_two_graphs(tmp_path: Path, device: str, split: bool) -> None:
    folder = two_graphs.write(tmp_path, split=split)
    run = train(folder, device)
    recipe = run.compiled.program.recipe
    assert (run.steps, recipe.accumulate, recipe.batch) == (4, 2, two_graphs.BATCH)
    assert recipe.optimizer.lr == pytest.approx(two_graphs.RATE)
    stored = np.load(folder / "outputs.npz")
    np.testing.assert_allclose(run.losses, stored["loss"], rtol=LIMIT)
    for name, value in run.weights.items():
        np.testing.assert_allclose(value, stored[name], rtol=LIMIT, atol=1e-6)
    assert run.verdict is not None and run.verdict.verified
    assert any("'meta_mood'" in note for note in run.compiled.model.notes)


@pytest.mark.skipif(NO_TORCH, reason="PyTorch computes what is expected")
def test_steps_and_accumulation_can_be_given(tmp_path: Path) -> None:
    folder = two_graphs.write(tmp_path)
    weights, batches = two_graphs.weights_and_batches(3)
    compiled = tg.compile(str(folder), tg.Recipe(accumulate=3))
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=2)
    expected = two_graphs.trained(weights, batches, 6, 3)
    np.testing.assert_allclose(run.losses, expected["loss"], rtol=LIMIT)
    np.testing.assert_allclose(run.weights["fc1_weight"], expected["fc1_weight"], rtol=LIMIT, atol=1e-6)


@pytest.mark.skipif(NO_TORCH, reason="PyTorch computes what is expected")
def test_one_that_is_given_is_not_one_that_is_not(tmp_path: Path, tilegrad: CommandLine) -> None:
    """`--accum 1` and `--batch 1` are what they say; without them the graphs tell."""
    folder = two_graphs.write(tmp_path)
    weights, batches = two_graphs.weights_and_batches(3)
    for command in (("--accum", 1), ()):
        run = tilegrad("train", folder, *command, "--device", "host", "--steps", 2, "--json", "-").json
        accumulate = 1 if command else 2
        assert run["accum"] == accumulate and len(run["losses"]) == 2 * accumulate
        expected = two_graphs.trained(weights, batches, 2 * accumulate, accumulate)
        np.testing.assert_allclose(run["losses"], expected["loss"], rtol=LIMIT)
    assert tg.compile(str(folder), tg.Recipe(accumulate=1)).program.recipe.accumulate == 1
    fixed = DATA / "ort-artifacts" / "mlp_static8_sgd"
    refused = tilegrad("train", fixed, "--batch", 1, "--device", "host")
    assert refused.status == 2 and "--batch 8" in refused.err and "got: 1" in refused.err
    assert tg.Recipe() == tg.Recipe(batch=1, accumulate=1, optimizer=tg.SGD(lr=0.01))


def test_a_rate_that_is_given_is_not_the_default(tmp_path: Path) -> None:
    """`SGD` nodes have a rate of their own, unless another is given, were it the default of other models."""
    model = onnx.load(DATA / "deeploy-fixtures" / "CCT2_LP" / "network.onnx")
    for node in model.graph.node:
        if node.op_type == "SGD":
            next(attribute for attribute in node.attribute if attribute.name == "lr").f = 0.5
    for rate, recipe in ((0.5, tg.Recipe()), (0.01, tg.Recipe(optimizer=tg.SGD(lr=0.01)))):
        assert tg.compile(model, recipe).program.recipe.optimizer.lr == pytest.approx(rate)


def test_the_graphs_alone(tmp_path: Path) -> None:
    """Without a checkpoint and without an optimizer graph: weights from the seed, the recipe's optimizer."""
    source = DATA / "ort-artifacts" / "mlp_sgd"
    shutil.copy(source / "training_model.onnx", tmp_path / "training_model.onnx")
    compiled = tg.compile(str(tmp_path / "training_model.onnx"), tg.Recipe(batch=5, optimizer=tg.SGD(lr=0.02)))
    assert any("drawn from the seed" in note for note in compiled.model.notes)
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=3)
    assert run.verdict is not None and run.verdict.verified and compiled.program.recipe.batch == 5
    proto = tg.compile(onnx.load(source / "training_model.onnx"), tg.Recipe(batch=5))
    assert proto.program.trainable == compiled.program.trainable


def test_the_command_line(tilegrad: CommandLine) -> None:
    folder = DATA / "ort-artifacts" / "mlp_sgd"
    run = tilegrad("train", folder, "--device", "host", "--lr", 0.05, "--tolerance", LIMIT, "--json", "-").json
    assert run["verified"] is True and run["steps"] == 30 and run["max_loss_error"] < LIMIT
    said = tilegrad("train", folder / "training_model.onnx", "--device", "host", "--lr", 0.05, "--steps", 2).out
    assert "a training graph with an optimizer graph" in said.replace("\n", " ")
