"""Gradients checked by central differences of a float64 forward pass: works for any model, with or without PyTorch.

For every gradient tensor there are differences along random directions of ±1, which every coordinate takes part in: if
the gradient is wrong by d anywhere, the derivatives differ by about ‖d‖. One direction is the gradient itself, which a
wrong factor cannot hide from. A few coordinates of the largest magnitude are checked alone. A difference that straddles
a kink (ReLU, MaxPool, Clip) says nothing about the gradient; it shows as two step sizes that disagree, and is tried
again with other steps, then along another direction, and the table says so. Where a gradient still differs, the
differences are taken again with all weights moved by float32's rounding: an activation so near a kink that float32 sees
it on the other side is no mistake of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilegrad.errors import UserError
from tilegrad.verify.compare import DEFAULT_TOLERANCE, TensorCheck, Verdict, check_losses
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.reference import Array, largest_norm
from tilegrad.verify.sketch import signs

# Float32 sums whose terms cancel are no better than this; a gradient that is wrong is off by far more.
GRADIENT_TOLERANCE = 1e-3
# Steps relative to a tensor's root mean square: small, for float64 has digits to spare and kinks are met less often.
SMALLEST_STEP = 2e-6
LARGEST_STEP = 1e-3
RETRIES = (1.0, 0.25, 4.0, 0.0625)
SPARE_DIRECTIONS = 2
# The root mean square taken for tensors that are zero.
SMALLEST_SCALE = 0.1
# Float32 sums of terms as large as the largest gradient cannot be better than this.
FLOAT32_NOISE = 8.0 * float(np.finfo(np.float32).eps)
# How often and how far weights are moved to see what float32's rounding does to a derivative.
ROUNDING_DRAWS = 8
ROUNDING = 4.0 * float(np.finfo(np.float32).eps)
# Rounding of the loss itself, which a difference divides by its step. Measured on the zoo: a fifth of this.
LOSS_NOISE = float(np.finfo(np.float64).eps)

Loss = Callable[[Mapping[str, Array]], float]


@dataclass(frozen=True)
class Thoroughness:
    """How many differences each tensor gets besides the one along its own gradient."""

    directions: int = 2
    coordinates: int = 2
    seed: int = 0


THOROUGH = Thoroughness()
QUICK = Thoroughness(directions=1, coordinates=0)


@dataclass(frozen=True)
class _Difference:
    """Where a central difference is taken; its derivative is per `unit` of the direction."""

    direction: Array
    step: float
    unit: float


@dataclass(frozen=True, eq=False)
class _Estimate:
    """A derivative from differences beside the one the gradient claims, both per unit of the direction.

    `doubt` is how far two step sizes disagree, 0 where the first agreed with the gradient at once; `noise` is what the
    rounding of the loss can contribute.
    """

    difference: _Difference
    derivative: float
    claimed: float
    noise: float
    doubt: float = 0.0
    resolved: bool = True
    note: str = ""

    @property
    def distance(self) -> float:
        return abs(self.derivative - self.claimed)

    @property
    def uncertainty(self) -> float:
        return self.doubt + self.noise


@dataclass(frozen=True)
class _Probe:
    """One tensor under examination; `limit` is the distance that passes, `loss_magnitude` what its noise grows with."""

    loss: Loss
    weights: Mapping[str, Array]
    name: str
    gradient: Array
    limit: float
    loss_magnitude: float

    @property
    def weight(self) -> Array:
        return self.weights[self.name]

    def along(self, direction: Array, scale: float, unit: float = 1.0) -> _Estimate:
        """Try step sizes until two agree; the least doubtful if none do."""
        claimed = float(np.vdot(self.gradient, direction)) / unit
        legible = LOSS_NOISE * self.loss_magnitude / (0.1 * self.limit * unit) if self.limit > 0.0 else np.inf
        first = min(max(SMALLEST_STEP * scale, legible), LARGEST_STEP * scale)
        tried: list[_Estimate] = []
        for factor in RETRIES:
            step = factor * first
            noise = LOSS_NOISE * self.loss_magnitude / (step * unit)
            wide, narrow = _Difference(direction, step, unit), _Difference(direction, step / 2, unit)
            coarse = _Estimate(wide, self._derivative(wide), claimed, noise)
            if not tried and coarse.distance <= 0.5 * self.limit:
                return coarse
            fine = self._derivative(narrow)
            doubt = abs(coarse.derivative - fine)
            resolved = doubt <= max(0.1 * self.limit, 2 * noise)
            note = f"step {step:.2g} after a kink" if tried else ""
            tried.append(_Estimate(narrow, fine, claimed, 2 * noise, doubt, resolved, note))
            if resolved:
                return tried[-1]
        return min(tried, key=lambda estimate: estimate.uncertainty)

    def _derivative(self, difference: _Difference, others: Mapping[str, Array] | None = None) -> float:
        """One central difference; `others` are weights to use in place of the model's."""
        base = dict(others or {})
        centre, offset = base.get(self.name, self.weight), difference.step * difference.direction
        ahead = self.loss({**base, self.name: centre + offset})
        behind = self.loss({**base, self.name: centre - offset})
        return (ahead - behind) / (2.0 * difference.step * difference.unit)

    def rounding_effect(self, estimate: _Estimate) -> float:
        """How far the derivative moves when every weight moves by float32's rounding."""
        moved = []
        for draw in range(ROUNDING_DRAWS):
            others = {
                name: weight * (1.0 + ROUNDING * signs(weight.size, 31 + 131 * draw).reshape(weight.shape))
                for name, weight in self.weights.items()
                if weight.dtype == np.float64
            }
            moved.append(abs(self._derivative(estimate.difference, others) - estimate.derivative))
        return max(moved)

    def random_direction(self, scale: float, seed: int) -> _Estimate:
        tried: list[_Estimate] = []
        for attempt in range(1 + SPARE_DIRECTIONS):
            direction = signs(self.weight.size, seed + 7919 * attempt).reshape(self.weight.shape)
            estimate = self.along(direction, scale)
            if estimate.resolved:
                return replace(estimate, note="another direction after kinks") if attempt else estimate
            tried.append(estimate)
        least = min(tried, key=lambda estimate: estimate.uncertainty)
        return replace(least, note=f"kinks in {len(tried)} directions: differences agree to {least.doubt:.2g} only")

    def own_direction(self, scale: float, norm: float) -> _Estimate:
        root = float(np.sqrt(self.weight.size))
        return self.along(self.gradient * (root / norm), scale, unit=root)

    def coordinate(self, index: int, scale: float) -> _Estimate:
        direction = np.zeros(self.weight.size)
        direction[index] = 1.0
        estimate = self.along(direction.reshape(self.weight.shape), max(scale, abs(float(self.weight.flat[index]))))
        place = [int(axis) for axis in np.unravel_index(index, self.weight.shape)]
        located = f"at {place}: {estimate.claimed:.6g}, differences {estimate.derivative:.6g}"
        return replace(estimate, note=f"{located}; {estimate.note}" if estimate.note else located)


def directional_check(
    model: Float64Model,
    batch: Sequence[Array],
    gradients: Mapping[str, Array],
    *,
    tolerance: float = GRADIENT_TOLERANCE,
    gradient_scale: float = 1.0,
    thoroughness: Thoroughness = THOROUGH,
) -> tuple[TensorCheck, ...]:
    """A row per gradient tensor: its distance from central differences relative to its norm.

    `gradient_scale` is what the gradient buffer was multiplied by (`ReferenceRecipe.gradient_scale`).
    """
    return check_gradients(
        lambda overrides: gradient_scale * model.loss(batch, overrides), model, gradients, tolerance, thoroughness
    )


def check_gradients(
    loss: Loss, model: Float64Model, gradients: Mapping[str, Array], tolerance: float, thoroughness: Thoroughness
) -> tuple[TensorCheck, ...]:
    """The same for any scalar function of the model's initializers, such as a sum of losses."""
    unknown = [name for name in gradients if name not in model.weights]
    if unknown:
        raise UserError(f"the model has no initializer {', '.join(unknown)}", stage="verify")
    magnitude = abs(loss({}))
    largest = largest_norm(gradients.values())
    rows = []
    for index, (name, gradient) in enumerate(gradients.items()):
        weight = model.weights[name]
        if np.size(gradient) != weight.size:
            raise UserError(
                f"gradient of '{name}' has the wrong size",
                stage="verify",
                expected=str(weight.shape),
                got=str(np.shape(gradient)),
            )
        slope = np.asarray(gradient, dtype=np.float64).reshape(weight.shape)
        probe = _Probe(loss, model.weights, name, slope, tolerance * float(np.linalg.norm(slope)), magnitude)
        seeded = replace(thoroughness, seed=thoroughness.seed + 104729 * (index + 1))
        rows.append(_check_tensor(probe, largest, tolerance, seeded))
    return tuple(rows)


def _check_tensor(probe: _Probe, largest: float, tolerance: float, thoroughness: Thoroughness) -> TensorCheck:
    slope, size = probe.gradient, probe.weight.size
    if not np.isfinite(slope).all():
        return TensorCheck(kind="gradient", name=probe.name, error=float("inf"), allowed=tolerance, note="not finite")
    if size == 0:
        return TensorCheck(kind="gradient", name=probe.name, error=0.0, allowed=tolerance, note="empty")
    norm = float(np.linalg.norm(slope))
    scale = max(float(np.sqrt(np.mean(np.square(probe.weight)))), SMALLEST_SCALE)
    steepest = np.argsort(-np.abs(slope).ravel(), kind="stable")[: thoroughness.coordinates]
    found = [probe.random_direction(scale, thoroughness.seed + 1 + turn) for turn in range(thoroughness.directions)]
    found += [probe.own_direction(scale, norm)] if norm > 0.0 else []
    found += [probe.coordinate(int(index), scale) for index in steepest]
    return max((_judge(probe, estimate, norm, largest) for estimate in found), key=lambda row: row.severity)


def _judge(probe: _Probe, estimate: _Estimate, norm: float, largest: float) -> TensorCheck:
    """One estimate as a row: relative to the gradient's norm, or to the differences where those are larger."""
    scale = max(norm, abs(estimate.derivative)) or 1.0
    allowed, note = max(probe.limit, 2.0 * estimate.noise), estimate.note
    floor = FLOAT32_NOISE * largest
    if estimate.distance > allowed and abs(estimate.derivative) <= max(estimate.noise, 1e-3 * floor):
        scale, allowed, note = largest, floor, "zero but for float32 rounding of larger gradients"
    elif not estimate.resolved:
        allowed = max(allowed, 2.0 * estimate.doubt)
    elif estimate.noise > probe.limit:
        note = "smaller than differences of a float64 loss resolve" + (f"; {note}" if note else "")
    if estimate.distance > allowed and (moved := probe.rounding_effect(estimate)) > 0.5 * allowed:
        allowed, note = 2.0 * moved, "near a kink: float32's rounding moves it" + (f"; {note}" if note else "")
    return TensorCheck(
        kind="gradient", name=probe.name, error=estimate.distance / scale, allowed=allowed / scale, note=note
    )


def gradient_verdict(
    model: Float64Model,
    batch: Sequence[Array],
    loss: float,
    gradients: Mapping[str, Array],
    *,
    tolerance: float = GRADIENT_TOLERANCE,
    gradient_scale: float = 1.0,
    thoroughness: Thoroughness = THOROUGH,
) -> Verdict:
    """What `tilegrad gradcheck` reports: one mini-batch's loss and every gradient of it."""
    reference = (model.loss(batch),)
    rows = directional_check(
        model, batch, gradients, tolerance=tolerance, gradient_scale=gradient_scale, thoroughness=thoroughness
    )
    return Verdict(
        reference=f"central differences of {model.evaluator}",
        coverage="the loss and every gradient tensor of one mini-batch: directions through all its coordinates, "
        f"and its {thoroughness.coordinates} largest alone",
        tolerance=tolerance,
        reference_losses=reference,
        losses=check_losses((loss,), reference, DEFAULT_TOLERANCE),
        tensors=rows,
    )
