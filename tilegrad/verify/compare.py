"""The verdict on a run: every loss, every first gradient and every final weight against a reference.

A figure may differ from the float64 reference by the tolerance, or by ten times what PyTorch's own float32 run differs
from its float64 run up to that point, whichever is larger. Both figures are kept, so a report can show either.

A run that is no longer finite where the reference is not either has *diverged*: nothing was shown, right or wrong. One
that is off, but no further than ten times what PyTorch's float32 runs differ when their initial weights are moved by
one unit in the last place, is *inconclusive*: such a run amplifies rounding beyond what a comparison can tell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from tilegrad.errors import UserError
from tilegrad.verify.reference import Array, largest_norm, loss_errors, relative_error
from tilegrad.verify.sketch import Sketch, sketch_error

DEFAULT_TOLERANCE = 1e-4
FLOAT32_MARGIN = 10.0
JITTERS = 4

Target = Array | Sketch
Kind = Literal["gradient", "weight", "statistic", "evaluation"]
Outcome = Literal["verified", "disagrees", "diverged", "inconclusive"]


@dataclass(frozen=True)
class Reference:
    """What a run is compared with, and PyTorch's own float32 distance from each figure (empty if unknown).

    Tensors are whole arrays, or sketches where the reference is a golden. `loss_differences` are running maxima.
    `jittered(i)` trains again in float32 from weights that are each moved by one unit in the last place, up or down,
    differently for each i; None where the reference cannot be run.
    """

    name: str
    losses: tuple[float, ...]
    gradients: Mapping[str, Target]
    weights: Mapping[str, Target]
    statistics: Mapping[str, Target] = field(default_factory=dict)
    loss_differences: tuple[float, ...] = ()
    gradient_differences: Mapping[str, float] = field(default_factory=dict)
    weight_differences: Mapping[str, float] = field(default_factory=dict)
    statistic_differences: Mapping[str, float] = field(default_factory=dict)
    coverage: str = "losses of every mini-batch, first gradients and final weights of every trained tensor"
    jittered: Callable[[int], Measured] | None = None


@dataclass(frozen=True)
class Measured:
    """What a device's run left: see `ReferenceRun` for what each field means. `evaluation` is the loss of a training
    graph's own evaluation afterwards."""

    losses: Sequence[float]
    first_gradients: Mapping[str, Array]
    weights: Mapping[str, Array]
    statistics: Mapping[str, Array] = field(default_factory=dict)
    evaluation: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check(ABC):
    """One figure and its limit; `float32_difference` is PyTorch's own, None where no float32 run is known.

    `jitter_difference` is the largest of PyTorch's float32 runs with jittered weights, None where none was needed.
    """

    error: float
    allowed: float
    float32_difference: float | None = None
    jitter_difference: float | None = None

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed

    @property
    def is_within_noise(self) -> bool:
        """Whether ten times the difference of the jittered runs covers the error. A run of theirs that left the numbers
        has no bound."""
        return self.passed or (
            self.jitter_difference is not None and self.error <= FLOAT32_MARGIN * self.jitter_difference
        )

    @property
    def severity(self) -> float:
        return self.error / self.allowed

    @property
    @abstractmethod
    def subject(self) -> str:
        """What the figure is of, in words."""


@dataclass(frozen=True, kw_only=True)
class TensorCheck(Check):
    kind: Kind
    name: str
    note: str = ""

    @property
    def subject(self) -> str:
        return f"{self.kind} of {self.name}"


@dataclass(frozen=True, kw_only=True)
class LossCheck(Check):
    """One mini-batch, counted from 0."""

    minibatch: int

    @property
    def subject(self) -> str:
        return f"loss of mini-batch {self.minibatch + 1}"


@dataclass(frozen=True)
class Verdict:
    """`worst_tensor` is the one that comes closest to, or goes furthest beyond, what it is allowed.

    `has_left_the_numbers` says that losses or weights are not finite, neither here nor in the reference (or in its
    float32 run).
    """

    reference: str
    coverage: str
    tolerance: float
    reference_losses: tuple[float, ...]
    losses: tuple[LossCheck, ...]
    tensors: tuple[TensorCheck, ...]
    has_left_the_numbers: bool = False

    @property
    def outcome(self) -> Outcome:
        """A first loss or gradient that is finite and wrong is wrong, whatever became of the run after it."""
        first: list[Check] = [*self.losses[:1], *self._rows("gradient")]
        wrong = [row for row in first if not row.is_within_noise and isfinite(row.error)]
        if self.has_left_the_numbers and not wrong:
            return "diverged"
        if all(check.passed for check in self._checks()):
            return "verified"
        return "inconclusive" if all(check.is_within_noise for check in self._checks()) else "disagrees"

    @property
    def verified(self) -> bool:
        return self.outcome == "verified"

    @property
    def max_loss_error(self) -> float | None:
        return max((check.error for check in self.losses), default=None)

    @property
    def max_gradient_error(self) -> float | None:
        return self._largest("gradient")

    @property
    def max_weight_error(self) -> float | None:
        return self._largest("weight")

    @property
    def max_statistic_error(self) -> float | None:
        return self._largest("statistic")

    @property
    def worst_tensor(self) -> str | None:
        worst = max(self.tensors, key=lambda check: check.severity, default=None)
        return None if worst is None else worst.name

    def worst(self, kind: Kind | Literal["loss"]) -> Check | None:
        """The row of that kind nearest to its limit: what to print beside it is `allowed` and `float32_difference`."""
        rows: Sequence[Check] = self.losses if kind == "loss" else self._rows(kind)
        return max(rows, key=lambda check: check.severity, default=None)

    def failures(self) -> tuple[str, ...]:
        """A line for every figure that is off, the worst first."""
        rows = sorted((check for check in self._checks() if not check.passed), key=lambda check: -check.severity)
        return tuple(f"{row.subject} is off by {row.error:.3g}, allowed {row.allowed:.3g}" for row in rows)

    def as_json(self) -> dict[str, Any]:
        """The fields of `train --json` that come from verification, and the table behind them."""
        return {
            "reference": self.reference,
            "reference_losses": list(self.reference_losses),
            "max_loss_error": self.max_loss_error,
            "max_gradient_error": self.max_gradient_error,
            "max_weight_error": self.max_weight_error,
            "max_statistic_error": self.max_statistic_error,
            "worst_tensor": self.worst_tensor,
            "verified": self.verified,
            "verdict": self.outcome,
            "verification": {
                "coverage": self.coverage,
                "tolerance": self.tolerance,
                "losses": [
                    {
                        "error": row.error,
                        "allowed": row.allowed,
                        "float32_difference": row.float32_difference,
                        "jitter_difference": row.jitter_difference,
                    }
                    for row in self.losses
                ],
                "tensors": [
                    {
                        "kind": row.kind,
                        "name": row.name,
                        "error": row.error,
                        "allowed": row.allowed,
                        "float32_difference": row.float32_difference,
                        "jitter_difference": row.jitter_difference,
                        "note": row.note,
                    }
                    for row in self.tensors
                ],
            },
        }

    def _checks(self) -> list[Check]:
        return [*self.losses, *self.tensors]

    def _rows(self, kind: str) -> tuple[TensorCheck, ...]:
        return tuple(check for check in self.tensors if check.kind == kind)

    def _largest(self, kind: str) -> float | None:
        return max((check.error for check in self._rows(kind)), default=None)


def compare(measured: Measured, reference: Reference, tolerance: float = DEFAULT_TOLERANCE) -> Verdict:
    """Judge a run; a tensor the reference has and the run lacks is an error, never a pass.

    Only a run that is off costs the reference's jittered runs.
    """
    verdict = _compared(measured, reference, tolerance)
    if reference.jittered is None or verdict.outcome != "disagrees":
        return verdict
    for number in range(JITTERS):
        verdict = _with_noise(verdict, _compared(reference.jittered(number), reference, tolerance))
        if verdict.outcome != "disagrees":
            break
    return verdict


def _with_noise(verdict: Verdict, jittered: Verdict) -> Verdict:
    """The errors of a jittered run beside those of the run in question, which have the same order."""

    def worse(row: Check, noisy: Check) -> float:
        return max(row.jitter_difference or 0.0, noisy.error)

    return replace(
        verdict,
        losses=tuple(
            replace(row, jitter_difference=worse(row, noisy))
            for row, noisy in zip(verdict.losses, jittered.losses, strict=True)
        ),
        tensors=tuple(
            replace(row, jitter_difference=worse(row, noisy))
            for row, noisy in zip(verdict.tensors, jittered.tensors, strict=True)
        ),
    )


def _has_left_the_numbers(measured: Measured, reference: Reference) -> bool:
    own = _is_finite(measured.losses, measured.weights.values())
    differences = (*reference.loss_differences, *reference.weight_differences.values())
    theirs = _is_finite(reference.losses, reference.weights.values()) and all(isfinite(d) for d in differences)
    return not own and not theirs


def _is_finite(losses: Sequence[float], tensors: Iterable[Target]) -> bool:
    return all(isfinite(loss) for loss in losses) and all(
        isfinite(tensor.norm) if isinstance(tensor, Sketch) else bool(np.isfinite(tensor).all()) for tensor in tensors
    )


def _compared(measured: Measured, reference: Reference, tolerance: float) -> Verdict:
    return Verdict(
        reference=reference.name,
        coverage=reference.coverage,
        tolerance=tolerance,
        reference_losses=reference.losses,
        losses=check_losses(measured.losses, reference.losses, tolerance, reference.loss_differences),
        tensors=(
            *_check(
                "gradient", measured.first_gradients, reference.gradients, reference.gradient_differences, tolerance
            ),
            *_check("weight", measured.weights, reference.weights, reference.weight_differences, tolerance),
            *_check("statistic", measured.statistics, reference.statistics, reference.statistic_differences, tolerance),
        ),
        has_left_the_numbers=_has_left_the_numbers(measured, reference),
    )


def check_losses(
    measured: Sequence[float],
    reference: Sequence[float],
    tolerance: float,
    differences: Sequence[float] = (),
) -> tuple[LossCheck, ...]:
    errors = loss_errors(tuple(measured), tuple(reference))
    known: list[float | None] = list(differences) if differences else [None] * len(errors)
    return tuple(
        LossCheck(minibatch=index, error=error, allowed=_allowed(tolerance, difference), float32_difference=difference)
        for index, (error, difference) in enumerate(zip(errors, known, strict=True))
    )


def _check(
    kind: Kind,
    measured: Mapping[str, Array],
    reference: Mapping[str, Target],
    differences: Mapping[str, float],
    tolerance: float,
) -> list[TensorCheck]:
    missing = sorted(set(reference) - set(measured))
    if missing:
        raise UserError(f"the run has no {kind} for {', '.join(missing)}", stage="verify")
    largest = max((target.norm for target in reference.values() if isinstance(target, Sketch)), default=0.0)
    largest = max(largest, largest_norm(target for target in reference.values() if not isinstance(target, Sketch)))
    return [
        TensorCheck(
            kind=kind,
            name=name,
            error=_tensor_error(measured[name], target, largest),
            allowed=_allowed(tolerance, differences.get(name)),
            float32_difference=differences.get(name),
        )
        for name, target in reference.items()
    ]


def _tensor_error(measured: Array, target: Target, largest: float) -> float:
    if isinstance(target, Sketch):
        return sketch_error(measured, target, largest)
    return relative_error(measured, target, largest)


def _allowed(tolerance: float, difference: float | None) -> float:
    """A float32 run of PyTorch's that left the numbers (NaN, infinity) is no excuse for another that does."""
    return tolerance if difference is None or not isfinite(difference) else max(tolerance, FLOAT32_MARGIN * difference)
