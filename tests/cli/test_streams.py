"""Streams that are full, closed, or lack letters; compilers that do nothing or hang; what an interrupt tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.support.command_line import CommandLine, finish, start, wait_for
from tests.support.often import first_always
from tests.support.small_models import linear, saved
from tilegrad.build import written
from tilegrad.commands import train as train_command
from tilegrad.report import failure
from tilegrad.report.output import Output

FULL = "cannot write to stdout: No space left on device"


def run(*arguments: object, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Through a shell, for its redirections."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {shell}', "bash", sys.executable, "-m", "tilegrad", *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=240,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "line",
    [
        ["ops"],
        ["ops", "--json", "-"],
        ["--help"],
        ["train", "--help"],
        ["compile", "simplemlp", "--dump-after", "plan"],
    ],
)
def test_2_a_full_stdout(line: list[str]) -> None:
    done = run(*line, shell="> /dev/full")
    assert done.returncode == 2 and "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_status_of_a_failure_survives_full_streams() -> None:
    assert run("zoo", "nothing", shell="> /dev/full 2>&1").returncode == 2
    assert run("ops", shell="> /dev/full 2>&1").returncode == 2


def test_a_closed_stdout_is_no_obstacle() -> None:
    done = run("ops", shell=">&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert run("zoo", "nothing", shell=">&- 2>&-").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("encoding", first_always(["ascii", "latin-1", "cp437"], 1))
def test_an_encoding_without_our_letters(tmp_path: Path, encoding: str) -> None:
    """× and … are written in other letters, names as escapes, and JSON says the same as ever."""
    proto = linear()
    proto.graph.node[0].name = "слой×"
    path = saved(proto, tmp_path)
    environment = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "tilegrad", "inspect", str(path), "--parameters", "--device", "host"],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert ("8×4" if encoding == "latin-1" else "8x4") in text and "\\u0441" in text
    for line in (["inspect", str(path)], ["zoo"], ["train", "--help"], ["zoo", "nothing"]):
        assert run(*line, **environment).returncode == (2 if "nothing" in line else 0)
    line = ("inspect", path, "--device", "host", "--json", "-")
    there, here = (json.loads(run(*line, **settings).stdout) for settings in (environment, {}))
    assert there["parameters"] == here["parameters"] and "слой×" in here["parameters"][0]["reason"]


# ---- compilers


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "infer", "gradcheck"])
def test_3_a_compiler_that_writes_nothing(tmp_path: Path, command: str) -> None:
    silent = script(tmp_path / "silentcc", "exit 0\n")
    answer = finish(start(command, "simplemlp", "--device", "host", "--no-cache", environment={"CC": silent}))
    assert answer.status == 3 and "did not write '" in answer.err and "Traceback" not in answer.err


HANGING = {
    "at once": "sleep 1000\n",
    "when it compiles": 'case "$*" in *-S*|*-c*) sleep 1000;; *) exec cc "$@";; esac\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("text", HANGING.values(), ids=HANGING)
def test_3_a_compiler_that_hangs(tmp_path: Path, text: str) -> None:
    hanging = script(tmp_path / "hangingcc", text)
    environment = {"CC": hanging, "TILEGRAD_TOOL_SECONDS": "2", "TMPDIR": str(tmp_path)}
    answer = finish(start("train", "simplemlp", "--device", "host", "--no-cache", environment=environment))
    assert answer.status == 3 and "'hangingcc' did not finish in 2 s" in answer.err


def test_2_a_time_limit_that_is_none(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_TOOL_SECONDS", "soon")
    answer = tilegrad("train", "simplemlp", "--device", "host", "--no-cache")
    assert answer.status == 2 and "TILEGRAD_TOOL_SECONDS is no number of seconds" in answer.err


# ---- interrupts


def test_130_what_had_been_written_is_said(
    tilegrad: CommandLine, tmp_path: Path, linear_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while the tables are printed: all files are there, and stay what they are."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "show", interrupted)
    out, result, kept = tmp_path / "out", tmp_path / "run.json", tmp_path / "w.npz"
    line = (
        "train",
        linear_file,
        "--device",
        "host",
        "--no-verify",
        "--json",
        result,
        "--save-weights",
        kept,
        "-o",
        out,
    )
    answer = tilegrad(*line)
    assert answer.status == 130
    assert answer.err == f"interrupted: '{out}', '{kept}', '{result}' had been written\n"
    assert "losses" in json.loads(result.read_text()) and (out / "model.c").exists()


def test_130_between_two_files(
    tilegrad: CommandLine, tmp_path: Path, linear_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "npz_bytes", interrupted)
    out, result, kept = tmp_path / "out", tmp_path / "run.json", tmp_path / "w.npz"
    line = (
        "train",
        linear_file,
        "--device",
        "host",
        "--no-verify",
        "--json",
        result,
        "--save-weights",
        kept,
        "-o",
        out,
    )
    answer = tilegrad(*line)
    assert (answer.status, answer.err) == (130, f"interrupted: '{out}' had been written; '{result}' says so\n")
    error = json.loads(result.read_text())["error"]
    assert error["kind"] == "Interrupted" and error["hint"] == f"written before that: '{out}'"
    assert not kept.exists()


def test_130_before_anything_is_written(tmp_path: Path) -> None:
    result = tmp_path / "run.json"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = ("train", "simplemlp", "--steps", 50_000, "--no-verify", "--device", "host", "--json", result)
    process = start(*line, environment={"TMPDIR": str(scratch)})
    wait_for(process, lambda: list(scratch.glob("tilegrad-*/harness")))
    os.kill(process.pid, signal.SIGINT)
    answer = finish(process)
    assert answer.status == 130
    assert answer.err == f"interrupted: nothing was written but '{result}', which says so\n"
    assert json.loads(result.read_text())["error"]["status"] == 130


def test_a_new_command_has_written_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.add(tmp_path)
    written.begin()
    assert failure.report_interrupt([]) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"


# ---- zoo -o


def test_a_model_of_the_zoo_replaces_its_like(tilegrad: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for seed in (0, 1):
        assert tilegrad("zoo", "simplemlp", "-o", path, "--seed", seed).status == 0
    path.write_text("my thesis")
    for extra in ((), ("--force",)):
        answer = tilegrad("zoo", "simplemlp", "-o", path, *extra)
        assert answer.status == 2 and "is not an ONNX model" in answer.err and path.read_text() == "my thesis"
    onnx.save(linear(), str(path))
    assert tilegrad("zoo", "simplemlp", "-o", path).status == 2
    assert tilegrad("zoo", "simplemlp", "-o", path, "--force").status == 0
