"""What a save holds, and tg_saved.h, which tells it to `runtime/storage/tg_storage.c`.

A save is a record of `RECORD`, written twice, and a payload: a directory as JSON, then the tensors that training
changes, by name. Neither names an address or a target's layout, so that any program of the same training takes it.
`tilegrad/training/checkpoint.py` reads and writes the same on a desk.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.lifetimes import align
from tilegrad.codegen.c import INDENT, aligned_comments, filled
from tilegrad.codegen.image import HASH_WORDS, hash_of, hash_text, initial_bytes
from tilegrad.codegen.texts import runtime_text
from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import RESET_FLAG, Program, Role, StateTensor
from tilegrad.recipe.storage import Storage

MAGIC = int.from_bytes(b"TGCK", "little")
VERSION = 1
RECORD = struct.Struct(f"<II{4 * HASH_WORDS}sIIIIIIQQIIIIII")
"""As in tg_storage.c; the last word is the CRC-32 of those before it."""
IS_ACCUMULATING = 1
RECORDS = 2


@dataclass(frozen=True)
class Saved:
    """The tensors of a save, in order: always; in the middle of an accumulation, too; never, though it needs them."""

    always: tuple[StateTensor, ...]
    gradients: tuple[StateTensor, ...]
    frozen: tuple[StateTensor, ...]

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.type.size_bytes for tensor in self.always)

    @property
    def gradient_bytes(self) -> int:
        return sum(tensor.type.size_bytes for tensor in self.gradients)


def saved(program: Program) -> Saved:
    """All that an entry writes, and what a firmware may set (the learning rate); the rest stays as it was compiled."""
    written = {state for entry in program.entries.values() for _, state in entry.writes}
    always, gradients, frozen = [], [], []
    for tensor in sorted(program.state, key=lambda tensor: tensor.name.encode()):
        if tensor.name == RESET_FLAG or tensor.role is Role.GUARD:
            continue  # the record says whether there are gradients; a copy of the last good state is none to keep
        if tensor.role is Role.GRADIENT:
            gradients.append(tensor)
        elif tensor.name in written or tensor.role is Role.HYPER:
            always.append(tensor)
        elif tensor.role in (Role.FROZEN, Role.STATISTIC):
            frozen.append(tensor)
    return Saved(tuple(always), tuple(gradients), tuple(frozen))


def saved_hash(program: Program) -> bytes:
    """Of the model and of what trains in it; not of values, batch, rates, seeds or the target."""
    kinds = saved(program)
    tensors = [[[tensor.name, str(tensor.type)] for tensor in kind] for kind in (kinds.always, kinds.frozen)]
    return hash_of(program, {"version": VERSION, "tensors": tensors, "loss": str(program.loss)})


def recipe_facts(program: Program) -> dict[str, Any]:
    """The recipe as JSON has it: a run goes on under the same one."""

    def plain(value: object) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            name = {"name": value.name} if hasattr(value, "name") else {}
            return name | {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    facts = plain(program.recipe)
    if program.recipe.store.is_plain:  # as before there was another way
        del facts["store"]
    else:
        facts["store"] = {what: facts["store"][what] for what in ("activations", "optimizer")}
    return {**facts, "loss": str(program.loss)}


def directory(program: Program, target: str) -> bytes:
    """What a reader who does not have the model needs to know, one tensor a line."""
    kinds = saved(program)
    head = {"model": program.name, "target": target, "recipe": recipe_facts(program)}
    rows = [
        json.dumps([tensor.name, tensor.role.value, str(tensor.type.dtype), list(tensor.type.shape)])
        for tensor in (*kinds.always, *kinds.gradients)
    ]
    return (json.dumps(head)[:-1] + ', "tensors": [\n' + ",\n".join(rows) + "\n]}").encode("ascii")


def little_endian(array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


def frozen_crc(program: Program, values: Mapping[str, npt.NDArray[Any]] | None = None) -> int:
    """Of what is not saved; `values` where it is not what the program begins with."""
    crc = 0
    for tensor in saved(program).frozen:
        given = (values or {}).get(tensor.name)
        crc = zlib.crc32(initial_bytes(tensor) if given is None else little_endian(given), crc)
    return crc


def save_bytes(program: Program, target: str, page_bytes: int, *, with_gradients: bool = False) -> int:
    """Of a slot that a save fills."""
    kinds = saved(program)
    payload = len(directory(program, target)) + kinds.tensor_bytes + (kinds.gradient_bytes if with_gradients else 0)
    return RECORDS * align(RECORD.size, page_bytes) + payload


@dataclass(frozen=True)
class SaveCost:
    """Of one save: bytes of its slot between updates and in the middle of one, and sectors to erase."""

    save_bytes: int
    largest_bytes: int
    erases: int
    sector_bytes: int

    def as_json(self) -> dict[str, int]:
        return {
            "save_bytes": self.save_bytes,
            "largest_save_bytes": self.largest_bytes,
            "sector_bytes": self.sector_bytes,
            "erases_per_save": self.erases,
        }


def save_cost(program: Program, target: str, storage: Storage) -> SaveCost:
    """What a save takes of a storage; one that is too small is refused."""
    between = save_bytes(program, target, storage.page_bytes)
    slot = align(between, storage.sector_bytes)
    if 2 * slot > storage.size_bytes:
        largest = max(saved(program).always, key=lambda tensor: tensor.type.size_bytes)
        raise DoesNotFit(
            f"two saves of '{program.name}' do not fit into the storage",
            stage="storage",
            expected=f"at most {storage.size_bytes} bytes, two slots in sectors of {storage.sector_bytes}",
            got=f"{2 * slot} bytes: {len(saved(program).always)} tensors, the largest '{largest.name}' {largest.type}",
            hint="train fewer parameters (--train last:K), or with a stateless optimizer (sgd)",
        )
    within = save_bytes(program, target, storage.page_bytes, with_gradients=True)
    return SaveCost(between, within, slot // storage.sector_bytes, storage.sector_bytes)


def saved_header(plan: Plan, storage: Storage) -> str:
    """tg_saved.h."""
    program = plan.schedule.program
    kinds = saved(program)
    places = {tensor.name: place for place, tensor in enumerate(program.state)}
    text = directory(program, plan.schedule.target.name).decode("ascii")
    cost = save_cost(program, plan.schedule.target.name, storage)

    def rows(tensors: Sequence[StateTensor]) -> str:
        """C has no array of nothing."""
        return filled([str(places[tensor.name]) for tensor in tensors] or ["0"]).replace("\n", f"\n{INDENT}")

    values = {
        "storage_bytes": storage.size_bytes,
        "sector_bytes": storage.sector_bytes,
        "page_bytes": storage.page_bytes,
        "save_bytes": cost.save_bytes,
        "largest_save_bytes": cost.largest_bytes,
        "hash": hash_text(saved_hash(program)),
        "saved_count": len(kinds.always),
        "gradient_count": len(kinds.gradients),
        "frozen_count": len(kinds.frozen),
        "flag": places.get(RESET_FLAG, -1),
        "directory_bytes": len(text),
        "saved": rows((*kinds.always, *kinds.gradients)),
        "frozen": rows(kinds.frozen),
        "directory": re.sub(r'([\\"?])', r"\\\1", text).replace("\n", '\\n"\n    "'),
    }
    return aligned_comments(runtime_text("project/tg_saved.h", values=values))
