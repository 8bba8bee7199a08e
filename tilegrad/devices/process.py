"""The harness protocol over a child process's stdin and stdout (see runtime/main.c)."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tilegrad.codegen.harness import port_offsets
from tilegrad.codegen.interface import entry_inputs, entry_outputs
from tilegrad.devices.base import Session, as_declared
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.types import TensorType
from tilegrad.pipeline import Compiled

INFER, STEP, UPDATE, GET, PUT, MEASURE, QUIT = range(1, 8)
_COMMANDS = {"infer": INFER, "step": STEP, "update": UPDATE}
BAD_LABEL = 1
REPLY_TIMEOUT_SECONDS = 600.0


class ProcessSession(Session):
    """Owns the process. A crash, a hang or a malformed reply is a DeviceError with what the process last said."""

    def __init__(
        self,
        compiled: Compiled,
        command: Sequence[str],
        folder: Path,
        *,
        timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(compiled)
        self.command = list(command)
        self.folder = folder
        self.timeout_seconds = timeout_seconds
        self._indices = {tensor.name: i for i, tensor in enumerate(compiled.program.state)}
        # A file, not a pipe: nobody has to drain it, and its last lines survive the process.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        try:
            # A session of its own: Ctrl-C in a terminal reaches us alone, and we end the program in order.
            self._process = subprocess.Popen(
                self.command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )
        except OSError as error:
            self._errors.close()
            raise DeviceError(f"cannot start '{self.command[0]}': {error.strerror}", stage="run") from error

    def close(self) -> None:
        process = self._process
        if process.poll() is None:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(struct.pack("<II", QUIT, 0))
                process.stdin.close()
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _failure(self, what: str) -> DeviceError:
        self._process.kill()
        status = self._process.wait()
        words = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        said = ""
        if not self._errors.closed:
            self._errors.seek(0)
            said = "\n    ".join(self._errors.read().decode(errors="replace").strip().splitlines()[-12:])
        return DeviceError(
            f"the program {what} ({words})",
            stage="run",
            got=f"{' '.join(self.command)}" + (f"\n    {said}" if said else ""),
            hint=f"the folder is '{self.folder}'",
        )

    def _request(self, command: int, payload: bytes) -> tuple[int, bytes]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self.timeout_seconds, expire)
        timer.start()
        try:
            process.stdin.write(struct.pack("<II", command, len(payload)) + payload)
            process.stdin.flush()
            head = process.stdout.read(8)
            if len(head) != 8:
                raise self._failure("did not answer in time" if expired.is_set() else "ended before it answered")
            status, size = struct.unpack("<II", head)
            body = process.stdout.read(size)
            if len(body) != size:
                raise self._failure("ended in the middle of an answer")
            return status, body
        except (BrokenPipeError, ValueError) as error:
            raise self._failure("is not running") from error
        finally:
            timer.cancel()

    def run(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> list[npt.NDArray[Any]]:
        ports = entry_inputs(self.compiled.plan, entry)
        if len(inputs) != len(ports):
            raise UserError(
                f"{entry} has a wrong number of inputs", stage="run", expected=str(len(ports)), got=str(len(inputs))
            )
        offsets, size = port_offsets(ports)
        payload = bytearray(size)
        for position, (value, offset) in enumerate(zip(inputs, offsets, strict=True)):
            content = self._as_input(entry, position, value).tobytes()
            payload[offset : offset + len(content)] = content
        status, body = self._request(_COMMANDS[entry], bytes(payload))
        if status == BAD_LABEL:
            classes = self.compiled.program.label_classes
            raise UserError("a label is outside the classes", stage="run", expected=f"0 to {(classes or 1) - 1}")
        if status != 0:
            raise DeviceError(f"the program answered {entry} with status {status}", stage="run")
        results = []
        out = entry_outputs(self.compiled.plan, entry)
        for port, offset in zip(out, port_offsets(out)[0], strict=True):
            data = np.frombuffer(body, dtype=port.type.dtype.numpy, count=port.type.size, offset=offset)
            results.append(data.reshape(port.type.shape).copy())
        return results

    def _tensor(self, name: str) -> tuple[bytes, TensorType]:
        """A tensor's index as the harness takes it, and its type."""
        if name not in self._indices:
            near = get_close_matches(name, self._indices, n=1)
            raise UserError(
                f"the program has no tensor '{name}'",
                stage="run",
                hint=f"did you mean '{near[0]}'?" if near else None,
            )
        return struct.pack("<I", self._indices[name]), self.compiled.program.tensor(name).type

    def read(self, tensor: str) -> npt.NDArray[Any]:
        index, wanted = self._tensor(tensor)
        _, body = self._request(GET, index)
        return np.frombuffer(body, dtype=wanted.dtype.numpy).reshape(wanted.shape).copy()

    def write(self, tensor: str, value: npt.ArrayLike) -> None:
        index, wanted = self._tensor(tensor)
        self._request(PUT, index + as_declared(value, wanted, f"tensor '{tensor}'").tobytes())

    def seconds_per_call(self, entry: str, calls: int) -> float:
        _, body = self._request(MEASURE, struct.pack("<II", _COMMANDS[entry], calls))
        (seconds,) = struct.unpack("<d", body)
        return float(seconds)
