"""How bytes reach a running program and come back: a child process's pipes, or what takes their place."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tilegrad.build import watch
from tilegrad.build.signals import uninterrupted
from tilegrad.build.tools import temporary_folder
from tilegrad.errors import DeviceError

LAST_LINES = 12
CLOSE_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20
_LITTLE_BYTES = 1 << 12
_MUCH_BYTES = 1 << 15
_GATHER_SECONDS = 5e-5
"""An answer of many parts is taken in few: a program that writes them does so without us, and waking up for each costs
more than they do."""


WINDOWS = 4
"""Of a program: two for exchanges that are under way, and two for what is not added yet."""
WINDOW_VARIABLE = "TG_WINDOW"
THROUGH_WINDOW = 0x400


class TransportError(Exception):
    """The other end is gone or silent; `str` says which, as in "the program …". The session makes it a DeviceError."""


class Window:
    """Memory that the program has mapped, too, `at` some offset of what it has.

    What is written there is read before anything is answered there. It is taken from the request to the answer; from
    then on whoever has an array in it keeps it from being used again.
    """

    def __init__(self, mapped: mmap.mmap, at: int, size_bytes: int) -> None:
        self.at = at
        self.size_bytes = size_bytes
        self.is_taken = False
        self.memory = np.frombuffer(mapped, np.uint8, size_bytes, at)  # the base of every array in it
        self._own_references = sys.getrefcount(self.memory)

    @property
    def is_free(self) -> bool:
        return not self.is_taken and sys.getrefcount(self.memory) <= self._own_references

    def fill(self, blocks: Iterable[npt.NDArray[Any]]) -> None:
        """One after another."""
        at = 0
        for block in blocks:
            end = at + block.nbytes
            self.memory[at:end] = block.reshape(-1).view(np.uint8)
            at = end

    def request(self, command: int, indices: bytes) -> tuple[int, bytes]:
        """For tensors that go through it."""
        return command | THROUGH_WINDOW, struct.pack("<I", self.at) + indices


class Transport(ABC):
    """A running program with a way to talk to it. `command` and `folder` are what an error message names."""

    command: tuple[str, ...]
    folder: Path
    windows: tuple[Window, ...] = ()

    @property
    def waits_on(self) -> int | None:
        """A descriptor that can be read when there is more to receive; None where `receive` need not wait."""
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the program is known to have."""
        return False

    @abstractmethod
    def send(self, data: bytes, deadline: float) -> None:
        """All of it, before `time.monotonic()` reaches the deadline; otherwise TransportError."""

    @abstractmethod
    def receive(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes, before the deadline; otherwise TransportError."""

    @abstractmethod
    def wait(self, limit_seconds: float) -> int | None:
        """The exit status of a program that ends by itself (negative: the signal), or None if it still runs then."""

    @abstractmethod
    def kill(self) -> int:
        """Ends the program and everything it started, and returns the exit status. Once more is no error."""

    @abstractmethod
    def console(self) -> str:
        """Everything the program printed, apart from the protocol, so far."""

    @abstractmethod
    def close(self) -> None:
        """Releases files and pipes; kills what still runs. Closing twice is no error."""

    def last_words(self) -> str:
        return "\n".join(self.console().strip().splitlines()[-LAST_LINES:])


class ProcessTransport(Transport):
    """A child process. The protocol goes over its stdin and stdout, or over other file descriptors.

    `channel` are the descriptors to read replies from and to write requests to, which `close` closes; stdin is then
    empty, and stdout belongs to the console, as stderr always does. `window_bytes` is the size of each window.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        channel: tuple[int, int] | None = None,
        window_bytes: int = 0,
    ) -> None:
        self.command = tuple(command)
        self.folder = folder
        self._ahead = bytearray()  # what came with an answer that was asked for, and belongs to the next one
        shared = self._open_windows(window_bytes)
        if shared is not None:
            size_bytes = WINDOWS * self.windows[0].size_bytes
            environment = {**(environment or {}), WINDOW_VARIABLE: f"{shared} {size_bytes}"}
        # A file, not a pipe: nobody has to drain it, and its last lines survive the process.
        self._console: IO[bytes] = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - closed in close()
        with uninterrupted(), self._closing(shared), self._as_device_error():
            # A session and group of its own: Ctrl-C in a terminal reaches us alone, and whatever the program starts
            # ends with it.
            self.process = subprocess.Popen(
                self.command,
                cwd=folder,
                stdin=subprocess.PIPE if channel is None else subprocess.DEVNULL,
                stdout=subprocess.PIPE if channel is None else self._console,
                stderr=self._console,
                bufsize=0,
                start_new_session=True,
                pass_fds=() if shared is None else (shared,),
                env=None if environment is None else {**os.environ, **environment},
            )
            watch.group_began(self.process.pid)
        if channel is None:
            assert self.process.stdin is not None and self.process.stdout is not None
            channel = (self.process.stdout.fileno(), self.process.stdin.fileno())
            self._streams: tuple[IO[bytes] | int, ...] = (self.process.stdout, self.process.stdin)
        else:
            self._streams = channel
        self._reader, self._writer = channel
        for descriptor in channel:
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError):  # more than a user may have is no harm: it only takes longer
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)

    def _open_windows(self, size_bytes: int) -> int | None:
        """The file behind the windows; None where this system has none, and pipes do."""
        if not size_bytes or not hasattr(os, "memfd_create"):
            return None
        size_bytes += -size_bytes % mmap.PAGESIZE
        try:
            file = os.memfd_create("tilegrad")
            os.ftruncate(file, WINDOWS * size_bytes)
            mapped = mmap.mmap(file, WINDOWS * size_bytes)
        except (OSError, ValueError):
            return None
        self.windows = tuple(Window(mapped, i * size_bytes, size_bytes) for i in range(WINDOWS))
        return file

    @staticmethod
    @contextlib.contextmanager
    def _closing(file: int | None) -> Iterator[None]:
        try:
            yield
        finally:
            if file is not None:
                os.close(file)

    @contextlib.contextmanager
    def _as_device_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._console.close()
            raise DeviceError(f"cannot start '{self.command[0]}': {error.strerror}", stage="run") from error

    def _wait_until(self, events: Mapping[int, int], deadline: float) -> set[int]:
        """Sleeps until a descriptor is ready, and says which. A program that ended without closing its pipes is noticed
        too."""
        poll = select.poll()
        for descriptor, event in events.items():
            if descriptor < 0:
                raise TransportError("is not running")  # closed meanwhile
            poll.register(descriptor, event)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TransportError("did not answer in time")
            if ready := poll.poll(1000 * min(remaining, _POLL_SECONDS)):
                return {descriptor for descriptor, _ in ready}
            if self.has_ended and not poll.poll(0):
                raise TransportError("ended before it answered")

    @property
    def waits_on(self) -> int | None:
        return None if self._ahead or self._reader < 0 else self._reader

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, data: bytes, deadline: float) -> None:
        """Takes what comes meanwhile: a program that waits until it can answer reads nothing."""
        rest = memoryview(data)
        try:
            while rest:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self._writer, rest) :]
                    continue
                if self._reader in self._wait_until(
                    {self._writer: select.POLLOUT, self._reader: select.POLLIN}, deadline
                ):
                    self._ahead += self._available(_CHUNK_BYTES)
        except OSError as error:
            raise TransportError("is not running") from error

    def _available(self, size: int) -> bytes:
        with contextlib.suppress(BlockingIOError):
            part = os.read(self._reader, size)
            if not part:
                raise TransportError("ended before it answered")
            return part
        return b""

    def receive(self, size: int, deadline: float) -> bytes:
        ahead = self._ahead
        if len(ahead) < size:
            self._receive(size, deadline)
        found = bytes(ahead[:size])
        del ahead[:size]
        return found

    def _receive(self, size: int, deadline: float) -> None:
        """Until so much is here."""
        try:
            while (missing := size - len(self._ahead)) > 0:
                part = self._available(min(max(missing, _LITTLE_BYTES), _CHUNK_BYTES))
                self._ahead += part
                if not part:
                    self._wait_until({self._reader: select.POLLIN}, deadline)
                elif missing - len(part) > _MUCH_BYTES:
                    time.sleep(_GATHER_SECONDS)
        except OSError as error:
            raise TransportError("is not running") from error

    def wait(self, limit_seconds: float) -> int | None:
        try:
            return self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        # Its group may outlive it: a killed emulator's helper, say.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def console(self) -> str:
        if self._console.closed:
            return ""
        self._console.seek(0)
        return self._console.read().decode(errors="replace")

    def close(self) -> None:
        """Gives a program that was told to quit a moment to do so."""
        for stream in self._streams:
            with contextlib.suppress(OSError):
                os.close(stream) if isinstance(stream, int) else stream.close()
        self._streams = ()
        self.windows = ()
        self._reader = self._writer = -1
        try:
            has_ended = self.wait(CLOSE_TIMEOUT_SECONDS) is not None
        except BaseException:
            self.kill()
            raise
        with uninterrupted():
            if not has_ended:
                self.kill()
            watch.group_ended(self.process.pid)
            self._console.close()
