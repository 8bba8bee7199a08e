"""What a device saved, read and written on a desk: the same bytes as `runtime/storage/tg_storage.c`, from its format.

A file is a storage as it is: a flash's dump, what `tg_storage_file.c` wrote, or `train --checkpoint`. Saves are found
by their records, wherever in the file they are, so that a dump may begin before the storage and end behind it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.lifetimes import align
from tilegrad.build.files import write_file
from tilegrad.codegen.saved import (
    IS_ACCUMULATING,
    MAGIC,
    RECORD,
    RECORDS,
    VERSION,
    directory,
    frozen_crc,
    little_endian,
    recipe_facts,
    saved,
    saved_hash,
)
from tilegrad.errors import UserError
from tilegrad.ir.program import RESET_FLAG, Program
from tilegrad.ir.types import DType
from tilegrad.recipe.storage import PAGE_BYTES, SECTOR_BYTES

Arrays = dict[str, npt.NDArray[Any]]
STAGE = "checkpoint"
_NAMES_TOLD = 8
_DTYPES = {dtype.short: dtype for dtype in DType}
_KNOWN_FILES = {
    b"PK\x03\x04": "an archive, such as .npz or .pt",
    b"TGIM": "weights.bin, the initial state of a program",
    b"\x93NUM": "a single NumPy array",
}
_NOT_COMPARED = ("guard", "train")
"""Of a recipe: a guard does not change the bits of a run that it does not stop; what trains, the tensors say."""


@dataclass(frozen=True)
class Record:
    """What says whose a save is, where its payload lies and how far the training was."""

    magic: int
    version: int
    model_hash: bytes
    sequence: int
    flags: int
    directory_bytes: int
    payload_bytes: int
    payload_crc: int
    payload_offset: int
    minibatches: int
    updates: int
    frozen_crc: int
    slot_bytes: int
    sector_bytes: int
    page_bytes: int
    erases: int

    @property
    def is_accumulating(self) -> bool:
        return bool(self.flags & IS_ACCUMULATING)

    def packed(self) -> bytes:
        body = RECORD.pack(*(getattr(self, name) for name in self.__dataclass_fields__), 0)[:-4]
        return body + struct.pack("<I", zlib.crc32(body))

    @property
    def stride_bytes(self) -> int:
        """From the start of the slot to its second record."""
        return align(RECORD.size, max(self.page_bytes, 1))

    @property
    def used_bytes(self) -> int:
        """Of its slot."""
        return self.payload_offset + self.payload_bytes

    @property
    def erases_per_save(self) -> int:
        return -(-self.used_bytes // max(self.sector_bytes, 1))


@dataclass(frozen=True)
class Checkpoint:
    """The last complete save of a file. `roles` says of each tensor what it is; `note` what else the file holds."""

    record: Record
    model: str
    target: str
    recipe: Mapping[str, Any]
    tensors: Mapping[str, npt.NDArray[Any]]
    roles: Mapping[str, str]
    note: str = ""

    @property
    def minibatches(self) -> int:
        return self.record.minibatches

    @property
    def updates(self) -> int:
        return self.record.updates

    @property
    def is_accumulating(self) -> bool:
        return self.record.is_accumulating

    @property
    def parameters(self) -> Arrays:
        return {name: array for name, array in self.tensors.items() if self.roles[name] == "parameter"}

    def with_role(self, *roles: str) -> Arrays:
        return {name: array for name, array in self.tensors.items() if self.roles[name] in roles}

    def erases_per_1000_updates(self) -> float | None:
        """Over the storage's life, as its saves have counted; None before the first update."""
        return 1000.0 * self.record.erases / self.updates if self.updates else None

    def state_for(self, program: Program) -> Arrays:
        """What a session is given so that it goes on from here."""
        state = dict(self.tensors)
        if any(tensor.name == RESET_FLAG for tensor in program.state):
            state[RESET_FLAG] = np.array([not self.is_accumulating])
        return state


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The last complete save in a file."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"no checkpoint '{path}'", stage=STAGE, hint="tg_save and `train --checkpoint F` write one"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}", stage=STAGE) from error
    return parse_checkpoint(content, str(path))


def parse_checkpoint(content: bytes, path: str) -> Checkpoint:
    found = _records(content)
    if not found:
        kind = _KNOWN_FILES.get(content[:4], "none of its records" if content else "an empty file")
        raise UserError(
            f"'{path}' is no checkpoint",
            stage=STAGE,
            expected="what tg_save or `train --checkpoint` wrote, or a dump of a flash that holds it",
            got=f"{kind}, {len(content)} bytes",
        )
    complete = [(record, start) for record, start in map(_as_second, found) if _is_complete(content, record, start)]
    latest = max(record.sequence for record, _ in found)
    if not complete:
        raise UserError(
            f"'{path}' holds no complete save",
            stage=STAGE,
            expected="one whose bytes have the CRC-32 that its record names",
            got=f"save {latest}, cut off or damaged",
            hint="a storage has two slots: was all of it copied?",
        )
    record, start = max(complete, key=lambda each: each[0].sequence)
    if record.version != VERSION:
        raise UserError(
            f"'{path}' is in another version of the format",
            stage=STAGE,
            expected=f"version {VERSION}",
            got=f"version {record.version}",
            hint="a newer tilegrad wrote it: update this one" if record.version > VERSION else None,
        )
    note = ""
    if latest > record.sequence:
        note = f"save {latest} was cut off or is damaged: this is the last complete one"
    payload = content[start + record.payload_offset : start + record.used_bytes]
    return _from_payload(record, payload, path, note)


def _records(content: bytes) -> list[tuple[Record, int]]:
    """Every record that is whole, and where."""
    found = []
    magic = struct.pack("<I", MAGIC)
    at = content.find(magic)
    while at >= 0:
        body = content[at : at + RECORD.size]
        if len(body) == RECORD.size and zlib.crc32(body[:-4]) == struct.unpack("<I", body[-4:])[0]:
            found.append((Record(*RECORD.unpack(body)[:-1]), at))
        at = content.find(magic, at + 1)
    return found


def _as_second(found: tuple[Record, int]) -> tuple[Record, int]:
    """A record and the start of its slot, if it is the one that is written last."""
    record, at = found
    return record, at - record.stride_bytes


def _is_complete(content: bytes, record: Record, start: int) -> bool:
    if start < 0:
        return False
    first = content[start : start + RECORD.size]
    if record.version != VERSION:  # of which no more is known
        return len(first) == RECORD.size and first == content[start + record.stride_bytes :][: RECORD.size]
    end = start + record.used_bytes
    payload = content[start + record.payload_offset : end]
    return end <= len(content) and zlib.crc32(payload) == record.payload_crc


def _from_payload(record: Record, payload: bytes, path: str, note: str) -> Checkpoint:
    try:
        told = json.loads(payload[: record.directory_bytes])
        tensors: Arrays = {}
        roles: dict[str, str] = {}
        at = record.directory_bytes
        for name, role, dtype, shape in told["tensors"]:
            if role == "gradient" and not record.is_accumulating:
                continue
            kind = _DTYPES[dtype]
            size = prod(shape)
            raw = np.frombuffer(payload, kind.numpy.newbyteorder("<"), count=size, offset=at)
            tensors[str(name)] = raw.astype(kind.numpy).reshape(shape)
            roles[str(name)] = str(role)
            at += size * kind.size_bytes
        if at != len(payload):
            raise ValueError(f"{len(payload)} bytes in all, {at} of them tensors that it names")
        return Checkpoint(record, str(told["model"]), str(told["target"]), dict(told["recipe"]), tensors, roles, note)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        raise UserError(
            f"the directory of '{path}' says something else than its bytes",
            stage=STAGE,
            got=f"{type(error).__name__}: {error}".splitlines()[0],
        ) from error


def expect_same_training(found: Checkpoint, program: Program, path: str | Path) -> None:
    """Refuses a checkpoint that this program cannot go on from, bit for bit."""
    if found.record.model_hash != saved_hash(program):
        _refuse_model(found, program, path)
    if found.record.frozen_crc != frozen_crc(program):
        raise UserError(
            f"checkpoint '{path}' was trained beside other frozen weights",
            stage=STAGE,
            expected=f"those of '{program.name}' as it is here: {len(saved(program).frozen)} tensors that do not train",
            got="others, which no checkpoint holds",
            hint="train from the same model file, seed and --weights as when it was saved",
        )
    theirs, ours = flat_recipe(found.recipe), flat_recipe(recipe_facts(program))
    other = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    other = [key for key in other if key.split(".")[0] not in _NOT_COMPARED]
    if other:
        raise UserError(
            f"checkpoint '{path}' was trained under another recipe",
            stage=STAGE,
            expected=", ".join(f"{key} {theirs.get(key)}" for key in other),
            got=", ".join(f"{key} {ours.get(key)}" for key in other),
            hint="go on under the same one, or start anew from its weights: `tilegrad checkpoint export`",
        )
    if found.is_accumulating and not saved(program).gradients:
        raise UserError(
            f"checkpoint '{path}' was saved in the middle of an update, whose gradients this program does not keep",
            stage=STAGE,
            expected="a save after tg_update, or a device without a scratchpad",
            got=f"mini-batch {found.minibatches}, {found.updates} updates",
        )


def flat_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as one level: `optimizer.lr`."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in flat_recipe(value).items()}
        else:
            flat[key] = value
    return flat


def _refuse_model(found: Checkpoint, program: Program, path: str | Path) -> None:
    """Says which tensors are others, where any are."""
    theirs = {name: f"{DType.from_numpy(a.dtype)}[{','.join(map(str, a.shape))}]" for name, a in found.tensors.items()}
    theirs = {name: text for name, text in theirs.items() if found.roles[name] != "gradient"}
    ours = {tensor.name: str(tensor.type) for tensor in saved(program).always}
    apart = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    more = f", and {len(apart) - _NAMES_TOLD} more" if len(apart) > _NAMES_TOLD else ""

    def told(of: Mapping[str, str]) -> str:
        if not apart:
            return ", with tensors of the same names and shapes"
        return " with " + ", ".join(f"'{name}' {of.get(name, 'missing')}" for name in apart[:_NAMES_TOLD]) + more

    raise UserError(
        f"checkpoint '{path}' is of another model",
        stage=STAGE,
        expected=f"'{program.name}'{told(ours)}",
        got=f"'{found.model}'{told(theirs)}",
        hint="the selection of what trains and the optimizer are part of it, too",
    )


@dataclass
class CheckpointFile:
    """A storage in a file: two slots, the last save in one and the one before it in the other.

    The file as a whole is replaced in one step, so that it is complete at any time.
    """

    path: Path
    program: Program
    target: str
    write: Callable[[Path, bytes], None] = write_file
    slots: list[bytes] = field(default_factory=lambda: [b"", b""])
    saves: int = 0
    erases: int = 0
    save_bytes: int = 0

    def save(self, state: Mapping[str, npt.NDArray[Any]], minibatches: int, updates: int) -> None:
        """`state` has every tensor of the program; with its reset flag off, gradients are saved as well."""
        kinds = saved(self.program)
        with_gradients = RESET_FLAG in state and not bool(np.asarray(state[RESET_FLAG]).any())
        tensors = (*kinds.always, *kinds.gradients) if with_gradients else kinds.always
        told = directory(self.program, self.target)
        payload = told + b"".join(little_endian(np.asarray(state[tensor.name])) for tensor in tensors)
        offset = RECORDS * align(RECORD.size, PAGE_BYTES)
        largest = offset + len(told) + kinds.tensor_bytes + kinds.gradient_bytes
        slot_bytes = align(largest, SECTOR_BYTES)
        self.saves += 1
        self.save_bytes = offset + len(payload)
        self.erases += self.erases_per_save
        record = Record(
            MAGIC,
            VERSION,
            saved_hash(self.program),
            self.saves,
            IS_ACCUMULATING if with_gradients else 0,
            len(told),
            len(payload),
            zlib.crc32(payload),
            offset,
            minibatches,
            updates,
            frozen_crc(self.program, state),
            slot_bytes,
            SECTOR_BYTES,
            PAGE_BYTES,
            self.erases,
        ).packed()
        padded = record.ljust(align(RECORD.size, PAGE_BYTES), b"\xff")
        self.slots[(self.saves + 1) % 2] = padded + padded + payload
        self.write(self.path, b"".join(slot.ljust(slot_bytes, b"\xff") for slot in self.slots))

    @property
    def sector_bytes(self) -> int:
        return SECTOR_BYTES

    @property
    def erases_per_save(self) -> int:
        return -(-self.save_bytes // SECTOR_BYTES)

    def continue_from(self, found: Checkpoint) -> None:
        """Counts on where a checkpoint left off."""
        self.saves = found.record.sequence
        self.erases = found.record.erases
