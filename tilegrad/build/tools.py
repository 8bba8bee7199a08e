"""Runs tools to their end: argument lists only, a time limit, and nothing left running."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tilegrad.build import watch
from tilegrad.build.signals import uninterrupted
from tilegrad.errors import DeviceError, UserError

LIMIT_VARIABLE = "TILEGRAD_TOOL_SECONDS"
TIMEOUT_SECONDS = 120.0
PROBE_SECONDS = 30.0
"""For questions such as --version, which take no time unless something is wrong."""
LAST_LINES = 12


def temporary_folder() -> Path:
    """Where tools run that make nothing. Found once for the process, by trying to write there."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise DeviceError(f"there is no place for temporary files: {error.strerror}", stage="build") from error


def limit_seconds() -> float:
    """How long a compiler may take, for one file."""
    text = os.environ.get(LIMIT_VARIABLE) or str(TIMEOUT_SECONDS)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0.0 < limit < math.inf:
        raise UserError(f"{LIMIT_VARIABLE} is no number of seconds", stage="build", expected="above 0", got=text)
    return limit


class Tools:
    """Runs commands, from several threads if need be; `stop` ends all that run and starts no more."""

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self.timeout_seconds = limit_seconds() if timeout_seconds is None else timeout_seconds
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
                hint=f"where it only needs longer, set {LIMIT_VARIABLE}",
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
            with uninterrupted(), self._as_device_error(command):
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
                self._running.add(process)
                watch.group_began(process.pid)
            return process

    @staticmethod
    @contextlib.contextmanager
    def _as_device_error(command: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DeviceError(
                f"cannot run '{command[0]}': {error.strerror}", stage="build", hint="check that it is installed"
            ) from error

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Leaves neither process nor pipe, however the run ended."""
        if process.poll() is None:
            _kill_group(process)
        process.wait()
        watch.group_ended(process.pid)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with self._lock:
            self._running.discard(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
