"""Every command but `train`: happy paths, JSON, and the help that teaches them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import pytest

from tests.support.command_line import CommandLine
from tests.support.small_models import model, node, saved
from tilegrad.pipeline import STAGES

COMMANDS = ["train", "run", "infer", "compile", "inspect", "gradcheck", "zoo", "ops", "targets", "devices", "doctor"]


def test_the_name_alone_explains_itself(tilegrad: CommandLine) -> None:
    alone, asked = tilegrad(), tilegrad("--help")
    assert alone.status == asked.status == 0
    for command in COMMANDS:
        assert f" {command} " in asked.out and f" {command} " in alone.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_flag_names_no_type(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        assert "<bool>" not in tilegrad(command, "--help").out + tilegrad("--help").out


def test_help_tells_both_limits_of_an_error(tilegrad: CommandLine) -> None:
    words = " ".join(tilegrad("train", "--help").out.replace("│", " ").split())
    assert "or ten times PyTorch's own float32 error where that is more" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(tilegrad: CommandLine, command: str) -> None:
    answer = tilegrad(command, "--help")
    assert answer.status == 0
    assert f"tilegrad {command}" in answer.out.split("Examples:")[1]


@pytest.mark.parametrize("word", ["tune"])
def test_later_commands_are_absent(tilegrad: CommandLine, word: str) -> None:
    answer = tilegrad(word, "mlp")
    assert answer.status == 2 and answer.err.startswith(f"error: No such command '{word}'.")


def test_version(tilegrad: CommandLine) -> None:
    assert tilegrad("--version").out == "tilegrad 0.1.0\n"


def test_infer_is_verified(tilegrad: CommandLine) -> None:
    result = tilegrad("infer", "mlp", "--batch", 2, "--json", "-").json
    assert result["verified"] is True and result["max_output_error"] < 1e-5
    assert result["shape"] == [2, 10] and len(result["values"][1]) == 10
    assert result["macs"] == 2 * 118_016


def test_infer_needs_nothing_to_train(tilegrad: CommandLine, tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"], "act")], ["N", 8], ["N", 8]), tmp_path)
    assert tilegrad("infer", path, "--json", "-").json["verified"] is True


def test_infer_takes_far_less_memory_than_training(tilegrad: CommandLine) -> None:
    used = [
        tilegrad(*line, "--device", "host", "--json", "-").json["memory"]["RAM"]["used"]
        for line in (("infer", "mlp"), ("inspect", "mlp"))
    ]
    assert used[0] < 0.6 * used[1]


def test_compile_writes_a_project_that_builds(tilegrad: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    answer = tilegrad("compile", "simplemlp", "-o", folder, "--weights-c", "--json", "-")
    assert answer.status == 0
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == answer.json["files"]
    assert "weights.c" in answer.json["files"] and "run.json" not in answer.json["files"]
    assert subprocess.run(["make", "-C", str(folder)], capture_output=True, check=False).returncode == 0


def test_compile_for_a_microcontroller(tilegrad: CommandLine, tmp_path: Path) -> None:
    result = tilegrad("compile", "simplemlp", "--target", "mcu", "-o", tmp_path / "c", "--json", "-").json
    assert result["target"] == "mcu" and result["memory"]["RAM"]["capacity"] == 1024 * 1024


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_stable_text(tilegrad: CommandLine, stage: str) -> None:
    first, second = (tilegrad("compile", "simplemlp", "--dump-after", stage) for _ in range(2))
    assert first.status == 0 and first.out == second.out and "fc1" in first.out


def test_inspect_counts_operators_macs_parameters_and_bytes(tilegrad: CommandLine) -> None:
    facts = tilegrad("inspect", "mlp", "--device", "host", "--json", "-").json
    assert (facts["params"], facts["trainable_params"]) == (118_282, 118_282)
    assert facts["macs"] == {"infer": 118_016, "step": 253_696, "update": 0}
    products = [use for use in facts["operators"] if use["name"] in ("Gemm", "GemmRelu")]
    assert [use["count"]["infer"] for use in products] == [2, 1]  # two have a Relu behind them
    assert sum(use["macs"]["infer"] for use in products) == 118_016
    state = sum(facts["state_bytes"].values())
    assert facts["memory"]["RAM"]["used"] == state + facts["arena"]["used"]
    assert facts["fits"] is True and facts["advice"] == []
    text = tilegrad("inspect", "mlp", "--device", "host").out
    assert "Gemm" in text and "fits: RAM" in text and "lower bound" in text


def test_inspect_parameters_says_why(tilegrad: CommandLine) -> None:
    answer = tilegrad("inspect", "simplemlp", "--parameters", "--train", "last:1")
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[0] == ["initializer", "shape", "elements", "is", "a", "trains", "why"]
    assert {line[0]: line[4] for line in lines[1:]} == {
        "fc1.weight": "no",
        "fc1.bias": "no",
        "fc2.weight": "yes",
        "fc2.bias": "yes",
    }
    assert all("Gemm" in line for line in answer.out.splitlines()[1:])


def test_inspect_answers_no_with_the_budget_and_what_would_help(tilegrad: CommandLine) -> None:
    answer = tilegrad("inspect", "mlp", "--target", "mcu", "--optimizer", "adam", "--json", "-")
    assert answer.status == 2
    facts = answer.json
    assert facts["fits"] is False and facts["memory"]["RAM"]["used"] > facts["memory"]["RAM"]["capacity"] == 1024 * 1024
    assert facts["error"]["kind"] == "DoesNotFit"
    assert facts["advice"][0].startswith("--optimizer sgd (") and facts["advice"][1].startswith("--train ")


def test_inspect_describes_a_model_with_nothing_to_train(tilegrad: CommandLine, tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"], "act")], ["N", 8], ["N", 8]), tmp_path)
    answer = tilegrad("inspect", path)
    assert answer.status == 0 and "nothing to train" in answer.out


def test_gradcheck_names_every_gradient(tilegrad: CommandLine) -> None:
    answer = tilegrad("gradcheck", "simplemlp", "--batch", 2)
    assert answer.status == 0 and "4 gradients checked, 0 off" in answer.out
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        assert name in answer.out


def test_zoo_lists_nine_models_and_writes_one(tilegrad: CommandLine, tmp_path: Path) -> None:
    models = tilegrad("zoo", "--json", "-").json["models"]
    assert len(models) == 9 and models[1]["params"] == 118_282
    assert tilegrad("zoo", "simplemlp", "-o", tmp_path / "m.onnx").status == 0
    onnx.checker.check_model(onnx.load(str(tmp_path / "m.onnx")), full_check=True)
    written = tilegrad("train", tmp_path / "m.onnx", "--no-verify", "--json", "-").json
    named = tilegrad("train", "simplemlp", "--no-verify", "--json", "-").json
    assert written["losses"] == named["losses"] and written["weights_sha256"] == named["weights_sha256"]


def test_ops_targets_devices_doctor(tilegrad: CommandLine) -> None:
    operators = {fact["name"]: fact for fact in tilegrad("ops", "--json", "-").json["operators"]}
    assert operators["Gemm"]["differentiable"] and not operators["SGD"]["differentiable"]
    assert operators["Reshape"]["view"] and operators["Conv"]["file"] == "conv.c"
    assert {"host", "mcu"} <= {fact["name"] for fact in tilegrad("targets", "--json", "-").json["targets"]}
    devices = {fact["name"]: fact for fact in tilegrad("devices", "--json", "-").json["devices"]}
    assert devices["host"]["usable"] and devices["sim:siracusa"]["usable"]
    assert [name for name, fact in devices.items() if fact["default"]] == ["sim:siracusa"]
    tools = {fact["tool"]: fact for fact in tilegrad("doctor", "--json", "-").json["tools"]}
    assert tools["C compiler"]["found"] and tools["onnx"]["found"]
    for command in ("ops", "targets", "devices", "doctor", "zoo"):
        assert tilegrad(command).status == 0


def test_doctor_says_what_a_missing_tool_would_unlock(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    answer = tilegrad("doctor")
    assert answer.status == 0
    assert "missing" in answer.out and "apt-get install gcc" in answer.out and "apt-get install clang" in answer.out
