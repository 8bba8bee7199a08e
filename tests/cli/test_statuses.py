"""Every exit status but 130, and the shape of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tilegrad.devices.base import Session
from tilegrad.errors import InternalError
from tilegrad.report import failure
from tilegrad.training import train as training

ERROR_KEYS = {"kind", "status", "message", "stage", "node", "expected", "got", "hint"}


def test_1_the_run_disagrees_and_the_worst_tensor_is_named(
    tilegrad: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Session.gradients

    def wrong(session: Session) -> dict[str, Any]:
        gradients = honest(session)
        return {name: value * (1.01 if name == "fc2.bias" else 1.0) for name, value in gradients.items()}

    monkeypatch.setattr(Session, "gradients", wrong)
    answer = tilegrad("train", "simplemlp", "--json", "-", "-o", tmp_path / "out")
    assert answer.status == 1
    assert answer.json["verified"] is False and answer.json["worst_tensor"] == "fc2.bias"
    assert answer.json["error"]["kind"] == "VerificationError" and set(answer.json["error"]) == ERROR_KEYS
    assert answer.err.startswith("error: the run disagrees with ")
    assert "got: gradient of fc2.bias is off by 0.01, allowed 0.0001" in answer.err
    assert "DISAGREES" in tilegrad("train", "simplemlp").out


def test_1_gradcheck_names_the_tensor_that_is_off(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Session.gradients

    def wrong(session: Session) -> dict[str, Any]:
        gradients = honest(session)
        if "fc1.weight" in gradients:
            gradients["fc1.weight"][3, 5] += 0.5
        return gradients

    monkeypatch.setattr(Session, "gradients", wrong)
    answer = tilegrad("gradcheck", "simplemlp", "--json", "-")
    assert answer.status == 1
    assert answer.json["worst_tensor"] == "fc1.weight" and answer.json["verified"] is False
    assert "gradient of fc1.weight is off by" in answer.err


def test_1_a_run_that_leaves_the_numbers_is_not_verified(tilegrad: CommandLine) -> None:
    """Though PyTorch's own float32 run does so too, and the margin for its rounding is then without a bound."""
    answer = tilegrad("train", "simplemlp", "--device", "host", "--lr", "1e30", "--json", "-")
    assert answer.json["losses"][1:] == ["NaN"] * 3
    assert answer.status == 1 and answer.json["verified"] is False
    assert answer.json["verdict"] == "diverged"
    assert "error: the run diverged" in answer.err and "hint: a smaller --lr\n" in answer.err


def test_1_inference_disagrees(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Session.infer
    monkeypatch.setattr(Session, "infer", lambda session, x: honest(session, x) + 1.0)
    answer = tilegrad("infer", "simplemlp")
    assert answer.status == 1 and "error: the output disagrees with " in answer.err


def test_a_loss_that_is_not_finite_is_still_json(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "step", lambda session, x, y: float("nan"))
    answer = tilegrad("train", "simplemlp", "--no-verify", "--json", "-")
    assert answer.json["losses"] == ["NaN"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing argument 'MODEL'."),
        (["train", "mlp", "--xyzzy"], "No such option: --xyzzy"),
        (["trian", "mlp"], "No such command 'trian'. Did you mean 'train'?"),
        (["train", "mlp", "--steps", "0"], "the number of steps cannot be used"),
        (["train", "mlp", "--batch", "0"], "the batch size cannot be used"),
        (["train", "mlp", "--accum", "-1"], "the number of mini-batches to accumulate cannot be used"),
        (["train", "mlp", "--steps", str(10**20)], "the number of steps cannot be used"),
        (["train", "mlp", "--batch", str(10**20)], "the batch size cannot be used"),
        (["train", "mlp", "--accum", str(10**20)], "the number of mini-batches to accumulate cannot be used"),
        (["compile", "mlp", "-o", "x", "--steps", "0"], "the number of steps cannot be used"),
        (["train", "mlp", "--lr", "nan"], "the learning rate cannot be used"),
        (["train", "mlp", "--loss", "hinge"], "the loss cannot be used"),
        (["train", "mlp", "--optimizer", "lion"], "the optimizer cannot be used"),
        (["train", "mlp", "--momentum", "0.5"], "--momentum does not apply to the optimizer sgd"),
        (["train", "mlp", "--weight-decay", "-1"], "--weight-decay cannot be used"),
        (["train", "mlp", "--accum-mode", "max"], "the accumulation mode cannot be used"),
        (["train", "mlp", "--batchnorm", "off"], "the BatchNorm policy cannot be used"),
        (["train", "mlp", "--tolerance", "0"], "the tolerance cannot be used"),
        (["train", "mlp", "--seed", "-1"], "the seed cannot be used"),
        (["train", "mlp", "--train", "some"], "cannot select what trains with 'some'"),
        (["train", "mlp", "--train", "last:x"], "last:K takes a number of layers"),
        (["train", "mlp", "--device", "hots"], "there is no device 'hots'"),
        (["train", "mlp", "--dump-after", "magic"], "there is no stage 'magic' to dump after"),
        (["train", "mpl"], "no model 'mpl'"),
        (["compile", "mlp"], "there is nowhere to write the C project"),
        (["compile", "mlp", "-o", "x", "--target", "z80"], "there is no target 'z80'"),
        (["zoo", "mpl"], "no model 'mpl' in the zoo"),
        (["zoo", "-o", "x.onnx"], "-o needs the name of one model"),
    ],
)
def test_2_wrong_input_is_one_message_and_one_document(
    tilegrad: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = tilegrad(*arguments, "--json", "-")
    assert answer.status == 2
    assert set(answer.json) == {"error"} and set(answer.json["error"]) == ERROR_KEYS
    assert answer.json["error"]["status"] == 2 and answer.json["error"]["message"] == message
    assert answer.err.startswith(f"error: {message}") and "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_usage_error_points_to_the_commands_own_help(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "mlp", "--steps", "many")
    assert answer.status == 2 and answer.out == ""
    assert answer.err.startswith("error: Invalid value for '--steps': ")
    assert answer.err.endswith("hint: `tilegrad train --help` explains\n")


def test_a_failure_is_written_to_a_json_file_too(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad("train", "nothing", "--json", tmp_path / "run.json")
    assert answer.status == 2 and "\"no model 'nothing'\"" in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize("error", [RuntimeError("the sky fell"), InternalError("the sky fell")])
def test_70_a_bug_says_where_its_traceback_is(
    tilegrad: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(training, "make_feed", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = tilegrad("train", "simplemlp", "--json", "-")
    assert answer.status == 70 and answer.json["error"]["status"] == 70
    assert answer.err.startswith(f"bug in tilegrad: {type(error).__name__}: the sky fell\n")
    (kept,) = tmp_path.iterdir()
    assert str(kept) in answer.err and "Traceback" not in answer.err and "Traceback" in kept.read_text()
    monkeypatch.setenv("TILEGRAD_DEBUG", "1")
    assert "Traceback" in tilegrad("train", "simplemlp").err


def test_2_a_full_disk_is_no_bug(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "/somewhere/big")

    monkeypatch.setattr(training, "make_feed", full)
    answer = tilegrad("train", "simplemlp")
    assert (answer.status, answer.err) == (2, "error: cannot use '/somewhere/big': No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "destination"),
    [
        (["train", "--json", "-"], "-"),
        (["train", "--json=out.json"], "out.json"),
        (["train", "--json"], None),
        (["train", "--json", "--device", "host"], None),
        (["train", "--", "--json", "-"], None),
        ([], None),
    ],
)
def test_where_a_failure_is_written_is_read_without_the_parser(arguments: list[str], destination: str | None) -> None:
    assert failure.json_destination(arguments) == destination
