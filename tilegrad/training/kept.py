"""What is kept of a training: all of the model, as arrays or as the ONNX model it came as, with what was learned in it.

Adapters are merged into their weights, or kept beside them. Names are those of the initializers; a model that came from
a torch module has those of its state dictionary, so that `module.load_state_dict` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.files.tensor_files import check_suffix, tensor_bytes
from tilegrad.frontend.model import ImportedModel, SourceKind
from tilegrad.frontend.start import with_tensors
from tilegrad.learned import folded_names, module_state
from tilegrad.verify.folded import folded_model

Arrays = dict[str, npt.NDArray[Any]]


def kept_bytes(
    path: str | Path, compiled: Compiled, learned: Mapping[str, npt.NDArray[Any]], minibatches: int, *, merges: bool
) -> bytes:
    """The content of `path`, whose name says the format. `learned` is what training changed, by initializer name."""
    path = Path(path)
    check_suffix(path, "--save")
    if path.suffix.lower() == ".onnx":
        return bytes(kept_model(compiled, learned, merges=merges).SerializeToString(deterministic=True))
    return tensor_bytes(path, kept_arrays(compiled, learned, minibatches, merges=merges))


def kept_arrays(
    compiled: Compiled, learned: Mapping[str, npt.NDArray[Any]], minibatches: int, *, merges: bool
) -> Arrays:
    """Every parameter and running statistic."""
    model = compiled.model
    adapted = model.adapted
    if adapted is not None and merges:
        learned = _merged(model, learned)
        model = adapted.base
    if model.module is not None and compiled.program.recipe.batchnorm != "fold":
        factors = {name: array for name, array in learned.items() if _is_adapter(model, name)}
        own = {name: array for name, array in learned.items() if name not in factors}
        return {**module_state(compiled, own, minibatches), **factors}
    arrays = _initial(model)
    kept = {n: arrays[n] for n, info in model.parameters.items() if info.role != "constant" and n in arrays}
    if compiled.program.recipe.batchnorm == "fold":
        gone = set(folded_names(compiled)) | {n for n, info in model.parameters.items() if info.role == "statistic"}
        kept = {name: array for name, array in kept.items() if name not in gone}
    return {**kept, **learned}


def _is_adapter(model: ImportedModel, name: str) -> bool:
    return name in model.parameters and model.parameters[name].is_adapter


def _initial(model: ImportedModel) -> Arrays:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.original.graph.initializer}


def _merged(model: ImportedModel, learned: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """What was learned, adapters folded into the weights they belong to."""
    assert model.adapted is not None
    shared = [adapter for adapter in model.adapted.adapters if adapter.others]
    if shared:
        raise UserError(
            f"the adapter of '{shared[0].weight}' cannot be merged: other nodes read that weight without it",
            stage="write",
            got=", ".join(shared[0].others[:4]),
            hint="--keep-adapters saves it beside the weight",
        )
    arrays = {**_initial(model), **learned}
    merged = model.adapted.merged(arrays)
    changed = {adapter.weight for adapter in model.adapted.adapters} | set(learned)
    return {name: merged[name] for name in merged if name in changed}


def kept_model(compiled: Compiled, learned: Mapping[str, npt.NDArray[Any]], *, merges: bool) -> onnx.ModelProto:
    """The model as it came, with new initializers; its batch dimension is free if it was."""
    model = compiled.model
    if compiled.program.recipe.batchnorm == "fold":
        names = {saved: name for name, saved in folded_names(compiled).items()}
        return with_tensors(folded_model(model.proto), {names.get(n, n): array for n, array in learned.items()})
    if model.adapted is not None and merges:
        learned = _merged(model, learned)
        model = model.adapted.base
    own = {tensor.name for tensor in model.unbound.graph.initializer}
    if set(learned) <= own:
        made = with_tensors(model.unbound, learned)
    else:  # the importer parted or renamed what the file has as one
        made = _with_free_batch(with_tensors(model.original, learned), model.unbound)
    if model.kind is SourceKind.TORCH:
        _evaluating(made)
    return made


def _with_free_batch(model: onnx.ModelProto, unbound: onnx.ModelProto) -> onnx.ModelProto:
    declared = {value.name: value for value in (*unbound.graph.input, *unbound.graph.output)}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    del model.graph.value_info[:]
    return model


def _evaluating(model: onnx.ModelProto) -> None:
    """A module is exported to be trained, dropout included; what is kept is for evaluation."""
    for node in model.graph.node:
        if node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and len(node.input) > 2:
            del node.input[2:]


