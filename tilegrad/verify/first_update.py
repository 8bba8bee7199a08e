"""`train`'s reference where neither PyTorch nor a golden serves: everything up to the first update.

Covered: the losses of the mini-batches before the first update (all at the initial weights), every gradient of the
first mini-batch, the accumulated buffers, and every weight after the first update by an independent optimizer. Not
covered: later losses and weights, an optimizer's state beyond its first update, running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilegrad.errors import UserError
from tilegrad.verify.compare import DEFAULT_TOLERANCE, TensorCheck, Verdict, check_losses
from tilegrad.verify.finite_differences import (
    GRADIENT_TOLERANCE,
    QUICK,
    Thoroughness,
    check_gradients,
    directional_check,
)
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.reference import Array, ReferenceRecipe, relative_error


@dataclass(frozen=True)
class FirstUpdate:
    """What a run left up to its first update.

    `losses` are those of the mini-batches before that update, `buffers` the gradient buffers it was given,
    `weights_after` what it made of them. `buffers` may be left empty where the update has one mini-batch: then they are
    `first_gradients`.
    """

    losses: Sequence[float]
    first_gradients: Mapping[str, Array]
    weights_after: Mapping[str, Array]
    buffers: Mapping[str, Array] = field(default_factory=dict)


def verify_first_update(
    model: Float64Model,
    recipe: ReferenceRecipe,
    batches: Sequence[tuple[Array, ...]],
    measured: FirstUpdate,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    thoroughness: Thoroughness = QUICK,
) -> Verdict:
    """Judge a run by its beginning; gradients are held to `GRADIENT_TOLERANCE` if that is larger than `tolerance`."""
    count = recipe.accumulate
    if len(batches) < count or len(measured.losses) < count:
        raise UserError("the run ends before its first update", stage="verify", expected=f"{count} mini-batches")
    if count > 1 and not measured.buffers:
        raise UserError("accumulated gradients are needed to check the first update", stage="verify")
    references = tuple(model.loss(batch) for batch in batches[:count])
    buffers = measured.buffers or measured.first_gradients
    return Verdict(
        reference=f"central differences of {model.evaluator}, NumPy {recipe.optimizer.name}",
        coverage="losses, gradients and weights up to the first update; later steps are not verified",
        tolerance=tolerance,
        reference_losses=references,
        losses=check_losses(measured.losses[:count], references, tolerance),
        tensors=(
            *_check_gradients(model, recipe, batches, measured, max(tolerance, GRADIENT_TOLERANCE), thoroughness),
            *_check_weights(model, recipe, buffers, measured.weights_after, tolerance),
        ),
        has_left_the_numbers=not np.isfinite(references).all() and not np.isfinite(measured.losses).all(),
    )


def _check_gradients(
    model: Float64Model,
    recipe: ReferenceRecipe,
    batches: Sequence[tuple[Array, ...]],
    measured: FirstUpdate,
    tolerance: float,
    thoroughness: Thoroughness,
) -> tuple[TensorCheck, ...]:
    scale = recipe.gradient_scale
    first = directional_check(
        model,
        batches[0],
        measured.first_gradients,
        tolerance=tolerance,
        gradient_scale=scale,
        thoroughness=thoroughness,
    )
    if recipe.accumulate == 1:
        return first
    accumulated = check_gradients(
        lambda overrides: scale * sum(model.loss(batch, overrides) for batch in batches[: recipe.accumulate]),
        model,
        measured.buffers,
        tolerance,
        replace(thoroughness, coordinates=0),
    )
    return (*first, *(replace(row, note=f"accumulated {row.note}".rstrip()) for row in accumulated))


def _check_weights(
    model: Float64Model,
    recipe: ReferenceRecipe,
    buffers: Mapping[str, Array],
    weights: Mapping[str, Array],
    tolerance: float,
) -> tuple[TensorCheck, ...]:
    before = {name: np.asarray(model.weights[name], dtype=np.float64) for name in weights}
    gradients = {name: np.asarray(buffers[name], dtype=np.float64).reshape(before[name].shape) for name in weights}
    expected = recipe.first_update(before, gradients)
    return tuple(
        TensorCheck(
            kind="weight",
            name=name,
            error=relative_error(after, expected[name]),
            allowed=tolerance,
            note="after the first update",
        )
        for name, after in weights.items()
    )
