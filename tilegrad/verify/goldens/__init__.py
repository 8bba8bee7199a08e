"""What PyTorch gave for the zoo's models, shipped for machines that do not have PyTorch.

A golden holds the losses of 100 updates, and sketches of the first gradients and of the weights after some of them. It
knows the model, the data and the recipe it was made with by their hashes: where one differs it is refused, never used.
`python -m tilegrad.verify.goldens --update` makes them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilegrad.verify.compare import Reference
from tilegrad.verify.reference import Array, ReferenceRecipe
from tilegrad.verify.sketch import Sketch, sample_indices, sketch
from tilegrad.verify.torch_reference import Batch, ReferencePair

SNAPSHOTS = (1, 2, 3, 4, 5, 6, 7, 8, 20, 100)
SAMPLE_COUNTS = (32, 24, 16, 12, 8)
SIZE_LIMIT_BYTES = 60_000
_FORMAT = 1


@dataclass(frozen=True)
class Found:
    """A golden that covers a run, or why there is none."""

    reference: Reference | None
    reason: str = ""


def model_hash(model: onnx.ModelProto) -> str:
    """Of what the model computes: nodes, attributes and initializers; not of who wrote the file and when."""
    digest = hashlib.sha256()
    digest.update(repr(sorted((item.domain, item.version) for item in model.opset_import)).encode())
    for node in model.graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        digest.update(repr((node.op_type, list(node.input), list(node.output), attributes)).encode())
    for proto in model.graph.initializer:
        array = numpy_helper.to_array(proto)
        digest.update(repr((proto.name, array.shape, str(array.dtype))).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr([value.name for value in (*model.graph.input, *model.graph.output)]).encode())
    return digest.hexdigest()


def data_hashes(batches: Sequence[Batch]) -> list[str]:
    """One per mini-batch, of it and all before it, so that a shorter run can be recognised."""
    digest = hashlib.sha256()
    hashes = []
    for arrays in batches:
        for array in arrays:
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        hashes.append(digest.hexdigest()[:16])
    return hashes


def find(
    name: str,
    model: onnx.ModelProto,
    recipe: ReferenceRecipe,
    trainable: Sequence[str],
    batches: Sequence[Batch],
) -> Found:
    """The golden for exactly this run; `model` is the zoo's own, its batch dimension still free."""
    path = resources.files(__package__) / f"{name}.npz"
    if not path.is_file():
        return Found(None, f"no golden for '{name}'")
    with resources.as_file(path) as local:
        return load(local, name, model, recipe, trainable, batches)


def load(
    path: Path,
    name: str,
    model: onnx.ModelProto,
    recipe: ReferenceRecipe,
    trainable: Sequence[str],
    batches: Sequence[Batch],
) -> Found:
    """The golden of one file, if it is of this run."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    about = json.loads(str(arrays["about"]))
    updates = len(batches) // recipe.accumulate
    known: list[str] = about["data_sha256"]
    checks = (
        (about["format"] == _FORMAT, "is of another format"),
        (about["recipe"] == recipe.as_dict(), "is of another recipe"),
        (about["trainable"] == list(trainable), "trains other tensors"),
        (updates in about["snapshots"], f"has no weights after {updates} updates"),
        (about["model_sha256"] == model_hash(model), "is stale: the model has changed since it was made"),
        (known[: len(batches)] == data_hashes(batches[: len(known)]), "is stale or of other data"),
    )
    for holds, complaint in checks:
        if not holds:
            return Found(None, f"the golden for '{name}' {complaint}")
    return Found(_reference(about, arrays, updates, len(batches)))


def _reference(about: Mapping[str, Any], arrays: Mapping[str, Array], updates: int, minibatches: int) -> Reference:
    names, sizes = about["trainable"], about["sizes"]
    row = about["snapshots"].index(updates)

    def sketches(prefix: str, index: int) -> dict[str, Sketch]:
        norms, projections = arrays[f"{prefix}_norms"][index], arrays[f"{prefix}_projections"][index]
        indices = [sample_indices(size, about["samples"]) for size in sizes]
        ends = np.cumsum([len(chosen) for chosen in indices])
        values = np.split(arrays[f"{prefix}_values"][index].astype(np.float64), ends[:-1])
        return {
            name: Sketch(size, float(norm), norm * projected.astype(np.float64), chosen, value)
            for name, size, norm, projected, chosen, value in zip(
                names, sizes, norms, projections, indices, values, strict=True
            )
        }

    return Reference(
        name=f"golden of {about['reference']}",
        losses=tuple(arrays["losses"][:minibatches].tolist()),
        gradients=sketches("gradient", 0),
        weights=sketches("weight", row),
        loss_differences=tuple(arrays["loss_differences"][:minibatches].tolist()),
        gradient_differences=_by_name(names, arrays["gradient_differences"]),
        weight_differences=_by_name(names, arrays["weight_differences"][row]),
        coverage="losses of every mini-batch; norm, projections and sampled coordinates of every trained tensor's "
        "first gradient and final weights",
    )


def _by_name(names: Sequence[str], values: Array) -> dict[str, float]:
    return dict(zip(names, (float(value) for value in values), strict=True))


def save(path: Path, pair: ReferencePair, model: onnx.ModelProto, batches: Sequence[Batch], command: str) -> int:
    """Write a golden with as many samples per tensor as fit; returns that number."""
    for samples in SAMPLE_COUNTS:
        np.savez_compressed(path, **_arrays(pair, model, batches, command, samples))
        if path.stat().st_size <= SIZE_LIMIT_BYTES:
            break
    return samples


def _arrays(
    pair: ReferencePair, model: onnx.ModelProto, batches: Sequence[Batch], command: str, samples: int
) -> dict[str, Any]:
    names = list(pair.double.weights)
    about = {
        "format": _FORMAT,
        "command": command,
        "reference": pair.name,
        "recipe": pair.recipe.as_dict(),
        "trainable": names,
        "sizes": [int(pair.double.weights[name].size) for name in names],
        "samples": samples,
        "snapshots": sorted(pair.double.snapshots),
        "model_sha256": model_hash(model),
        "data_sha256": data_hashes(batches),
    }
    rows = [[sketch(weights[name], samples) for name in names] for _, weights in sorted(pair.double.snapshots.items())]
    differences = [[apart[name] for name in names] for _, apart in sorted(pair.weight_differences_after.items())]
    first = [sketch(pair.double.first_gradients[name], samples) for name in names]
    return {
        "about": np.array(json.dumps(about)),
        "losses": np.array(pair.double.losses),
        "loss_differences": np.array(pair.loss_differences, dtype=np.float32),
        "gradient_differences": np.array([pair.gradient_differences[name] for name in names], dtype=np.float32),
        "weight_differences": np.array(differences, dtype=np.float32),
        **_packed("gradient", [first]),
        **_packed("weight", rows),
    }


def _packed(prefix: str, rows: list[list[Sketch]]) -> dict[str, Array]:
    """A row per snapshot. Projections are relative to the norm, so that float32 holds them whatever their size."""
    relative = [[item.projections / (item.norm or 1.0) for item in row] for row in rows]
    return {
        f"{prefix}_norms": np.array([[item.norm for item in row] for row in rows]),
        f"{prefix}_projections": np.array(relative, dtype=np.float32),
        f"{prefix}_values": np.array([np.concatenate([item.values for item in row]) for row in rows], dtype=np.float32),
    }
