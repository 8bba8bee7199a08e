"""Where each tensor and each input of a program is: all that has to be known of it to talk to it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilegrad.codegen.harness import port_offsets
from tilegrad.codegen.interface import Port, entry_ports
from tilegrad.compiled import Compiled
from tilegrad.devices.packed import Field, Layout
from tilegrad.devices.values import Array
from tilegrad.ir.program import ENTRIES


@dataclass(frozen=True)
class TensorFacts:
    """A state tensor, or an input or output at `offset` of its payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @cached_property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @staticmethod
    def from_json(row: Sequence[Any]) -> TensorFacts:
        name, dtype, shape, offset = row
        return TensorFacts(str(name), str(np.dtype(dtype)), tuple(int(n) for n in shape), int(offset))

    def as_json(self) -> list[Any]:
        return [self.name, self.dtype, list(self.shape), self.offset]

    def unpacked(self, body: bytes, at: int) -> Array:
        count = self.size_bytes // np.dtype(self.dtype).itemsize
        return np.frombuffer(body, self.dtype, count, at).reshape(self.shape).copy()


@dataclass(frozen=True)
class PortFacts:
    """Inputs and outputs of an entry, and the sizes of their payloads."""

    inputs: tuple[TensorFacts, ...]
    input_bytes: int
    outputs: tuple[TensorFacts, ...]
    output_bytes: int

    def packed(self, arrays: Sequence[Array]) -> bytes:
        """Inputs as a payload."""
        payload = bytearray(self.input_bytes)
        for port, array in zip(self.inputs, arrays, strict=True):
            payload[port.offset : port.offset + array.nbytes] = array.tobytes()
        return bytes(payload)

    def unpacked(self, body: bytes) -> list[Array]:
        return [port.unpacked(body, port.offset) for port in self.outputs]


@dataclass(frozen=True)
class Wanted:
    """Tensors to read: where they will lie, their indices as a request has them, and their bytes together."""

    layout: Layout
    indices: bytes
    size: int


@dataclass(frozen=True)
class Table:
    """`tensors` are in the order of the program's own table."""

    tensors: tuple[TensorFacts, ...]
    ports: Mapping[str, PortFacts]

    @cached_property
    def indices(self) -> dict[str, int]:
        return {tensor.name: i for i, tensor in enumerate(self.tensors)}

    @cached_property
    def _known(self) -> dict[tuple[str, ...], Wanted]:
        return {}

    def wanted(self, names: tuple[str, ...]) -> Wanted:
        """The same object for the same tensors."""
        if names not in self._known:
            indices = [self.indices[name] for name in names]
            tensors = [self.tensors[i] for i in indices]
            layout = Layout(tuple(Field(each.name, np.dtype(each.dtype), each.shape) for each in tensors))
            packed = struct.pack(f"<{len(indices)}I", *indices)
            self._known[names] = Wanted(layout, packed, sum(each.size_bytes for each in tensors))
        return self._known[names]


def table_of(compiled: Compiled) -> Table:
    def listed(ports: Sequence[Port]) -> tuple[tuple[TensorFacts, ...], int]:
        offsets, size = port_offsets(ports)
        rows = zip(ports, offsets, strict=True)
        return tuple(TensorFacts(p.value, str(p.type.dtype.numpy), p.type.shape, at) for p, at in rows), size

    ports = {entry: entry_ports(compiled.plan, entry) for entry in ENTRIES}
    return Table(
        tuple(TensorFacts(each.name, str(each.type.dtype.numpy), each.type.shape) for each in compiled.program.state),
        {entry: PortFacts(*listed(inputs), *listed(outputs)) for entry, (inputs, outputs) in ports.items()},
    )
