"""ONNX Runtime's training checkpoint: FlatBuffers, by its published schema (`ort_training_checkpoint.fbs`, `ort.fbs`).

Only what is read here is described: tables by the order of their fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flatbuffers import number_types  # type: ignore[import-untyped]
from flatbuffers.table import Table  # type: ignore[import-untyped]

from tilegrad.errors import UserError
from tilegrad.files.regular import open_regular
from tilegrad.frontend.onnx_values import dtype_of, element_type_name
from tilegrad.frontend.weights import Array, Arrays

IDENTIFIER = b"ODTC"
NEWEST_VERSION = 2
_MOST_BYTES = 1 << 31
_DAMAGED = (struct.error, IndexError, ValueError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """`slots` are the moments of each parameter, `step` is how many updates they have seen."""

    trained: Arrays
    frozen: Arrays
    step: int = 0
    learning_rate: float | None = None
    slots: dict[str, tuple[Array, ...]] = field(default_factory=dict)


class _Record:
    """A table, with its fields by number."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.table = Table(data, position)

    def _place(self, number: int) -> int:
        offset = self.table.Offset(4 + 2 * number)
        return int(offset and offset + self.table.Pos)

    def integer(self, number: int, flags: type = number_types.Int64Flags) -> int:
        place = self._place(number)
        return int(self.table.Get(flags, place)) if place else 0

    def real(self, number: int) -> float:
        place = self._place(number)
        return float(self.table.Get(number_types.Float32Flags, place)) if place else 0.0

    def flag(self, number: int) -> bool:
        place = self._place(number)
        return bool(self.table.Get(number_types.BoolFlags, place)) if place else False

    def text(self, number: int) -> str:
        place = self._place(number)
        return bytes(self.table.String(place)).decode() if place else ""

    def record(self, number: int) -> _Record | None:
        place = self._place(number)
        return _Record(self.data, self.table.Indirect(place)) if place else None

    def records(self, number: int) -> Iterator[_Record]:
        start, count = self._vector(number)
        for i in range(count):
            yield _Record(self.data, self.table.Indirect(start + 4 * i))

    def raw(self, number: int, item_bytes: int) -> bytes:
        start, count = self._vector(number)
        if start + count * item_bytes > len(self.data):
            raise ValueError("a vector ends behind the file")
        return self.data[start : start + count * item_bytes]

    def _vector(self, number: int) -> tuple[int, int]:
        offset = self.table.Offset(4 + 2 * number)
        return (int(self.table.Vector(offset)), int(self.table.VectorLen(offset))) if offset else (0, 0)


def read_checkpoint(path: Path) -> Checkpoint:
    try:
        with open_regular(path, stage="import") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot read '{path}'", stage="import", got=error.strerror or str(error)) from error
    if data[4:8] != IDENTIFIER:
        raise UserError(
            f"'{path}' is no checkpoint of ONNX Runtime",
            stage="import",
            expected=f"FlatBuffers with the identifier {IDENTIFIER.decode()}",
            got=repr(data[4:8]),
        )
    try:
        return _checkpoint(_Record(data, struct.unpack_from("<I", data)[0]), path)
    except _DAMAGED as error:
        raise UserError(f"the checkpoint '{path}' is damaged", stage="import", got=str(error)) from error


def _checkpoint(root: _Record, path: Path) -> Checkpoint:
    version = root.integer(0, number_types.Int32Flags)
    if version > NEWEST_VERSION:
        raise UserError(
            f"the checkpoint '{path}' is of a newer version",
            stage="import",
            expected=f"version {NEWEST_VERSION} or before",
            got=str(version),
        )
    module = root.record(1)
    if module is None:
        raise ValueError("it holds no module")
    if module.flag(2) or module.flag(3):
        what = "holds names without numbers" if module.flag(2) else "keeps its numbers in another file"
        raise UserError(f"the checkpoint '{path}' {what}", stage="import", hint="save it whole")
    trained, frozen = (_tensors(module.records(number), path) for number in (0, 1))
    step, rate, slots = 0, None, {}
    for group in root.records(2):
        step, rate = group.integer(1), group.real(2)
        for state in group.records(3):
            slots[state.text(0)] = tuple(_tensors(state.records(1), path).values())
    return Checkpoint(trained, frozen, step, rate, slots)


def _tensors(records: Iterator[_Record], path: Path) -> Arrays:
    found: Arrays = {}
    for record in records:
        name = record.text(0)
        shape = tuple(int(extent) for extent in np.frombuffer(record.raw(2, 8), "<i8"))
        kind = record.integer(3, number_types.Int32Flags)
        dtype = dtype_of(kind)
        if dtype is None:
            raise UserError(
                f"'{name}' in the checkpoint '{path}' is of element type {element_type_name(kind)}",
                stage="import",
                expected="f32, an integer type or bool",
            )
        flat = np.frombuffer(record.raw(4, 1), dtype.numpy.newbyteorder("<")).astype(dtype.numpy)
        found[name] = flat.reshape(shape)
    return found
