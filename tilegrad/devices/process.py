"""Sessions and devices of programs that are processes: all speak the harness protocol (conversation.py)."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Device, Session, bad_label, one_at_a_time
from tilegrad.devices.conversation import (
    BAD_LABEL,
    BLOCKS,
    COMMANDS,
    FETCH,
    GET,
    MALFORMED,
    MEASURE,
    PLACE,
    PUT,
    QUIT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
    Conversation,
    Reply,
    Request,
)
from tilegrad.devices.measure import COMPUTE_SECONDS, CYCLES, INSTRUCTIONS
from tilegrad.devices.residency import Residency
from tilegrad.devices.session import Exchanged
from tilegrad.devices.table import table_of
from tilegrad.devices.transport import ProcessTransport, Transport
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.program import StateTensor

KEEP_OUTPUTS = 0x100
"""Added to an entry's command: the outputs stay where they are."""

BAD_LOSS, NOT_FINITE, BAD_BLOCKS = 17, 18, 20
GUARD_STATUSES = {BAD_LOSS: "the loss", NOT_FINITE: "the update"}
"""What a guard answers with: it has undone what came of it."""


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
        self.blocks = compiled.plan.schedule.blocks  # the number that widths are of, where there is one
        table = table_of(compiled)
        self._ports = table.ports
        self.conversation = Conversation(table, transport, workspace=workspace, timeout_seconds=timeout_seconds)

    @property
    def transport(self) -> Transport:
        return self.conversation.transport

    @property
    def timeout_seconds(self) -> float:
        """For an answer."""
        return self.conversation.timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        self.conversation.timeout_seconds = seconds

    @property
    def command(self) -> tuple[str, ...]:
        return self.transport.command

    @property
    def folder(self) -> Path:
        return self.transport.folder

    @property
    def waits_on(self) -> int | None:
        return self.conversation.waits_on

    @property
    def is_lost(self) -> bool:
        return self.conversation.is_lost

    def close(self) -> None:
        # Whoever waits for an answer in another thread is not waited for.
        super().close()
        is_alone = self._lock.acquire(timeout=QUIT_SECONDS)
        try:
            self.conversation.close(is_alone)
        finally:
            if is_alone:
                self._lock.release()

    def _request(self, command: int, payload: bytes = b"") -> Reply:
        return self.conversation.calls([(command, payload)])[0]

    def _checked(self, entry: str, reply: Reply) -> bytes:
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

    def _unpack(self, entry: str, body: bytes) -> list[Array]:
        if len(body) != self._ports[entry].output_bytes:
            raise self.conversation.failure(MALFORMED)
        return self._ports[entry].unpacked(body)

    def _place(self, entry: str, inputs: Sequence[Array | None]) -> None:
        for reply in self.conversation.calls(self._placing(entry, inputs)):
            self._checked(entry, reply)

    def _placing(self, entry: str, inputs: Sequence[Array | None]) -> list[Request]:
        """Requests that place inputs: all at once, or one by one those that are given."""
        given = [array for array in inputs if array is not None]
        ports = self._ports[entry]
        if len(given) == len(inputs):
            return [(PLACE, struct.pack("<II", COMMANDS[entry], 0) + ports.packed(given))] if given else []
        return [
            (PLACE, struct.pack("<II", COMMANDS[entry], port.offset) + array.tobytes())
            for port, array in zip(ports.inputs, inputs, strict=True)
            if array is not None
        ]

    def _fetching(self, entry: str, wanted: Sequence[int]) -> list[Request]:
        """Requests for outputs, one by one."""
        ports = (self._ports[entry].outputs[i] for i in wanted)
        return [(FETCH, struct.pack("<III", COMMANDS[entry], port.offset, port.size_bytes)) for port in ports]

    def _fetched(self, entry: str, wanted: Sequence[int], replies: Sequence[Reply]) -> list[Array]:
        made = []
        for i, reply in zip(wanted, replies, strict=True):
            port, body = self._ports[entry].outputs[i], self._checked(entry, reply)
            if len(body) != port.size_bytes:
                raise self.conversation.failure(MALFORMED)
            made.append(port.unpacked(body, 0))
        return made

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        given = [array for array in inputs if array is not None]
        is_whole = len(given) == len(inputs)
        wants_all = len(wanted) == len(self._ports[entry].outputs)
        placing = [] if is_whole else self._placing(entry, inputs)
        fetching = [] if wants_all else self._fetching(entry, wanted)
        payload = self._ports[entry].packed(given) if given and is_whole else b""
        command = COMMANDS[entry] | (0 if wants_all else KEEP_OUTPUTS)
        replies = self.conversation.calls([*placing, (command, payload), *fetching])
        for reply in replies[: len(placing)]:
            self._checked(entry, reply)
        body = self._checked(entry, replies[len(placing)])
        return self._unpack(entry, body) if wants_all else self._fetched(entry, wanted, replies[len(placing) + 1 :])

    def _fetch(self, entry: str, wanted: Sequence[int]) -> list[Array]:
        return self._fetched(entry, wanted, self.conversation.calls(self._fetching(entry, wanted)))

    def _measure(self, entry: str, calls: int) -> tuple[int, int, int]:
        """Nanoseconds, cycles and instructions of all calls together; 0 where the program cannot tell."""
        body = self._checked(entry, self._request(MEASURE, struct.pack("<II", COMMANDS[entry], calls)))
        nanoseconds, cycles, instructions = struct.unpack("<QQQ", body)
        return nanoseconds, cycles, instructions

    def _count(self, entry: str) -> Mapping[str, float]:
        nanoseconds, cycles, instructions = self._measure(entry, 1)
        return {COMPUTE_SECONDS: nanoseconds / 1e9, CYCLES: float(cycles), INSTRUCTIONS: float(instructions)}

    @one_at_a_time
    def seconds_per_call(self, entry: str, calls: int) -> float:
        self._check_placed(entry)
        return self._measure(entry, calls)[0] / 1e9 / max(calls, 1)

    def _begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Callable[[], Exchanged]:
        """All requests at once."""
        calls = [] if entry is None else [(COMMANDS[entry], self._ports[entry].packed(inputs) if inputs else b"")]
        begun = self.conversation.begin(calls, writes, reads)

        def finish() -> Exchanged:
            answers, made = self.conversation.finish(begun)
            return ([] if entry is None else self._unpack(entry, self._checked(entry, answers[0]))), made

        return finish

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
        _, body = self._request(GET, struct.pack("<I", self.conversation.table.indices[tensor.name]))
        return np.frombuffer(body, dtype=tensor.type.dtype.numpy).reshape(tensor.type.shape).copy()

    def _write(self, tensor: StateTensor, value: Array) -> None:
        self._request(PUT, struct.pack("<I", self.conversation.table.indices[tensor.name]) + value.tobytes())


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
