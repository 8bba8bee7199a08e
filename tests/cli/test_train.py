"""`tilegrad train`: the contract of PRODUCT.md, and what people see."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import NO_TORCH
from tests.support.command_line import CommandLine
from tilegrad.optimizers import OPTIMIZERS

REQUIRED = (
    "model device target steps accum batch losses reference reference_losses max_loss_error max_gradient_error "
    "max_weight_error worst_tensor verified weights_sha256 cycles memory params trainable_params macs_per_step "
    "macs_per_cycle timings files"
).split()


def test_json_has_every_key_of_the_contract(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--device", "host", "--steps", 3, "--accum", 2, "--batch", 2, "--json", "-")
    run = answer.json
    assert answer.status == 0
    assert [key for key in REQUIRED if key not in run] == []
    assert (run["model"], run["device"], run["target"]) == ("simplemlp", "host", "host")
    assert (run["steps"], run["accum"], run["batch"]) == (3, 2, 2)
    assert len(run["losses"]) == 6
    assert len(run["reference_losses"]) == (2 if NO_TORCH else 6)  # differences cover the first update only
    assert run["verified"] is True
    assert run["max_loss_error"] <= 1e-4 and run["max_gradient_error"] <= 1e-4 and run["max_weight_error"] <= 1e-4
    assert run["worst_tensor"] in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    assert run["cycles"] == {"step": None, "update": None, "infer": None} and run["macs_per_cycle"] is None
    assert (run["params"], run["trainable_params"], run["macs_per_step"]) == (610, 610, 2 * 1264)
    assert set(run["timings"]) >= {"import", "plan", "codegen", "build", "run"}
    assert {"model.c", "model.h", "weights.bin", "manifest.json"} <= set(run["files"])
    assert set(run["memory"]) == {"RAM"}
    memory = run["memory"]["RAM"]
    assert memory["capacity"] is None and memory["lower_bound"] <= memory["used"] <= 1.02 * memory["lower_bound"]


def test_losses_read_back_exactly(tilegrad: CommandLine) -> None:
    losses = tilegrad("train", "simplemlp", "--no-verify", "--json", "-").json["losses"]
    assert [float(np.float32(loss)) for loss in losses] == losses


def test_without_verification_the_verdict_is_null(tilegrad: CommandLine) -> None:
    run = tilegrad("train", "simplemlp", "--no-verify", "--json", "-").json
    assert run["verified"] is None and run["reference"] is None and run["reference_losses"] is None


def test_weights_and_gradients_are_saved_by_initializer_name(tilegrad: CommandLine, tmp_path: Path) -> None:
    weights, gradients = tmp_path / "w.npz", tmp_path / "g.npz"
    run = tilegrad(
        "train", "simplemlp", "--no-verify", "--save-weights", weights, "--save-gradients", gradients, "--json", "-"
    ).json
    digest = hashlib.sha256()
    with np.load(weights) as saved, np.load(gradients) as first:
        assert saved.files == first.files == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
        for name in saved.files:
            assert saved[name].shape == first[name].shape and np.abs(first[name]).max() > 0
            digest.update(saved[name].astype("<f4").tobytes())
    assert digest.hexdigest() == run["weights_sha256"]


def test_people_see_losses_references_memory_time_and_where_the_c_is(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad("train", "simplemlp", "-o", tmp_path / "out")
    assert answer.status == 0 and answer.err == ""
    for words in (
        "simplemlp on sim:siracusa",
        "610 of 610 parameters train, 1,264 MACs per mini-batch",
        "reference",
        "verified against ",
        "PyTorch's own float32",
        "lower bound",
        "arena",
        "time: ",
        f"in {tmp_path / 'out'} (start with {tmp_path / 'out' / 'README.md'})",
    ):
        assert words in answer.out


def test_many_losses_are_shown_by_their_ends(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--steps", 30, "--no-verify")
    shown = [line.split()[0] for line in answer.out.splitlines() if line[:10].strip().isdecimal() or "…" in line]
    assert shown == ["1", "2", "3", "4", "5", "…", "26", "27", "28", "29", "30"]


def test_two_runs_into_different_folders_give_the_same_bytes(tilegrad: CommandLine, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    for name in ("a", "b"):
        assert tilegrad("train", "simplemlp", "-o", tmp_path / name).status == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    run = json.loads((tmp_path / "a" / "run.json").read_text())
    assert run["verified"] is True and "timings" not in run


def test_a_second_run_replaces_the_folder(tilegrad: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    assert tilegrad("train", "simplemlp", "--no-verify", "-o", folder).status == 0
    (folder / "mine.c").write_text("mine")
    assert tilegrad("train", "simplemlp", "--no-verify", "-o", folder).status == 0
    assert (folder / "mine.c").read_text() == "mine"
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_json_to_a_file_leaves_the_tables_on_stdout(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad("train", "simplemlp", "--no-verify", "--json", tmp_path / "run.json")
    assert "simplemlp on sim:siracusa" in answer.out
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "simplemlp"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_data_is_taken_in_order_and_wraps_round(tilegrad: CommandLine, linear_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.eye(3, 8, dtype=np.float32), y=np.array([0, 3, 1]))
    arguments = ("--data", tmp_path / "d.npz", "--lr", 0, "--steps", 5, "--no-verify", "--json", "-")
    losses = tilegrad("train", linear_file, *arguments).json["losses"]
    assert losses[3:] == losses[:2] and len(set(losses[:3])) == 3


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_is_verified(tilegrad: CommandLine, optimizer: str) -> None:
    run = tilegrad("train", "simplemlp", "--optimizer", optimizer, "--weight-decay", 0.1, "--json", "-").json
    assert run["verified"] is True and run["optimizer"] == optimizer


def test_a_stage_can_be_dumped_beside_json(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--no-verify", "--dump-after", "program", "--json", "-")
    assert answer.json["model"] == "simplemlp"
    assert "SoftmaxCrossEntropyLossGrad" in answer.err


def test_seed_changes_data_and_weights(tilegrad: CommandLine) -> None:
    digests = {
        tilegrad("train", "simplemlp", "--seed", seed, "--no-verify", "--json", "-").json["weights_sha256"]
        for seed in (0, 1, 0)
    }
    assert len(digests) == 2
