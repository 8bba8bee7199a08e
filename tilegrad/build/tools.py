"""Runs tools to their end: argument lists only, a time limit, and nothing left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tilegrad.errors import DeviceError

TIMEOUT_SECONDS = 300.0
LAST_LINES = 12


class Tools:
    """Runs commands, from several threads if need be; `stop` ends all that run and starts no more."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.timeout_seconds = timeout_seconds
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        process = self._start(command, folder)
        try:
            out, err = process.communicate(timeout=self.timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"'{Path(command[0]).name}' did not finish in {self.timeout_seconds:g} s",
                stage="build",
                got=" ".join(command),
            ) from error
        finally:
            self._end(process)
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def checked(self, command: Sequence[str], folder: Path, what: str = "the C compiler") -> str:
        """What it printed; a failure is an error with its words."""
        done = self.run(command, folder)
        if done.returncode != 0:
            words = "\n    ".join(done.stderr.strip().splitlines()[:LAST_LINES])
            raise DeviceError(
                f"{what} failed with status {done.returncode}",
                stage="build",
                got=f"{' '.join(command)}\n    {words}",
            )
        return done.stdout

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                _kill_group(process)

    def _start(self, command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_stopped:
                raise DeviceError("the build was stopped", stage="build")
            try:
                # A group of its own: a compiler is a driver with children, and all of them end together.
                process = subprocess.Popen(
                    list(command),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    # Compilers write here between their passes: what a killed one leaves goes with the folder.
                    env={**os.environ, "TMPDIR": str(folder.absolute())} if os.access(folder, os.W_OK) else None,
                )
            except OSError as error:
                raise DeviceError(
                    f"cannot run '{command[0]}': {error.strerror}", stage="build", hint="check that it is installed"
                ) from error
            self._running.add(process)
            return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Leaves neither process nor pipe, however the run ended."""
        if process.poll() is None:
            _kill_group(process)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with self._lock:
            self._running.discard(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
