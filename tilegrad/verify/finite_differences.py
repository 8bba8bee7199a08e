"""Gradients checked by central differences of a float64 forward pass: works for any model, with or without PyTorch.

For every gradient tensor there is one difference along a random direction of ±1, which every coordinate takes part in:
if the gradient is wrong by d anywhere, the two derivatives differ by about ‖d‖. A few coordinates of the largest
magnitude are checked alone, so that a failure can be located. A difference that straddles a kink (ReLU, MaxPool, Clip)
says nothing about the gradient; it shows as two step sizes that disagree, and is tried again with a smaller step, then
along another direction, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilegrad.errors import UserError
from tilegrad.verify.compare import DEFAULT_TOLERANCE, TensorCheck, Verdict, check_losses
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.optimizers_numpy import first_update
from tilegrad.verify.reference import Array, ReferenceRecipe, largest_norm, relative_error
from tilegrad.verify.sketch import signs

__all__ = ["FirstUpdate", "Float64Model", "directional_check", "gradient_verdict", "verify_first_update"]

# Relative to the tensor's root mean square; small, for float64 has digits to spare and kinks are met less often.
STEPS = (2e-6, 2.5e-7, 1.6e-5)
DIRECTIONS = 3
# A step for tensors that are all zero.
SMALLEST_SCALE = 1e-2
# Float32 sums of terms as large as the largest gradient cannot be better than this.
FLOAT32_NOISE = 8.0 * float(np.finfo(np.float32).eps)
# Rounding of the loss itself, which a difference divides by its step.
LOSS_NOISE = 16.0 * float(np.finfo(np.float64).eps)

Loss = Callable[[Mapping[str, Array]], float]


@dataclass(frozen=True)
class _Estimate:
    """A directional derivative from differences, beside the one the gradient claims.

    `doubt` is how far two step sizes disagree, None where the first agreed with the gradient at once; `noise` is what
    the rounding of the loss can contribute.
    """

    derivative: float
    claimed: float
    noise: float
    doubt: float | None = None
    note: str = ""

    @property
    def distance(self) -> float:
        return abs(self.derivative - self.claimed)


@dataclass(frozen=True)
class _Probe:
    """One tensor under examination; `limit` is the largest distance that still passes."""

    loss: Loss
    name: str
    weight: Array
    gradient: Array
    limit: float
    loss_magnitude: float

    def along(self, direction: Array, scale: float) -> _Estimate:
        """Try step sizes until two agree; the least doubtful if none do."""
        claimed = float(np.vdot(self.gradient, direction))
        tried: list[_Estimate] = []
        for attempt, relative in enumerate(STEPS):
            step = relative * scale
            noise = LOSS_NOISE * self.loss_magnitude / step
            wide = _Estimate(self._difference(direction, step), claimed, noise)
            if attempt == 0 and wide.distance <= 0.5 * self.limit:
                return wide
            narrow = replace(wide, derivative=self._difference(direction, step / 2), noise=2 * noise)
            doubt = abs(wide.derivative - narrow.derivative)
            note = f"step {relative:g} after a kink at {STEPS[0]:g}" if attempt else ""
            tried.append(replace(narrow, doubt=doubt, note=note))
            if doubt <= max(0.1 * self.limit, narrow.noise):
                return tried[-1]
        return min(tried, key=lambda estimate: estimate.doubt or 0.0)

    def _difference(self, direction: Array, step: float) -> float:
        ahead = self.loss({self.name: self.weight + step * direction})
        behind = self.loss({self.name: self.weight - step * direction})
        return (ahead - behind) / (2.0 * step)

    def resolved(self, estimate: _Estimate) -> bool:
        return estimate.doubt is None or estimate.doubt <= max(0.1 * self.limit, estimate.noise)


def directional_check(
    model: Float64Model,
    x: Array,
    y: Array,
    gradients: Mapping[str, Array],
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    gradient_scale: float = 1.0,
    coordinates: int = 2,
    seed: int = 0,
) -> tuple[TensorCheck, ...]:
    """A row per gradient tensor: its distance from central differences relative to its norm.

    `gradient_scale` is what the gradient buffer was multiplied by (`ReferenceRecipe.gradient_scale`). What is allowed
    is `tolerance`, or float32's rounding on the scale of the largest gradient for tensors far smaller than that.
    """
    return _check_all(
        lambda overrides: gradient_scale * model.loss(x, y, overrides), model, gradients, tolerance, coordinates, seed
    )


def _check_all(
    loss: Loss, model: Float64Model, gradients: Mapping[str, Array], tolerance: float, coordinates: int, seed: int
) -> tuple[TensorCheck, ...]:
    unknown = [name for name in gradients if name not in model.weights]
    if unknown:
        raise UserError(f"the model has no initializer {', '.join(unknown)}", stage="verify")
    magnitude = abs(loss({}))
    largest = largest_norm(gradients.values())
    return tuple(
        _check_tensor(loss, model, name, gradient, magnitude, largest, tolerance, coordinates, seed + 17 * index)
        for index, (name, gradient) in enumerate(gradients.items())
    )


def _check_tensor(
    loss: Loss,
    model: Float64Model,
    name: str,
    gradient: Array,
    magnitude: float,
    largest: float,
    tolerance: float,
    coordinates: int,
    seed: int,
) -> TensorCheck:
    weight = model.weights[name]
    slope = np.asarray(gradient, dtype=np.float64)
    if slope.size != weight.size:
        raise UserError(
            f"gradient of '{name}' has the wrong size", stage="verify", expected=str(weight.shape), got=str(slope.shape)
        )
    if not np.isfinite(slope).all():
        return TensorCheck(kind="gradient", name=name, error=float("inf"), allowed=tolerance, note="not finite")
    if weight.size == 0:
        return TensorCheck(kind="gradient", name=name, error=0.0, allowed=tolerance, note="empty")
    slope = slope.reshape(weight.shape)
    norm = float(np.linalg.norm(slope))
    scale = max(float(np.sqrt(np.mean(np.square(weight)))), SMALLEST_SCALE)
    limit = max(tolerance * norm, FLOAT32_NOISE * largest)
    probe = _Probe(loss, name, weight, slope, limit, magnitude)
    whole = _over_directions(probe, scale, seed)
    found = [whole, *(_coordinate(probe, index, scale) for index in _largest_coordinates(slope, coordinates))]
    worst = max(found, key=lambda estimate: estimate.distance)
    reach = max(norm, *(abs(estimate.derivative) for estimate in found)) or 1.0
    allowed = max(limit, worst.noise)
    if not probe.resolved(worst):
        allowed = max(allowed, 2.0 * (worst.doubt or 0.0))
    return TensorCheck(
        kind="gradient", name=name, error=worst.distance / reach, allowed=allowed / reach, note=worst.note
    )


def _over_directions(probe: _Probe, scale: float, seed: int) -> _Estimate:
    tried: list[_Estimate] = []
    for attempt in range(DIRECTIONS):
        direction = signs(probe.weight.size, 1 + seed + 1000 * attempt).reshape(probe.weight.shape)
        estimate = probe.along(direction, scale)
        if probe.resolved(estimate):
            return replace(estimate, note="another direction after kinks") if attempt else estimate
        tried.append(estimate)
    least = min(tried, key=lambda estimate: estimate.doubt or 0.0)
    return replace(least, note=f"kinks in {DIRECTIONS} directions; differences agree to {least.doubt:.2g} only")


def _largest_coordinates(slope: Array, count: int) -> list[int]:
    return [int(index) for index in np.argsort(-np.abs(slope).ravel(), kind="stable")[:count]]


def _coordinate(probe: _Probe, index: int, scale: float) -> _Estimate:
    direction = np.zeros(probe.weight.size)
    direction[index] = 1.0
    estimate = probe.along(direction.reshape(probe.weight.shape), max(scale, abs(float(probe.weight.ravel()[index]))))
    place = tuple(int(axis) for axis in np.unravel_index(index, probe.weight.shape))
    located = f"at {list(place)}: {estimate.claimed:.6g}, differences {estimate.derivative:.6g}"
    return replace(estimate, note=f"{located}; {estimate.note}" if estimate.note else located)


def gradient_verdict(
    model: Float64Model,
    x: Array,
    y: Array,
    loss: float,
    gradients: Mapping[str, Array],
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    gradient_scale: float = 1.0,
    coordinates: int = 2,
    seed: int = 0,
) -> Verdict:
    """What `tilegrad gradcheck` reports: one mini-batch's loss and every gradient of it."""
    reference = (model.loss(x, y),)
    return Verdict(
        reference=f"central differences of {model.evaluator}",
        coverage="the loss and every gradient tensor of one mini-batch: a direction through all coordinates each, "
        f"and its {coordinates} largest coordinates",
        tolerance=tolerance,
        reference_losses=reference,
        losses=check_losses((loss,), reference, tolerance),
        tensors=directional_check(
            model,
            x,
            y,
            gradients,
            tolerance=tolerance,
            gradient_scale=gradient_scale,
            coordinates=coordinates,
            seed=seed,
        ),
    )


@dataclass(frozen=True)
class FirstUpdate:
    """A run up to its first update: all that can be verified from the outside without a second training.

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
    batches: Sequence[tuple[Array, Array]],
    measured: FirstUpdate,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    coordinates: int = 1,
    seed: int = 0,
) -> Verdict:
    """`train`'s reference where neither PyTorch nor a golden serves.

    Covered: the losses of the mini-batches before the first update (all at the initial weights), every gradient of the
    first mini-batch, the accumulated buffers if given, and every weight after the first update by an independent
    optimizer. Not covered: later losses and weights, an optimizer's state beyond its first update, running statistics.
    """
    count = recipe.accumulate
    if len(batches) < count or len(measured.losses) < count:
        raise UserError("the run ends before its first update", stage="verify", expected=f"{count} mini-batches")
    if count > 1 and not measured.buffers:
        raise UserError("accumulated gradients are needed to check the first update", stage="verify")
    references = tuple(model.loss(x, y) for x, y in batches[:count])
    first = directional_check(
        model,
        *batches[0],
        measured.first_gradients,
        tolerance=tolerance,
        gradient_scale=recipe.gradient_scale,
        coordinates=coordinates,
        seed=seed,
    )
    accumulated: tuple[TensorCheck, ...] = ()
    if count > 1:
        accumulated = _check_all(
            lambda overrides: recipe.gradient_scale * sum(model.loss(x, y, overrides) for x, y in batches[:count]),
            model,
            measured.buffers,
            tolerance,
            0,
            seed,
        )
    buffers = measured.buffers or measured.first_gradients
    updates = tuple(
        TensorCheck(
            kind="weight",
            name=name,
            error=_update_error(recipe, model.weights[name], buffers[name], after),
            allowed=tolerance,
            note="after the first update",
        )
        for name, after in measured.weights_after.items()
    )
    return Verdict(
        reference=f"central differences of {model.evaluator}, NumPy {recipe.optimizer}",
        coverage="losses, gradients and weights up to the first update; later steps are not verified "
        "(install PyTorch for that)",
        tolerance=tolerance,
        reference_losses=references,
        losses=check_losses(measured.losses[:count], references, tolerance),
        tensors=(*first, *(replace(row, note=f"accumulated; {row.note}") for row in accumulated), *updates),
    )


def _update_error(recipe: ReferenceRecipe, before: Array, buffer: Array, after: Array) -> float:
    return relative_error(after, first_update(recipe, before, np.asarray(buffer).reshape(before.shape)))
