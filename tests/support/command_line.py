"""Runs tilegrad's commands: inside this process where speed matters, as a process where signals and files matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilegrad.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as one JSON document: anything else there makes this fail."""
        return json.loads(self.out, parse_constant=_refuse)  # type: ignore[no-any-return]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


class CommandLine:
    """`tilegrad("train", "mlp")`, in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Answer:
        self._capture.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = self._capture.readouterr()
        return Answer(status, captured.out, captured.err)


def start(*arguments: object, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> Any:
    """The command as a process of its own, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tilegrad", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )


def wait_for(process: Any, condition: Callable[[], object], seconds: float = 60.0) -> None:
    """However slow the machine is: a process that has not got there is not interrupted."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def finish(process: Any) -> Answer:
    out, err = process.communicate(timeout=240)
    return Answer(process.returncode, out, err)
