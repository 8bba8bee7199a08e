"""What has to be known of a compiled program to run it, as JSON: where each tensor and each input is, what a share is.

With it, a folder with a built program needs neither the model nor the compiler that made it.
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.build.workspace import Workspace
from tilegrad.codegen.harness import port_offsets
from tilegrad.codegen.interface import Port, entry_inputs, entry_outputs
from tilegrad.compiled import Compiled
from tilegrad.devices.packed import Field, Layout, Packed
from tilegrad.devices.pipelined import Wanted, pipelined
from tilegrad.devices.transport import Transport, TransportError
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.program import ENTRIES, Role
from tilegrad.parallel.form import Form, fingerprint, form_of
from tilegrad.parallel.shares import Array

FILE = "program.json"
FORMAT = 1
REPLY_TIMEOUT_SECONDS = 600.0
_COMMANDS = {"infer": 1, "step": 2, "update": 3}
_BAD_LABEL = 1
_QUIT = 7


@dataclass(frozen=True)
class TensorFacts:
    """A state tensor, or an input or output at `offset` of its payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @staticmethod
    def from_json(row: Sequence[Any]) -> TensorFacts:
        name, dtype, shape, offset = row
        return TensorFacts(str(name), str(np.dtype(dtype)), tuple(int(n) for n in shape), int(offset))

    def as_json(self) -> list[Any]:
        return [self.name, self.dtype, list(self.shape), self.offset]


@dataclass(frozen=True)
class PortFacts:
    """Inputs and outputs of an entry, and the sizes of their payloads."""

    inputs: tuple[TensorFacts, ...]
    input_bytes: int
    outputs: tuple[TensorFacts, ...]
    output_bytes: int


@dataclass(frozen=True)
class Facts:
    """`tensors` are in the order of the program's own table; `trained` names the parameters in initializer order."""

    name: str
    target: str
    fingerprint: str
    form: Form
    tensors: tuple[TensorFacts, ...]
    trained: tuple[str, ...]
    ports: Mapping[str, PortFacts]

    def as_bytes(self) -> bytes:
        document = {
            "format": FORMAT,
            "name": self.name,
            "target": self.target,
            "fingerprint": self.fingerprint,
            "form": self.form.as_json(),
            "tensors": [tensor.as_json() for tensor in self.tensors],
            "trained": list(self.trained),
            "ports": {
                entry: {
                    **asdict(ports),
                    "inputs": [port.as_json() for port in ports.inputs],
                    "outputs": [port.as_json() for port in ports.outputs],
                }
                for entry, ports in self.ports.items()
            },
        }
        return (json.dumps(document, indent=1) + "\n").encode()

    @staticmethod
    def from_bytes(content: bytes) -> Facts:
        told = json.loads(content)
        if told["format"] != FORMAT:
            raise UserError(
                "the program is described in another version of the format",
                stage="load",
                expected=f"version {FORMAT}",
                got=f"version {told['format']}",
            )

        def listed(rows: Sequence[Any]) -> tuple[TensorFacts, ...]:
            return tuple(TensorFacts.from_json(row) for row in rows)

        ports = {
            entry: PortFacts(
                listed(each["inputs"]), each["input_bytes"], listed(each["outputs"]), each["output_bytes"]
            )
            for entry, each in told["ports"].items()
        }
        return Facts(
            told["name"],
            told["target"],
            told["fingerprint"],
            Form.from_json(told["form"]),
            listed(told["tensors"]),
            tuple(told["trained"]),
            ports,
        )


def facts_of(compiled: Compiled) -> Facts:
    """Of a program whose gradients can be read."""

    def listed(ports: Sequence[Port]) -> tuple[tuple[TensorFacts, ...], int]:
        offsets, size = port_offsets(ports)
        rows = zip(ports, offsets, strict=True)
        return tuple(TensorFacts(p.value, str(p.type.dtype.numpy), p.type.shape, at) for p, at in rows), size

    program = compiled.program
    return Facts(
        program.name,
        compiled.target.name,
        fingerprint(program),
        form_of(program),
        tuple(TensorFacts(each.name, str(each.type.dtype.numpy), each.type.shape) for each in program.state),
        tuple(tensor.name for tensor in program.with_role(Role.PARAMETER)),
        {
            entry: PortFacts(*listed(entry_inputs(compiled.plan, entry)), *listed(entry_outputs(compiled.plan, entry)))
            for entry in ENTRIES
        },
    )


class FactsEngine:
    """A running program that is known by its facts alone. One call at a time; whoever has it closes it."""

    def __init__(self, facts: Facts, device: str, transport: Transport, workspace: Workspace) -> None:
        self.facts = facts
        self._device = device
        self._transport = transport
        self._workspace = workspace
        self._indices = {tensor.name: i for i, tensor in enumerate(facts.tensors)}
        self._known: dict[tuple[str, ...], Wanted] = {}

    def exchange(
        self,
        entry: str | None,
        inputs: Sequence[npt.ArrayLike] | None,
        writes: Mapping[str, npt.ArrayLike],
        reads: Sequence[str],
    ) -> tuple[list[Array], Mapping[str, Array]]:
        put = [
            (self._indices[name], np.ascontiguousarray(value, self.facts.tensors[self._indices[name]].dtype))
            for name, value in writes.items()
        ]
        calls = [] if entry is None else [(_COMMANDS[entry], self._packed(entry, inputs or ()))]
        wanted = self._wanted(tuple(reads))
        try:
            deadline = time.monotonic() + REPLY_TIMEOUT_SECONDS
            replies, content = pipelined(self._transport, deadline, put, calls, wanted)
        except TransportError as error:
            raise self._failure(str(error)) from error
        made = Packed(wanted.layout, content)
        if entry is None:
            return [], made
        ((status, body),) = replies
        if status == _BAD_LABEL:
            raise UserError("a label is outside the classes", stage="run")
        if status != 0:
            raise DeviceError(f"the program answered {entry} with status {status}", stage="run")
        return [_array(port, memoryview(body)[port.offset :]) for port in self.facts.ports[entry].outputs], made

    def _wanted(self, names: tuple[str, ...]) -> Wanted:
        """The same object for the same tensors."""
        if names not in self._known:
            tensors = (self.facts.tensors[self._indices[name]] for name in names)
            fields = tuple(Field(each.name, np.dtype(each.dtype), each.shape) for each in tensors)
            self._known[names] = Wanted.of(Layout(fields), self._indices)
        return self._known[names]

    def _packed(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> bytes:
        ports = self.facts.ports[entry]
        if len(inputs) != len(ports.inputs):
            raise UserError(
                f"{entry} has a wrong number of inputs",
                stage="run",
                expected=str(len(ports.inputs)),
                got=str(len(inputs)),
            )
        payload = bytearray(ports.input_bytes)
        for port, value in zip(ports.inputs, inputs, strict=True):
            array = np.ascontiguousarray(value, port.dtype)
            if array.shape != port.shape:
                raise UserError(
                    f"input '{port.name}' of {entry} has a wrong shape",
                    stage="run",
                    expected=str(list(port.shape)),
                    got=str(list(array.shape)),
                )
            payload[port.offset : port.offset + array.nbytes] = array.tobytes()
        return bytes(payload)

    def _failure(self, what: str) -> DeviceError:
        status = self._transport.kill()
        words = "".join(f"\n    {line}" for line in self._transport.last_words().splitlines())
        message = f"the program of '{self._device}' {what} (status {status})"
        self._workspace.keep(message + words)
        ran = " ".join(self._transport.command) + words
        return DeviceError(message, stage="run", got=ran, hint=f"the folder is '{self._workspace.path}'")

    def close(self) -> None:
        """Closing twice is no error."""
        with contextlib.suppress(TransportError):
            self._transport.send(struct.pack("<II", _QUIT, 0), time.monotonic() + 1.0)
        self._transport.close()
        self._workspace.close()


def _array(tensor: TensorFacts, content: memoryview) -> Array:
    return np.frombuffer(content[: tensor.size_bytes], tensor.dtype).reshape(tensor.shape)
