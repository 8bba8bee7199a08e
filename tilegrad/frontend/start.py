"""A model that begins with other weights than its own: `--weights F`."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tilegrad.errors import UserError
from tilegrad.frontend.model import ImportedModel
from tilegrad.frontend.source import Source
from tilegrad.frontend.torch_facts import TorchModule

Array = npt.NDArray[Any]
_TOLD = 8


def with_weights(model: ImportedModel, arrays: Mapping[str, Array], where: str) -> ImportedModel:
    """The same model with these arrays in the place of initializers; those that are not named stay.

    Names are those of initializers, or of a torch module's state dictionary. `where` is said of what does not fit.
    """
    from tilegrad.frontend import import_source  # the frontend is made of this module

    known = {tensor.name: tensor for tensor in model.unbound.graph.initializer}
    module = model.module
    ignored = set() if module is None else set(module.module.state_dict()) - set(known)
    aliases = {} if module is None else module.aliases
    found = {aliases.get(name, name): array for name, array in arrays.items()}
    found = {name: array for name, array in found.items() if name not in ignored}
    _check(model, known, found, where)
    proto = with_tensors(model.unbound, found)
    if module is not None:
        module = _loaded(module, arrays)
    if model.adapted is not None:
        base = with_weights(model.adapted.base, {n: a for n, a in found.items() if n in _names(model)}, where)
        made = import_source(Source(model.name, model.kind, proto), model.batch)
        adapted = replace(model.adapted, base=base)
        made = replace(made, parameters=_retyped(model, made), module=module, adapted=adapted)
    else:
        made = import_source(Source(model.name, model.kind, proto, module), model.batch)
    left = [name for name, info in made.parameters.items() if info.role == "parameter" and name not in found]
    note = f"weights from {where}: {len(found)} tensors" + (
        f"; {len(left)} parameters are the model's own, {', '.join(left[:3])}{', …' if len(left) > 3 else ''}"
        if left
        else ""
    )
    return replace(made, notes=tuple(dict.fromkeys((*model.notes, *made.notes, note))))


def _names(model: ImportedModel) -> set[str]:
    assert model.adapted is not None
    return {tensor.name for tensor in model.adapted.base.unbound.graph.initializer}


def _retyped(model: ImportedModel, made: ImportedModel) -> dict[str, Any]:
    return {name: model.parameters.get(name, info) for name, info in made.parameters.items()}


def _check(
    model: ImportedModel, known: Mapping[str, onnx.TensorProto], found: Mapping[str, Array], where: str
) -> None:
    strange = [name for name in found if name not in known]
    if strange or not found:
        near = difflib.get_close_matches(strange[0], list(known), n=3) if strange else []
        adapters = " (of adapters: give --train lora:…)" if any(".lora_" in name for name in strange) else ""
        own = [name for name, info in model.parameters.items() if info.role != "constant"]
        raise UserError(
            f"{where} has weights of another model",
            stage="weights",
            expected=", ".join(own[:_TOLD]) + (f" and {len(own) - _TOLD} more" if len(own) > _TOLD else ""),
            got=(", ".join(strange[:_TOLD]) or "no arrays") + adapters,
            hint=f"near names: {', '.join(near)}" if near else None,
        )
    for name, array in found.items():
        shape = tuple(known[name].dims)
        if array.shape != shape or array.dtype.kind != numpy_helper.to_array(known[name]).dtype.kind:
            raise UserError(
                f"'{name}' of {where} does not fit the model",
                stage="weights",
                expected=f"{numpy_helper.to_array(known[name]).dtype} {list(shape)}",
                got=f"{array.dtype} {list(array.shape)}",
            )


def with_tensors(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy of a model with other content in some of its initializers, every bit of it."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        if tensor.name in arrays:
            array = np.ascontiguousarray(arrays[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(array.reshape(tuple(tensor.dims)), tensor.name))
    return result


def _loaded(known: TorchModule, arrays: Mapping[str, Array]) -> TorchModule:
    """The module that references train, with the same weights."""
    import torch

    module = copy.deepcopy(known.module)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = own.get(known.aliases.get(name, name))
            if tensor is not None:
                tensor.copy_(torch.from_numpy(np.array(array)).reshape(tensor.shape))
    return replace(known, module=module)
