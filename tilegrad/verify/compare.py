"""The verdict on a run: every loss, every first gradient and every final weight against a reference.

A figure may differ from the float64 reference by the tolerance, or by ten times what PyTorch's own float32 run differs
from its float64 run up to that point, whichever is larger. Both figures are kept, so a report can show either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal

from tilegrad.errors import UserError
from tilegrad.verify.reference import Array, largest_norm, loss_errors, relative_error
from tilegrad.verify.sketch import Sketch, sketch_error

DEFAULT_TOLERANCE = 1e-4
FLOAT32_MARGIN = 10.0

Target = Array | Sketch
Kind = Literal["gradient", "weight", "statistic"]


@dataclass(frozen=True)
class Reference:
    """What a run is compared with, and PyTorch's own float32 distance from each figure (empty if unknown).

    Tensors are whole arrays, or sketches where the reference is a golden. `loss_differences` are running maxima.
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


@dataclass(frozen=True)
class Measured:
    """What a device's run left: see `ReferenceRun` for what each field means."""

    losses: Sequence[float]
    first_gradients: Mapping[str, Array]
    weights: Mapping[str, Array]
    statistics: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check(ABC):
    """One figure and its limit; `float32_difference` is PyTorch's own, None where no float32 run is known."""

    error: float
    allowed: float
    float32_difference: float | None = None

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed

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
    """`worst_tensor` is the one that comes closest to, or goes furthest beyond, what it is allowed."""

    reference: str
    coverage: str
    tolerance: float
    reference_losses: tuple[float, ...]
    losses: tuple[LossCheck, ...]
    tensors: tuple[TensorCheck, ...]

    @property
    def verified(self) -> bool:
        return all(check.passed for check in self._checks())

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
    def has_diverged(self) -> bool:
        """Whether a figure that is wrong is not finite, neither here nor in PyTorch's own float32 run."""
        return any(check.error == check.float32_difference == inf for check in self._checks())

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
            "verification": {
                "coverage": self.coverage,
                "tolerance": self.tolerance,
                "losses": [
                    {"error": row.error, "allowed": row.allowed, "float32_difference": row.float32_difference}
                    for row in self.losses
                ],
                "tensors": [
                    {
                        "kind": row.kind,
                        "name": row.name,
                        "error": row.error,
                        "allowed": row.allowed,
                        "float32_difference": row.float32_difference,
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
    """Judge a run; a tensor the reference has and the run lacks is an error, never a pass."""
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
