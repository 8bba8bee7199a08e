"""The harness protocol (see runtime/main.c): the same binary command stream for every program that is a process."""

from __future__ import annotations

import contextlib
import signal
import struct
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilegrad.build.workspace import Workspace
from tilegrad.codegen.harness import port_offsets
from tilegrad.codegen.interface import Port, entry_inputs, entry_outputs
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Device, Session, bad_label, one_at_a_time
from tilegrad.devices.measure import COMPUTE_SECONDS, CYCLES, INSTRUCTIONS
from tilegrad.devices.packed import Field, Layout, Packed
from tilegrad.devices.pipelined import Wanted, framed, pipelined
from tilegrad.devices.residency import Residency
from tilegrad.devices.transport import ProcessTransport, Transport, TransportError
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.program import StateTensor

INFER, STEP, UPDATE, GET, PUT, MEASURE, QUIT, PLACE, FETCH, BLOCKS = range(1, 11)
KEEP_OUTPUTS = 0x100
"""Added to an entry's command: the outputs stay where they are."""

_COMMANDS = {"infer": INFER, "step": STEP, "update": UPDATE}
BAD_LABEL = 1
BAD_LOSS, NOT_FINITE, BAD_BLOCKS = 17, 18, 20
GUARD_STATUSES = {BAD_LOSS: "the loss", NOT_FINITE: "the update"}
"""What a guard answers with: it has undone what came of it."""
REPLY_TIMEOUT_SECONDS = 600.0
_QUIT_SECONDS = 1.0


@dataclass(frozen=True)
class _Ports:
    """Inputs and outputs of an entry, and where each lies in its payload."""

    input_offsets: tuple[int, ...]
    input_bytes: int
    outputs: tuple[Port, ...]
    output_offsets: tuple[int, ...]
    output_bytes: int

    @staticmethod
    def of(compiled: Compiled, entry: str) -> _Ports:
        inputs, outputs = entry_inputs(compiled.plan, entry), entry_outputs(compiled.plan, entry)
        return _Ports(*port_offsets(inputs), tuple(outputs), *port_offsets(outputs))


def _unpacked(port: Port, body: bytes, at: int) -> Array:
    array = np.frombuffer(body, dtype=port.type.dtype.numpy, count=port.type.size, offset=at)
    return array.reshape(port.type.shape).copy()


class HarnessSession(Session):
    """Owns the running program. A crash, a hang or a malformed reply is a DeviceError with what it last said.

    A workspace, if given, goes when the session does, and is kept when the program fails.
    """

    def __init__(
        self,
        compiled: Compiled,
        transport: Transport,
        *,
        residency: Residency | None = None,
        workspace: Workspace | None = None,
        timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(compiled, residency)
        self.transport = transport
        self.timeout_seconds = timeout_seconds
        self._workspace = workspace
        self._failed: DeviceError | None = None
        self._is_closed = False
        self.blocks = compiled.plan.schedule.blocks  # the number that widths are of, where there is one
        self._known: dict[tuple[str, ...], Wanted] = {}
        self._indices = {tensor.name: i for i, tensor in enumerate(compiled.program.state)}
        self._ports = {entry: _Ports.of(compiled, entry) for entry in _COMMANDS}

    @property
    def command(self) -> tuple[str, ...]:
        return self.transport.command

    @property
    def folder(self) -> Path:
        return self.transport.folder

    def close(self) -> None:
        # Whoever waits for an answer in another thread is not waited for.
        super().close()
        is_alone = self._lock.acquire(timeout=_QUIT_SECONDS)
        try:
            self._close(is_alone)
        finally:
            if is_alone:
                self._lock.release()

    def _close(self, is_alone: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not is_alone:
            self.transport.kill()
        elif self._failed is None:
            with contextlib.suppress(TransportError):
                self.transport.send(struct.pack("<II", QUIT, 0), time.monotonic() + _QUIT_SECONDS)
        self.transport.close()
        if self._workspace is not None:
            self._workspace.close()

    def _failure(self, what: str) -> DeviceError:
        """Ends the program, keeps its folder, and says what is known."""
        if self._is_closed:
            return DeviceError("the program is not running: its session is closed", stage="run")
        status = self.transport.kill()
        ended = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        said = self.transport.last_words()
        message = f"the program {what} ({ended})"
        ran = " ".join(self.command) + "".join(f"\n    {line}" for line in said.splitlines())
        if self._workspace is not None:
            self._workspace.keep(f"{message}\n{ran}")
        return DeviceError(message, stage="run", got=ran, hint=f"the folder is '{self.folder}'")

    def _request(self, command: int, payload: bytes = b"") -> tuple[int, bytes]:
        """One request and its reply, within the time limit. After a failure, every request is that failure."""
        with self._failures():
            deadline = time.monotonic() + self.timeout_seconds
            self.transport.send(framed(command, payload), deadline)
            status, size = struct.unpack("<II", self.transport.receive(8, deadline))
            return status, self.transport.receive(size, deadline)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """What ends the program, and what every request after it is told."""
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except TransportError as error:
            self._failed = self._failure(str(error))
            raise self._failed from error
        except BaseException:
            # Half a request has no meaning to the program, and half an answer none to us.
            self.transport.kill()
            self._failed = DeviceError("the program was ended: a call was interrupted", stage="run")
            raise

    def _checked(self, entry: str, reply: tuple[int, bytes]) -> bytes:
        status, body = reply
        if status == BAD_LABEL:
            raise bad_label(self.compiled)
        if status in GUARD_STATUSES and self.compiled.program.recipe.guard is not None:
            if (entry, status) != ("update", BAD_LOSS):  # the step has said so already
                self.undone.append((self._minibatches + (entry == "step"), GUARD_STATUSES[status]))
            return body
        if status != 0:
            raise DeviceError(f"the program answered {entry} with status {status}", stage="run")
        return body

    def _pack(self, entry: str, arrays: Sequence[Array]) -> bytes:
        ports = self._ports[entry]
        payload = bytearray(ports.input_bytes)
        for array, offset in zip(arrays, ports.input_offsets, strict=True):
            payload[offset : offset + array.nbytes] = array.tobytes()
        return bytes(payload)

    def _unpack(self, entry: str, body: bytes) -> list[Array]:
        ports = self._ports[entry]
        if len(body) != ports.output_bytes:
            raise self._malformed()
        return [_unpacked(port, body, at) for port, at in zip(ports.outputs, ports.output_offsets, strict=True)]

    def _malformed(self) -> DeviceError:
        self._failed = self._failure("gave a malformed answer")
        return self._failed

    def _place(self, entry: str, inputs: Sequence[Array | None]) -> None:
        for reply in self._calls(self._placing(entry, inputs)):
            self._checked(entry, reply)

    def _placing(self, entry: str, inputs: Sequence[Array | None]) -> list[tuple[int, bytes]]:
        """Requests that place inputs: all at once, or one by one those that are given."""
        given = [array for array in inputs if array is not None]
        if len(given) == len(inputs):
            return [(PLACE, struct.pack("<II", _COMMANDS[entry], 0) + self._pack(entry, given))] if given else []
        places = zip(inputs, self._ports[entry].input_offsets, strict=True)
        return [
            (PLACE, struct.pack("<II", _COMMANDS[entry], at) + array.tobytes())
            for array, at in places
            if array is not None
        ]

    def _fetching(self, entry: str, wanted: Sequence[int]) -> list[tuple[int, bytes]]:
        """Requests for outputs, one by one."""
        ports = self._ports[entry]
        return [
            (
                FETCH,
                struct.pack("<III", _COMMANDS[entry], ports.output_offsets[i], ports.outputs[i].type.size_bytes),
            )
            for i in wanted
        ]

    def _fetched(self, entry: str, wanted: Sequence[int], replies: Sequence[tuple[int, bytes]]) -> list[Array]:
        made = []
        for i, reply in zip(wanted, replies, strict=True):
            port, body = self._ports[entry].outputs[i], self._checked(entry, reply)
            if len(body) != port.type.size_bytes:
                raise self._malformed()
            made.append(_unpacked(port, body, 0))
        return made

    def _calls(self, requests: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Requests in a row, as one exchange."""
        with self._failures():
            deadline = time.monotonic() + self.timeout_seconds
            return pipelined(self.transport, deadline, (), requests, self._wanted(()))[0]

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        given = [array for array in inputs if array is not None]
        is_whole = len(given) == len(inputs)
        wants_all = len(wanted) == len(self._ports[entry].outputs)
        placing = [] if is_whole else self._placing(entry, inputs)
        fetching = [] if wants_all else self._fetching(entry, wanted)
        payload = self._pack(entry, given) if given and is_whole else b""
        command = _COMMANDS[entry] | (0 if wants_all else KEEP_OUTPUTS)
        replies = self._calls([*placing, (command, payload), *fetching])
        for reply in replies[: len(placing)]:
            self._checked(entry, reply)
        body = self._checked(entry, replies[len(placing)])
        return self._unpack(entry, body) if wants_all else self._fetched(entry, wanted, replies[len(placing) + 1 :])

    def _fetch(self, entry: str, wanted: Sequence[int]) -> list[Array]:
        return self._fetched(entry, wanted, self._calls(self._fetching(entry, wanted)))

    def _measure(self, entry: str, calls: int) -> tuple[int, int, int]:
        """Nanoseconds, cycles and instructions of all calls together; 0 where the program cannot tell."""
        body = self._checked(entry, self._request(MEASURE, struct.pack("<II", _COMMANDS[entry], calls)))
        nanoseconds, cycles, instructions = struct.unpack("<QQQ", body)
        return nanoseconds, cycles, instructions

    def _count(self, entry: str) -> Mapping[str, float]:
        nanoseconds, cycles, instructions = self._measure(entry, 1)
        return {COMPUTE_SECONDS: nanoseconds / 1e9, CYCLES: float(cycles), INSTRUCTIONS: float(instructions)}

    @one_at_a_time
    def seconds_per_call(self, entry: str, calls: int) -> float:
        self._check_placed(entry)
        return self._measure(entry, calls)[0] / 1e9 / max(calls, 1)

    def _exchange(
        self,
        entry: str | None,
        inputs: Sequence[Array] | None,
        writes: Sequence[tuple[StateTensor, Array]],
        reads: Sequence[str],
    ) -> tuple[list[Array], Mapping[str, Array]]:
        """All requests at once."""
        payload = b"" if entry is None or not inputs else self._pack(entry, inputs)
        wanted = self._wanted(tuple(reads))
        with self._failures():
            replies, content = pipelined(
                self.transport,
                time.monotonic() + self.timeout_seconds,
                [(self._indices[tensor.name], value) for tensor, value in writes],
                [] if entry is None else [(_COMMANDS[entry], payload)],
                wanted,
            )
        made = Packed(wanted.layout, content)
        if entry is None:
            return [], made
        return self._unpack(entry, self._checked(entry, replies[0])), made

    def _wanted(self, names: tuple[str, ...]) -> Wanted:
        """The same object for the same tensors."""
        if names not in self._known:
            types = {name: self._tensors[name].type for name in names}
            fields = (Field(name, type_.dtype.numpy, type_.shape) for name, type_ in types.items())
            self._known[names] = Wanted.of(Layout(tuple(fields)), self._indices)
        return self._known[names]

    @one_at_a_time
    def set_blocks(self, blocks: int) -> None:
        """Over how many blocks nests are launched from the next call on, where that is known at run time only."""
        schedule = self.compiled.plan.schedule
        width = schedule.width
        if width is None:
            raise UserError(
                "the program does not say over how many blocks it is launched at run time",
                stage="run",
                expected="a program that was compiled with --blocks n, n/2 or min(n, 3)",
                got=f"--blocks {self.compiled.options.blocks}",
            )
        is_number = isinstance(blocks, int) and abs(blocks) < 1 << 31
        status = self._request(BLOCKS, struct.pack("<i", blocks))[0] if is_number else BAD_BLOCKS
        if status != 0:
            least, most = (width.divisor, schedule.blocks) if width.divisor else (width.limit, width.limit)
            raise UserError(
                f"nests cannot be launched over {blocks} blocks (status {status}: TG_BAD_BLOCKS)",
                stage="run",
                expected=str(least) if least == most else f"{least} to {most}",
                got=str(blocks),
            )
        self.blocks = blocks

    def _read(self, tensor: StateTensor) -> Array:
        _, body = self._request(GET, struct.pack("<I", self._indices[tensor.name]))
        return np.frombuffer(body, dtype=tensor.type.dtype.numpy).reshape(tensor.type.shape).copy()

    def _write(self, tensor: StateTensor, value: Array) -> None:
        self._request(PUT, struct.pack("<I", self._indices[tensor.name]) + value.tobytes())


class ProcessSession(HarnessSession):
    """A program that is there already, started anew."""

    def __init__(
        self,
        compiled: Compiled,
        command: Sequence[str],
        folder: Path,
        *,
        timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        transport = ProcessTransport(command, folder, environment=environment)
        super().__init__(compiled, transport, timeout_seconds=timeout_seconds)


class HarnessDevice(Device):
    """A device whose programs are built in a folder and then speak the harness protocol."""

    session_type: type[HarnessSession] = HarnessSession

    @abstractmethod
    def _start(self, compiled: Compiled, folder: Path) -> Transport:
        """Builds the program in an empty folder and starts it."""

    def built_files(self, compiled: Compiled) -> dict[str, bytes]:
        """The C project with what was built of it, by path: all that `serve` needs."""
        raise UserError(
            f"programs for device '{self.name}' are not kept in folders",
            stage="build",
            hint="such as host, sim:siracusa, qemu:riscv32 or opencl:0 are",
        )

    def serve(self, folder: Path) -> Transport:
        """Starts a program from a folder with these files, which is ours to write to. Compiles nothing, unless what is
        there was built for another machine."""
        raise UserError(f"device '{self.name}' starts no program from a folder", stage="run", got=str(folder))

    @classmethod
    def missing_to_serve(cls, name: str) -> str | None:
        """Why `serve` cannot be used here; None if it can."""
        return cls.missing(name)

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        workspace = Workspace()
        with workspace.kept_on_failure() as folder:
            transport = self._start(compiled, folder)
        return self.session_type(compiled, transport, residency=residency, workspace=workspace)
