"""Tells the guardian (guardian.py) what must not outlive this process. Where none can be started, SIGKILL leaves it."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

_PROGRAM = Path(__file__).with_name("guardian.py")
_DISMISSAL_SECONDS = 5.0


class _Guard:
    """One guardian for this process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()
        os.register_at_fork(after_in_child=self._abandon)
        atexit.register(self.dismiss)

    def _forget(self) -> None:
        self._pipe: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._has_failed = False

    def _abandon(self) -> None:
        """A forked child has a copy of the pipe, which would keep the guardian waiting for it."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.close(self._pipe)
        self._lock = threading.Lock()
        self._process = None  # not this process's child: never to be waited for
        self._forget()

    def dismiss(self) -> None:
        """Ends the guardian, which ends and removes what was left to it. Another may follow."""
        with self._lock:
            if self._pipe is not None:
                os.close(self._pipe)
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_DISMISSAL_SECONDS)
            self._forget()

    def tell(self, line: str) -> None:
        with self._lock:
            if self._pipe is None and not self._has_failed:
                self._start()
            if self._pipe is None:
                return
            try:
                os.write(self._pipe, os.fsencode(line) + b"\n")
            except OSError:  # somebody has killed it
                os.close(self._pipe)
                self._pipe = None
                self._has_failed = True

    def _start(self) -> None:
        reader, writer = os.pipe()
        try:
            # A session of its own: what is sent to our group must not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                cwd="/",
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, TypeError):  # there may be no interpreter to start
            os.close(writer)
            self._has_failed = True
        else:
            self._pipe = writer
        finally:
            os.close(reader)


_guard = _Guard()


def group_began(group: int) -> None:
    _guard.tell(f"+group {group}")


def group_ended(group: int) -> None:
    _guard.tell(f"-group {group}")


def folder_began(path: Path) -> None:
    if "\n" not in str(path):  # a name that lines cannot hold is left to the next run
        _guard.tell(f"+folder {path}")


def folder_ended(path: Path) -> None:
    if "\n" not in str(path):
        _guard.tell(f"-folder {path}")
