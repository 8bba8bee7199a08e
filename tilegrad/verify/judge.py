"""Chooses the strongest reference there is for a run, and gives the verdict.

The user's own torch module, trained by PyTorch, where the model came from one; PyTorch executing the model's graph
where it is installed; else a shipped golden that PyTorch made, where it covers this very run; else central
differences of a float64 forward pass, which see the run up to its first update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import onnx

from tilegrad.build.torch_cache import settle_torch
from tilegrad.frontend.channels import Parted
from tilegrad.frontend.model import SourceKind
from tilegrad.verify import goldens, torch_reference
from tilegrad.verify.compare import Measured, Reference, Verdict, compare
from tilegrad.verify.dropout import masks_of
from tilegrad.verify.first_update import FirstUpdate, verify_first_update
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.folded import folded_model
from tilegrad.verify.fused_forms import with_fused_forms
from tilegrad.verify.given_graph import GivenModel
from tilegrad.verify.judge_given import given_graphs, judge_given
from tilegrad.verify.reference import BatchNormPolicy, ReferenceRecipe, Start, TrainedPart

if TYPE_CHECKING:
    from tilegrad.compiled import Compiled
    from tilegrad.ir.graph import Node
    from tilegrad.ir.program import Program

Batch = tuple[npt.NDArray[Any], ...]


def reference_recipe(program: Program) -> ReferenceRecipe:
    """The recipe as references know it. A folded BatchNorm is gone, so its policy no longer matters."""
    recipe = program.recipe
    policy = "train" if recipe.batchnorm == "train" else "frozen"
    return ReferenceRecipe(
        loss=program.loss,
        optimizer=recipe.optimizer,
        accumulate=recipe.accumulate,
        accum_mode="sum" if recipe.accum_mode == "sum" else "mean",
        batchnorm=cast(BatchNormPolicy, policy),
        rate=recipe.rate,
        clip=recipe.clip,
        undecayed=program.undecayed,
        store=recipe.store,
    )


def _parts(compiled: Compiled) -> dict[str, TrainedPart]:
    """Channels that train, of the model as it came."""
    found = {} if not isinstance(compiled.model.adapted, Parted) else compiled.model.adapted.trained_parts
    return {name: TrainedPart(part.weight, part.axis, part.channels) for name, part in found.items()}


def reference_model(compiled: Compiled) -> onnx.ModelProto:
    """The ONNX model that references execute."""
    if compiled.program.recipe.batchnorm != "fold":
        return compiled.model.proto
    return folded_model(compiled.model.proto)


def judge(
    compiled: Compiled,
    measured: Measured,
    beginning: FirstUpdate,
    batches: Sequence[Batch],
    tolerance: float,
    start: Start | None = None,
) -> Verdict | None:
    """`beginning` is what the run left up to its first update: all that differences can judge. A run that goes on from
    `start` is judged from there on, by PyTorch; None where that is not here."""
    if compiled.model.training is not None:
        return None if start is not None else judge_given(compiled, measured, batches, tolerance)
    recipe = reference_recipe(compiled.program)
    if start is not None and start.learning_rate not in (None, float(np.float32(recipe.optimizer.lr))):
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=start.learning_rate))
    reference = _by_torch(compiled, recipe, batches, start)
    if reference is None and start is None:
        reference = _by_golden(compiled, recipe, batches)
    if reference is not None:
        return compare(measured, reference, tolerance)
    if start is not None or not recipe.store.is_plain:  # differences know nothing of what was rounded
        return None
    return verify_first_update(float64_model(compiled), recipe, batches, beginning, tolerance=tolerance)


def float64_model(compiled: Compiled) -> Float64Model:
    """The first mini-batch's forward pass and loss in float64, by code that shares nothing with ours."""
    if compiled.model.training is not None:
        return cast(Float64Model, GivenModel(given_graphs(compiled)))
    recipe = reference_recipe(compiled.program)
    return Float64Model(
        reference_model(compiled), recipe.loss, batchnorm=recipe.batchnorm, dropout_mask=masks_of(compiled.program)
    )


def _trained(compiled: Compiled) -> list[str]:
    return [tensor.name for tensor in compiled.program.trainable]


def _by_torch(
    compiled: Compiled, recipe: ReferenceRecipe, batches: Sequence[Batch], start: Start | None
) -> Reference | None:
    if not torch_reference.available():
        return None
    settle_torch()
    from tilegrad.verify.torch_executor import UnsupportedByReferenceError

    masks, trained = masks_of(compiled.program), _trained(compiled)
    problem = ""
    # What a module saves is its own affair: where that is rounded, its graph is trained, operator by operator.
    is_exact = recipe.store.activations == "f32"
    if compiled.model.module is not None and compiled.model.adapted is None and is_exact:
        try:
            return _by_module(compiled, recipe, batches, start)
        except UnsupportedByReferenceError as error:
            problem = f", executing the exported graph because of the module: {error.message}"
    recipe = replace(recipe, parts=_parts(compiled))
    for candidate in _candidates(compiled):
        model = candidate if is_exact else with_fused_forms(candidate, compiled.program)
        try:
            pair = torch_reference.run_pair(model, recipe, batches, trained, dropout_mask=masks, start=start)
        except UnsupportedByReferenceError:
            continue
        reference = pair.as_reference()
        return replace(reference, name=f"{reference.name}{problem}")
    return None


def _by_module(
    compiled: Compiled, recipe: ReferenceRecipe, batches: Sequence[Batch], start: Start | None
) -> Reference:
    """The user's own module, in float64 if it can."""
    from tilegrad.verify.torch_executor import UnsupportedByReferenceError
    from tilegrad.verify.torch_module_reference import ModuleReference

    if compiled.program.recipe.batchnorm == "fold":
        raise UnsupportedByReferenceError("it is not folded", stage="verify")
    assert compiled.model.module is not None
    masks = masks_of(compiled.program)
    graph = compiled.model.graph
    drops = [node for node in graph.nodes if node.op == "Dropout" and 0.0 < _ratio(node) < 1.0]

    def mask(call: int, shape: tuple[int, ...], minibatch: int) -> npt.NDArray[Any] | None:
        exported = graph.types[drops[call].inputs[0]].shape if call < len(drops) else ()
        if prod(exported) != prod(shape):
            raise UnsupportedByReferenceError(
                f"its dropout {call + 1} is over {list(shape)}, the graph's over {list(exported)}", stage="verify"
            )
        found = masks(drops[call].name, exported, minibatch)
        return None if found is None else found.reshape(shape)

    statistics = tuple(n for n, role in compiled.model.roles.items() if role == "statistic" and n in graph.constants)
    module, inputs = compiled.model.module.module, len(graph.inputs)
    reference = ModuleReference(module, mask, len(drops), statistics, inputs=inputs, outputs=graph.outputs)
    try:
        return torch_reference.run_pair(reference, recipe, batches, _trained(compiled), start=start).as_reference()
    except UnsupportedByReferenceError as error:
        if "float64" not in error.message:
            raise
        reference = replace(reference, problem=error.message)
    return torch_reference.run_pair(reference, recipe, batches, _trained(compiled), start=start).as_reference()


def _ratio(node: Node) -> float:
    value = node.attributes.get("ratio", 0.5)
    return float(cast(float, getattr(value, "array", value)))


def _candidates(compiled: Compiled) -> list[onnx.ModelProto]:
    """The model as it came judges our import too; the imported one serves where folding or node names matter."""
    model = compiled.model
    if isinstance(model.adapted, Parted):  # what was parted is put together by PyTorch
        return [model.adapted.base.original, model.adapted.base.proto]
    original = model.original
    as_it_came = compiled.program.recipe.batchnorm != "fold" and all(
        n.op_type != "Dropout" for n in original.graph.node
    )
    return [*([original] if as_it_came else []), reference_model(compiled)]


def _by_golden(compiled: Compiled, recipe: ReferenceRecipe, batches: Sequence[Batch]) -> Reference | None:
    """A golden is of the zoo's model as it is: neither folded nor changed in any other way."""
    model = compiled.model
    if model.kind is not SourceKind.ZOO or compiled.program.recipe.batchnorm == "fold":
        return None
    return goldens.find(model.name, model.unbound, recipe, _trained(compiled), batches).reference
