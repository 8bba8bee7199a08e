"""Chooses the strongest reference there is for a run, and gives the verdict.

PyTorch where it is installed; else a shipped golden that PyTorch made, where it covers this very run; else central
differences of a float64 forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt
import onnx

from tilegrad.recipe import Adam, Momentum, Recipe
from tilegrad.verify import torch_reference
from tilegrad.verify.compare import Measured, Verdict, compare
from tilegrad.verify.dropout import masks_of
from tilegrad.verify.folded import folded_model
from tilegrad.verify.reference import BatchNormPolicy, LossName, OptimizerName, ReferenceRecipe

if TYPE_CHECKING:
    from tilegrad.pipeline import Compiled

Batch = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def reference_recipe(recipe: Recipe, loss: str) -> ReferenceRecipe:
    """The recipe in the words of `torch.optim`. A folded BatchNorm is gone, so its policy no longer matters."""
    optimizer = recipe.optimizer
    attributes = optimizer.attributes
    momentum = optimizer.momentum if isinstance(optimizer, Momentum) else 0.0
    betas, epsilon = (0.9, 0.999), 1e-8
    if isinstance(optimizer, Adam):
        betas, epsilon = (optimizer.beta1, optimizer.beta2), optimizer.epsilon
    policy = "train" if recipe.batchnorm == "train" else "frozen"
    return ReferenceRecipe(
        loss=cast(LossName, loss),
        optimizer=cast(OptimizerName, optimizer.operator.lower()),
        lr=optimizer.lr,
        momentum=momentum,
        weight_decay=attributes.get("weight_decay", 0.0),
        betas=betas,
        eps=epsilon,
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


def judge(compiled: Compiled, measured: Measured, batches: Sequence[Batch], tolerance: float) -> Verdict:
    recipe = reference_recipe(compiled.program.recipe, compiled.program.loss)
    trained = [tensor.name for tensor in compiled.program.trainable]
    masks = masks_of(compiled.program)
    pair = torch_reference.run_pair(reference_model(compiled), recipe, batches, trained, dropout_mask=masks)
    return compare(measured, pair.as_reference(), tolerance)
