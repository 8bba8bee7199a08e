"""The data and the expected results that lie beside a training graph, in the forms that its makers write.

ONNX Runtime's samples have `reference.npz` (X, Y, losses, eval_loss) and `params_afterN.npz`. The closest peer has
`inputs.npz` and `outputs.npz`: arrays by input name, or `arr_NNNN` in the order of the inputs without gradient buffers
with `mbK_arr_NNNN` for mini-batch K and `meta_*` about the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilegrad.errors import UserError
from tilegrad.frontend.given.files import GivenFiles
from tilegrad.frontend.weights import Array, Arrays
from tilegrad.ir.given import GivenReferences

UPDATED = "_updated"
_RESULTS = ("losses", "loss", "eval_loss")
_META = ("meta_n_batches", "meta_data_size", "meta_n_accum", "meta_n_steps")
_AFTER = re.compile(r"params_after(\d+)")
_BASE = re.compile(r"arr_(\d{4})")
_LATER = re.compile(r"mb(\d+)_arr_(\d{4})")


@dataclass(frozen=True, eq=False)
class Stored:
    """`batches` by input name, `weights` initial values by input name."""

    batches: tuple[dict[str, Array], ...] = ()
    weights: Arrays = field(default_factory=dict)
    data_names: tuple[str, ...] | None = None
    references: GivenReferences | None = None
    accumulate: int | None = None
    steps: int | None = None
    notes: tuple[str, ...] = ()


def positional_data_count(files: GivenFiles) -> int | None:
    """How many inputs are data, where mini-batches after the first say so."""
    later = {int(found[2]) for name in files.arrays.get("inputs", {}) if (found := _LATER.fullmatch(name))}
    return max(later) + 1 if later else None


def read_stored(files: GivenFiles, inputs: Sequence[str], data: Sequence[str], parameters: Sequence[str]) -> Stored:
    """`inputs` are the graph's without gradient buffers, in order; `data` those that are fed."""
    if "inputs" in files.arrays:
        return _fixture(files, inputs, data, parameters)
    if "reference" in files.arrays:
        return _artifacts(files, data)
    return Stored()


def _artifacts(files: GivenFiles, data: Sequence[str]) -> Stored:
    held = files.arrays["reference"]
    fed = {name: array for name, array in held.items() if name not in _RESULTS}
    by_name = {name.lower(): array for name, array in fed.items()}
    if len(fed) != len(data):
        raise UserError(
            f"'{files.place}': reference.npz has not the graph's data",
            stage="import",
            expected=", ".join(f"'{name}'" for name in data),
            got=", ".join(f"'{name}'" for name in fed) or "nothing",
        )
    ordered = dict(zip(data, fed.values(), strict=True))
    batch = {name: by_name.get(name.lower(), ordered[name]) for name in data}
    losses = tuple(float(value) for value in held.get("losses", np.zeros(0)).reshape(-1))
    after = next((found for name in files.arrays if (found := _AFTER.fullmatch(name))), None)
    count = int(after[1]) if after else len(losses)
    weights = files.arrays[after[0]] if after else {}
    evaluation = float(held["eval_loss"].reshape(-1)[0]) if "eval_loss" in held else None
    names = " and ".join(["reference.npz", *([f"{after[0]}.npz"] if after else [])])
    references = GivenReferences(names, losses, weights, evaluation, count) if losses or weights else None
    return Stored((batch,), {}, tuple(data), references, None, len(losses) or None)


def _fixture(files: GivenFiles, inputs: Sequence[str], data: Sequence[str], parameters: Sequence[str]) -> Stored:
    held = files.arrays["inputs"]
    metas = {name: int(array.reshape(-1)[0]) for name, array in held.items() if name in _META and array.size}
    unknown = [name for name in held if name.startswith("meta_") and name not in _META]
    notes = tuple(f"inputs.npz: '{name}' is not known and was left out" for name in unknown)
    base = sorted(name for name in held if _BASE.fullmatch(name))
    if base:
        batches, weights = _positional(files, held, base, inputs, data)
    else:
        _expect(files, held, data)
        batches, weights = ({name: held[name] for name in data},), {n: a for n, a in held.items() if n in parameters}
    batches = batches[: metas.get("meta_data_size") or len(batches)]
    accumulate = metas.get("meta_n_accum") or None
    expected = files.arrays.get("outputs", {})
    losses = tuple(float(v) for name, a in expected.items() if "loss" in name.lower() for v in a.reshape(-1))
    after = {name.removesuffix(UPDATED): array for name, array in expected.items() if "loss" not in name.lower()}
    strange = sorted(set(after) - set(parameters))
    if strange:
        raise UserError(
            f"'{files.place}': outputs.npz has weights that do not train",
            stage="import",
            expected=", ".join(f"'{name}'" for name in parameters),
            got=", ".join(f"'{name}' {list(after[name].shape)}" for name in strange),
        )
    count = metas.get("meta_n_batches") or len(losses) or (len(batches) if base else accumulate or 1)
    steps = metas.get("meta_n_steps") or max(1, count // (accumulate or 1))
    references = GivenReferences("outputs.npz", losses, after, None, steps * (accumulate or 1)) if expected else None
    return Stored(batches, weights, tuple(data), references, accumulate, steps, notes)


def _expect(files: GivenFiles, held: Mapping[str, Array], data: Sequence[str]) -> None:
    missing = [name for name in data if name not in held]
    if missing:
        raise UserError(
            f"'{files.place}': inputs.npz has no array for the input '{missing[0]}'",
            stage="import",
            expected=", ".join(f"'{name}'" for name in data),
            got=", ".join(f"'{name}' {list(array.shape)}" for name, array in held.items()),
        )


def _positional(
    files: GivenFiles, held: Mapping[str, Array], base: Sequence[str], inputs: Sequence[str], data: Sequence[str]
) -> tuple[tuple[dict[str, Array], ...], Arrays]:
    if len(base) not in (len(inputs), len(inputs) - 1):  # the reset flag may be left out
        raise UserError(
            f"'{files.place}': inputs.npz and the graph disagree",
            stage="import",
            expected=f"{len(inputs)} arrays: {', '.join(inputs)}",
            got=f"{len(base)}: {', '.join(f'{name} {list(held[name].shape)}' for name in base)}",
        )
    named = {name: held[array] for name, array in zip(inputs, base, strict=False)}
    keys = dict(zip(inputs, base, strict=False))
    later = sorted({int(found[1]) for name in held if (found := _LATER.fullmatch(name))})
    batches = [{name: named[name] for name in data}]
    for number in later:
        batches.append({name: held.get(f"mb{number}_{keys[name]}", named[name]) for name in data})
    weights = {name: array for name, array in named.items() if name not in data}
    return tuple(batches), weights
