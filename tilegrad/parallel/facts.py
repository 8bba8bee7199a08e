"""What has to be known of a compiled program to run it, as JSON: where each tensor and each input is, what a share is.

With it, a folder with a built program needs neither the model nor the compiler that made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.conversation import BAD_LABEL, COMMANDS, Conversation, Exchange
from tilegrad.devices.packed import Packed
from tilegrad.devices.session import Exchanged
from tilegrad.devices.table import PortFacts, Table, TensorFacts, table_of
from tilegrad.devices.transport import Transport
from tilegrad.devices.values import Array
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.program import Role
from tilegrad.parallel.form import Form, fingerprint, form_of

FILE = "program.json"
FORMAT = 1


@dataclass(frozen=True)
class Facts:
    """`trained` names the parameters in initializer order."""

    name: str
    target: str
    fingerprint: str
    form: Form
    table: Table
    trained: tuple[str, ...]

    def as_bytes(self) -> bytes:
        document = {
            "format": FORMAT,
            "name": self.name,
            "target": self.target,
            "fingerprint": self.fingerprint,
            "form": self.form.as_json(),
            "tensors": [tensor.as_json() for tensor in self.table.tensors],
            "trained": list(self.trained),
            "ports": {
                entry: {
                    **asdict(ports),
                    "inputs": [port.as_json() for port in ports.inputs],
                    "outputs": [port.as_json() for port in ports.outputs],
                }
                for entry, ports in self.table.ports.items()
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
            Table(listed(told["tensors"]), ports),
            tuple(told["trained"]),
        )


def facts_of(compiled: Compiled) -> Facts:
    """Of a program whose gradients can be read."""
    program = compiled.program
    trained = tuple(tensor.name for tensor in program.with_role(Role.PARAMETER))
    form, table = form_of(program), table_of(compiled)
    return Facts(program.name, compiled.target.name, fingerprint(program), form, table, trained)


class FactsEngine:
    """A running program that is known by its facts alone. One call at a time; whoever has it closes it."""

    def __init__(
        self, facts: Facts, device: str, transport: Transport, workspace: Workspace, *, takes_ahead: bool
    ) -> None:
        self.facts = facts
        self.takes_ahead = takes_ahead
        self._conversation = Conversation(
            facts.table, transport, name=f"the program of '{device}'", workspace=workspace
        )

    @property
    def waits_on(self) -> int | None:
        return self._conversation.waits_on

    @property
    def is_lost(self) -> bool:
        return self._conversation.is_lost

    def begin(
        self,
        entry: str | None,
        inputs: Sequence[npt.ArrayLike],
        writes: Mapping[str, npt.ArrayLike],
        reads: Sequence[str],
    ) -> FactsExchange:
        tensors, indices = self.facts.table.tensors, self.facts.table.indices
        put: Mapping[str, Array]
        if isinstance(writes, Packed):
            put = writes
        else:
            put = {name: np.asarray(value, tensors[indices[name]].dtype) for name, value in writes.items()}
        calls = [] if entry is None else [(COMMANDS[entry], self._packed(entry, inputs))]
        return FactsExchange(self._conversation, entry, self._conversation.begin(calls, put, reads))

    def exchange(
        self,
        entry: str | None,
        inputs: Sequence[npt.ArrayLike] | None,
        writes: Mapping[str, npt.ArrayLike],
        reads: Sequence[str],
    ) -> Exchanged:
        return self.begin(entry, inputs or (), writes, reads).finish()

    def _packed(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> bytes:
        ports = self.facts.table.ports[entry]
        if len(inputs) != len(ports.inputs):
            raise UserError(
                f"{entry} has a wrong number of inputs",
                stage="run",
                expected=str(len(ports.inputs)),
                got=str(len(inputs)),
            )
        arrays = [np.asarray(value, port.dtype) for port, value in zip(ports.inputs, inputs, strict=True)]
        for port, array in zip(ports.inputs, arrays, strict=True):
            if array.shape != port.shape:
                raise UserError(
                    f"input '{port.name}' of {entry} has a wrong shape",
                    stage="run",
                    expected=str(list(port.shape)),
                    got=str(list(array.shape)),
                )
        return ports.packed(arrays)

    def close(self) -> None:
        """Closing twice is no error."""
        self._conversation.close()


@dataclass(frozen=True, eq=False)
class FactsExchange:
    """One that was begun."""

    conversation: Conversation
    entry: str | None
    begun: Exchange

    def finish(self) -> Exchanged:
        answers, made = self.conversation.finish(self.begun)
        if self.entry is None:
            return [], made
        ((status, body),) = answers
        if status == BAD_LABEL:
            raise UserError("a label is outside the classes", stage="run")
        if status != 0:
            raise DeviceError(f"the program answered {self.entry} with status {status}", stage="run")
        return self.conversation.table.ports[self.entry].unpacked(body), made
