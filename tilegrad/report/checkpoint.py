"""Checkpoints for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType
from rich.text import Text

from tilegrad.report.format import bytes_text, count_text, error_text, plural, shape_text
from tilegrad.report.output import heading, table
from tilegrad.training.checkpoint import Checkpoint, flat_recipe


def checkpoint_json(found: Checkpoint, path: Path) -> dict[str, Any]:
    record = found.record
    return {
        "file": str(path),
        "model": found.model,
        "target": found.target,
        "version": record.version,
        "model_hash": record.model_hash.hex(),
        "sequence": record.sequence,
        "minibatches": found.minibatches,
        "updates": found.updates,
        "accumulating": found.is_accumulating,
        "note": found.note or None,
        "recipe": dict(found.recipe),
        "bytes": record.used_bytes,
        "slot_bytes": record.slot_bytes,
        "sector_bytes": record.sector_bytes,
        "page_bytes": record.page_bytes,
        "erases": record.erases,
        "erases_per_save": record.erases_per_save,
        "erases_per_1000_updates": found.erases_per_1000_updates(),
        "tensors": [
            {"name": name, "role": found.roles[name], "shape": list(array.shape), "dtype": str(array.dtype)}
            | ({"norm": _norm(array)} if array.dtype.kind == "f" else {"value": array.tolist()})
            for name, array in found.tensors.items()
        ],
    }


def _norm(array: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(array.astype(np.float64).ravel()))


def checkpoint_report(found: Checkpoint, path: Path) -> Iterator[RenderableType]:
    record = found.record
    yield heading(f"{path}: {found.model}, saved by {found.target}")
    yield Text(
        f"save {count_text(record.sequence)}, after {plural(found.updates, 'update')} and "
        f"{plural(found.minibatches, 'mini-batch').replace('batchs', 'batches')}"
        + (", in the middle of an update" if found.is_accumulating else "")
    )
    if found.note:
        yield Text(f"note: {found.note}")
    yield Text(", ".join(f"{key} {value}" for key, value in flat_recipe(found.recipe).items() if value is not None))
    yield Text()
    made = table("tensor", "role", "shape", "bytes", "norm", right=("bytes", "norm"), spare=("shape",))
    for name, array in found.tensors.items():
        is_number = array.dtype.kind != "f" and array.size == 1
        shown = str(array.item()) if is_number else f"{_norm(array):.6g}"
        made.add_row(name, found.roles[name], shape_text(array.shape), count_text(array.nbytes), shown)
    yield made
    yield Text()
    yield Text(
        f"a save: {bytes_text(record.used_bytes)} of a slot of {bytes_text(record.slot_bytes)}; "
        f"{wear_text(record.erases_per_save, record.sector_bytes, found.erases_per_1000_updates())}"
    )


def wear_text(erases_per_save: int, sector_bytes: int, per_1000_updates: float | None) -> str:
    """What saving costs a flash."""
    often = "" if per_1000_updates is None else f", {per_1000_updates:,.0f} in 1,000 updates"
    return f"erases of {bytes_text(sector_bytes)}: {count_text(erases_per_save)} a save{often}"


@dataclass(frozen=True)
class TensorDifference:
    """`differing` elements have other bits; None where the tensors cannot be compared."""

    name: str
    role: str
    elements: int
    differing: int | None
    largest: float | None
    relative: float | None
    why: str = ""

    @property
    def is_same(self) -> bool:
        return self.differing == 0


def compare_checkpoints(first: Checkpoint, second: Checkpoint) -> tuple[TensorDifference, ...]:
    return tuple(_compared(name, first, second) for name in {**first.tensors, **second.tensors})


def _compared(name: str, first: Checkpoint, second: Checkpoint) -> TensorDifference:
    a, b = first.tensors.get(name), second.tensors.get(name)
    role = first.roles.get(name) or second.roles[name]
    if a is None or b is None:
        there = a if a is not None else b
        assert there is not None
        return TensorDifference(name, role, there.size, None, None, None, "only in " + ("G" if a is None else "F"))
    if a.shape != b.shape or a.dtype != b.dtype:
        return TensorDifference(name, role, a.size, None, None, None, f"{_type(a)} and {_type(b)}")
    apart = (_bits(a) != _bits(b)).reshape(a.size, -1).any(axis=1) if a.size else np.zeros(0, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64)).ravel()
    largest = float(difference.max()) if a.size else 0.0
    norm = _norm(a)
    relative = float(np.linalg.norm(difference)) / norm if norm > 0.0 else float(np.linalg.norm(difference))
    return TensorDifference(name, role, a.size, int(apart.sum()), largest, relative)


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _type(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"


def diff_json(
    first: Checkpoint, second: Checkpoint, path: Path, other: Path, rows: Sequence[TensorDifference]
) -> dict[str, Any]:
    return {
        "files": [str(path), str(other)],
        "models": [first.model, second.model],
        "updates": [first.updates, second.updates],
        "minibatches": [first.minibatches, second.minibatches],
        "recipe": _recipe_differences(first.recipe, second.recipe),
        "same": all(row.is_same for row in rows),
        "tensors": [
            {
                "name": row.name,
                "role": row.role,
                "elements": row.elements,
                "differing": row.differing,
                "largest_difference": row.largest,
                "relative_difference": row.relative,
                "reason": row.why or None,
            }
            for row in rows
        ],
    }


def _recipe_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    a, b = flat_recipe(first), flat_recipe(second)
    return {key: [a.get(key), b.get(key)] for key in {**a, **b} if a.get(key) != b.get(key)}


def diff_report(
    first: Checkpoint, second: Checkpoint, path: Path, other: Path, rows: Sequence[TensorDifference]
) -> Iterator[RenderableType]:
    for found, name in ((first, path), (second, other)):
        yield Text(f"{name}: {found.model} after {plural(found.updates, 'update')}, saved by {found.target}")
    for key, (a, b) in _recipe_differences(first.recipe, second.recipe).items():
        yield Text(f"{key}: {a} and {b}")
    yield Text()
    apart = [row for row in rows if not row.is_same]
    if not apart:
        yield Text(f"the same bits in all {plural(len(rows), 'tensor')}")
        return
    right = ("elements that differ", "of", "largest difference", "relative")
    made = table("tensor", "role", *right, right=right, spare=("of",))
    for row in apart:
        figures = (error_text(row.largest), error_text(row.relative)) if row.differing is not None else (row.why, "-")
        differing = "-" if row.differing is None else count_text(row.differing)
        made.add_row(row.name, row.role, differing, count_text(row.elements), *figures)
    yield made
    yield Text(f"the same bits in {count_text(len(rows) - len(apart))} of {plural(len(rows), 'tensor')}")
