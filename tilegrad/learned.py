"""What a training leaves to be kept, under names that mean what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.frontend.folded import FOLDED
from tilegrad.passes.fuse import fuse

Arrays = dict[str, npt.NDArray[Any]]


def folded_names(compiled: Compiled) -> dict[str, str]:
    """The program's parameters into which policy `fold` put a BatchNormalization, and the names to save them under.

    Loaded into the unfolded model under their old names they would be normalised a second time.
    """
    if compiled.program.recipe.batchnorm != "fold":
        return {}
    graph = fuse(compiled.model.graph)
    producers = graph.producers()
    kept = {node.name for node in compiled.program.entries["infer"].nodes}
    names = [
        name
        for norm in graph.nodes
        if norm.op == "BatchNormalization" and norm.name not in kept and norm.inputs[0] in producers
        for name in (*producers[norm.inputs[0]].inputs[1:], norm.inputs[2])
    ]
    trained = {tensor.name for tensor in compiled.program.trainable}
    return {name: f"{name}{FOLDED}" for name in names if name in trained and not name.endswith(FOLDED)}


def learned(
    compiled: Compiled, weights: Mapping[str, npt.NDArray[Any]], statistics: Callable[[], Mapping[str, Any]]
) -> Arrays:
    """Everything that training changed: the trained parameters, and running statistics under policy `train`."""
    names = folded_names(compiled)
    result = {names.get(name, name): array for name, array in weights.items()}
    if compiled.program.recipe.batchnorm == "train":
        result |= statistics()
    return result


def module_state(compiled: Compiled, parameters: Mapping[str, npt.NDArray[Any]], minibatches: int) -> Arrays:
    """What the torch module's `load_state_dict` takes, every name of it.

    Under policy `train` each BatchNorm has seen one more batch a mini-batch, as PyTorch counts.
    """
    known = compiled.model.module
    if known is None:
        raise UserError(
            "only a model that was loaded from a torch module has its state dictionary",
            stage="run",
            hint="session.parameters() has what was learned, by initializer name",
        )
    strange = sorted(set(parameters) - set(known.trains) - set(known.buffers))
    if strange:
        raise UserError(
            "folded weights do not fit the module they came from",
            stage="run",
            got=", ".join(strange[:8]),
            hint="use --batchnorm frozen or train",
        )
    is_counting = compiled.program.recipe.batchnorm == "train"
    state: Arrays = {}
    for name, tensor in known.module.state_dict().items():
        own = known.aliases.get(name, name)
        if own in parameters:
            state[name] = np.array(parameters[own])
            continue
        state[name] = np.array(tensor.numpy())
        owner = name.removesuffix("num_batches_tracked")
        if is_counting and owner != name and f"{owner}running_mean" in parameters:
            state[name] = np.array(state[name] + minibatches)
    return state
