"""Commands as processes: signals, a read-only working directory, many at once, a missing compiler, a closed pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import finish, start, wait_for

ENDLESS = ("train", "simplemlp", "--steps", 50_000, "--no-verify")


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is below `folder`: a compiler or a program that tilegrad started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str((entry / "cwd").readlink()).startswith(str(folder)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_whole_group", [True, False], ids=["terminal", "kill"])
def test_130_an_interrupt_leaves_no_process_and_no_folder(
    tmp_path: Path, number: signal.Signals, to_whole_group: bool
) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "work" / "out"
    scratch.mkdir()
    process = start(*ENDLESS, "-o", out, "--json", "-", environment={"TMPDIR": str(scratch)})
    wait_for(process, lambda: list(scratch.glob("tilegrad-*/harness")) and processes_in(scratch))
    (os.killpg if to_whole_group else os.kill)(process.pid, number)
    answer = finish(process)
    assert answer.status == 130
    assert answer.err == "interrupted: nothing was written\n"
    assert answer.json["error"]["kind"] == "Interrupted" and answer.json["error"]["status"] == 130
    assert processes_in(tmp_path) == []
    assert list(scratch.iterdir()) == [] and not out.parent.exists()


def test_130_an_interrupt_while_modules_load_is_orderly() -> None:
    process = start("train", "simplemlp")
    wait_for(process, lambda: "numpy" in Path(f"/proc/{process.pid}/maps").read_text())
    os.kill(process.pid, signal.SIGINT)
    answer = finish(process)
    assert answer.status == 130 and "Traceback" not in answer.err


def test_failures_are_reported_without_numpy() -> None:
    """An interrupt may come while NumPy loads, which cannot be loaded twice in a process."""
    command = "import sys, tilegrad.launch, tilegrad.report.failure; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_3_no_c_compiler(tmp_path: Path) -> None:
    answer = finish(start("train", "simplemlp", "--json", "-", environment={"PATH": str(tmp_path)}))
    assert answer.status == 3
    assert answer.json["error"]["kind"] == "DeviceError"
    assert answer.err == (
        "error: device 'sim:siracusa' cannot be used here: no C compiler (Debian: apt-get install gcc)\n"
        "  hint: run `tilegrad doctor`\n"
    )


def test_3_cc_names_no_program() -> None:
    answer = finish(start("train", "simplemlp", environment={"CC": "nosuchcc"}))
    assert answer.status == 3
    assert answer.err == (
        "error: device 'sim:siracusa' cannot be used here: CC is 'nosuchcc', which is no program on PATH\n"
        "  hint: run `tilegrad doctor`\n"
    )


@pytest.mark.slow
def test_3_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "brokencc"
    broken.write_text("#!/bin/sh\necho 'out of cheese' >&2\nexit 4\n")
    broken.chmod(0o755)
    answer = finish(start("train", "simplemlp", "--no-cache", environment={"CC": str(broken)}))
    assert answer.status == 3
    assert answer.err.startswith("error: the C compiler failed with status 4\n") and "out of cheese" in answer.err


def test_a_read_only_working_directory_is_enough() -> None:
    answer = finish(start("train", "simplemlp", "--no-verify", cwd=Path("/proc")))
    assert answer.status == 0, answer.err


@pytest.mark.slow
def test_no_place_for_a_cache_is_no_obstacle() -> None:
    answer = finish(start("train", "simplemlp", "--no-verify", environment={"TILEGRAD_CACHE": "/proc/nowhere"}))
    assert answer.status == 0, answer.err


@pytest.mark.slow
def test_concurrent_runs_do_not_disturb_each_other(tmp_path: Path) -> None:
    """An empty cache shared by all, so that they write the same objects at the same time."""
    environment = {"TILEGRAD_CACHE": str(tmp_path / "cache")}
    running = [
        start("train", "simplemlp", "--no-verify", "-o", tmp_path / f"out{i}", "--json", "-", environment=environment)
        for i in range(3)
    ]
    answers = [finish(process) for process in running]
    assert [answer.status for answer in answers] == [0, 0, 0]
    assert len({answer.json["weights_sha256"] for answer in answers}) == 1


@pytest.mark.slow
def test_concurrent_runs_into_one_folder_leave_one_whole_project(tmp_path: Path) -> None:
    running = [start("compile", "simplemlp", "-o", tmp_path / "out") for _ in range(3)]
    statuses = sorted(finish(process).status for process in running)
    assert statuses[0] == 0 and set(statuses) <= {0, 2}
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {"model.c", "model.h", "weights.bin"} <= files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_reader_that_leaves_early_changes_nothing() -> None:
    command = f"{sys.executable} -m tilegrad ops | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_progress_and_colours_stay_out_of_pipes() -> None:
    answer = finish(start("train", "simplemlp", "--no-verify"))
    assert "\x1b" not in answer.out and answer.err == ""
    assert json.loads(finish(start("zoo", "--json", "-")).out)["models"]
