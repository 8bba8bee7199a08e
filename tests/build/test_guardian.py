"""A process that is killed cannot clean up: its guardian does, and goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilegrad.build.guardian import end_tools_of, follow, remove_folder
from tilegrad.build.workspace import FAILURE_FILE, LOCK_FILE, Workspace, sweep

PROGRAM = """
import subprocess, sys, time
from tilegrad.build import watch
from tilegrad.build.tools import Tools
from tilegrad.build.workspace import Workspace
from pathlib import Path
import threading
workspace = Workspace()
(workspace.path / "object.o").write_bytes(b"1")
threading.Thread(target=Tools().run, args=(["sh", "-c", "sleep 97 & sleep 97"], workspace.path), daemon=True).start()
while not watch._guard._process: time.sleep(0.01)
time.sleep(0.3)
print(workspace.path, watch._guard._process.pid, flush=True)
{then}
"""


def is_gone(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def sleepers(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str((entry / "cwd").readlink()).startswith(str(folder)):
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("end", ["kill", "exit", "guardian first"])
def test_nothing_outlives_a_process(tmp_path: Path, end: str) -> None:
    then = "sys.exit(0)" if end == "exit" else "time.sleep(97)"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    folder, guardian = process.stdout.readline().split()
    if end != "exit":
        assert len(sleepers(Path(folder))) >= 2 and (Path(folder) / LOCK_FILE).exists()
    if end == "guardian first":
        os.kill(int(guardian), signal.SIGKILL)
    if end != "exit":
        process.kill()
    process.communicate()
    if end == "guardian first":  # then the next run removes the folder, since nobody holds its lock
        for pid in sleepers(Path(folder)):
            os.kill(int(pid), signal.SIGKILL)
        assert Path(folder).exists()
        sweep(tmp_path)
    assert is_gone(lambda: not sleepers(tmp_path) and not Path(folder).exists())
    assert is_gone(lambda: not Path(f"/proc/{guardian}/exe").exists())


def test_what_is_in_use_or_kept_or_not_ours_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used, failed = Workspace(), Workspace()
    failed.keep("for looking at")
    failed.close()
    (tmp_path / "tilegrad-notes").mkdir()
    (tmp_path / "tilegrad-notes" / "mine").write_text("mine")
    abandoned = Workspace()
    abandoned.keep("to be abandoned")
    abandoned.close()
    (abandoned.path / FAILURE_FILE).unlink()
    sweep(tmp_path)
    assert used.path.exists() and failed.path.exists() and (tmp_path / "tilegrad-notes" / "mine").exists()
    assert not abandoned.path.exists()
    used.close()
    assert not used.path.exists()


def test_what_is_left_is_what_has_not_ended() -> None:
    lines = [b"+group 3\n", b"+folder /tmp/a b\n", b"+group 4\n", b"-group 3\n", b"+folder /c\n", b"-folder /c\n"]
    assert follow(lines) == ({4}, {b"/tmp/a b"})


def test_a_tool_that_nobody_told_of_is_ended(tmp_path: Path) -> None:
    """Killed between the start of a tool and the note of it; another's tool in the same moment is not touched."""
    ours, other = (
        subprocess.Popen(["sleep", "97"], env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / name)})
        for name in ("ours", "other")
    )
    end_tools_of({os.fsencode(tmp_path / "ours")})
    assert ours.wait(10) == -signal.SIGKILL and other.poll() is None
    other.kill()
    other.wait()


def test_only_folders_with_our_name_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "tilegrad-link").symlink_to(tmp_path / "mine")
    (tmp_path / "tilegrad-1").mkdir()
    for name in ("mine", "tilegrad-link", "tilegrad-1", "tilegrad-none"):
        remove_folder(os.fsencode(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "tilegrad-link"]
