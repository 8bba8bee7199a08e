"""Chooses the strongest reference there is for a run, and gives the verdict.

PyTorch where it is installed; else a shipped golden that PyTorch made, where it covers this very run; else central
differences of a float64 forward pass, which see the run up to its first update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt
import onnx

from tilegrad.frontend.model import SourceKind
from tilegrad.recipe import Recipe
from tilegrad.verify import goldens, torch_reference
from tilegrad.verify.compare import Measured, Reference, Verdict, compare
from tilegrad.verify.dropout import masks_of
from tilegrad.verify.first_update import FirstUpdate, verify_first_update
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.folded import folded_model
from tilegrad.verify.reference import BatchNormPolicy, ReferenceRecipe

if TYPE_CHECKING:
    from tilegrad.pipeline import Compiled

Batch = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def reference_recipe(recipe: Recipe, loss: str) -> ReferenceRecipe:
    """The recipe as references know it. A folded BatchNorm is gone, so its policy no longer matters."""
    policy = "train" if recipe.batchnorm == "train" else "frozen"
    return ReferenceRecipe(
        loss=loss,
        optimizer=recipe.optimizer,
        accumulate=recipe.accumulate,
        accum_mode="sum" if recipe.accum_mode == "sum" else "mean",
        batchnorm=cast(BatchNormPolicy, policy),
    )


def reference_model(compiled: Compiled) -> onnx.ModelProto:
    """The ONNX model that references execute."""
    if compiled.program.recipe.batchnorm != "fold":
        return compiled.model.proto
    initial = {t.name: t.initial.array for t in compiled.program.state if t.initial is not None}
    return folded_model(compiled.model.proto, initial)


def judge(
    compiled: Compiled, measured: Measured, beginning: FirstUpdate, batches: Sequence[Batch], tolerance: float
) -> Verdict:
    """`beginning` is what the run left up to its first update: all that differences can judge."""
    recipe = reference_recipe(compiled.program.recipe, compiled.program.loss)
    reference = _by_torch(compiled, recipe, batches) or _by_golden(compiled, recipe, batches)
    if reference is not None:
        return compare(measured, reference, tolerance)
    return verify_first_update(float64_model(compiled), recipe, batches, beginning, tolerance=tolerance)


def float64_model(compiled: Compiled) -> Float64Model:
    """The first mini-batch's forward pass and loss in float64, by code that shares nothing with ours."""
    recipe = reference_recipe(compiled.program.recipe, compiled.program.loss)
    return Float64Model(
        reference_model(compiled), recipe.loss, batchnorm=recipe.batchnorm, dropout_mask=masks_of(compiled.program)
    )


def _trained(compiled: Compiled) -> list[str]:
    return [tensor.name for tensor in compiled.program.trainable]


def _by_torch(compiled: Compiled, recipe: ReferenceRecipe, batches: Sequence[Batch]) -> Reference | None:
    if not torch_reference.available():
        return None
    from tilegrad.verify.torch_executor import UnsupportedByReferenceError

    masks, trained = masks_of(compiled.program), _trained(compiled)
    for model in _candidates(compiled):
        try:
            pair = torch_reference.run_pair(model, recipe, batches, trained, dropout_mask=masks)
        except UnsupportedByReferenceError:
            continue
        return pair.as_reference()
    return None


def _candidates(compiled: Compiled) -> list[onnx.ModelProto]:
    """The model as it came judges our import too; the imported one serves where folding or node names matter."""
    original = compiled.model.original
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
