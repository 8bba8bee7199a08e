"""The words shared by every reference: the recipe it follows and what a run of it leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tilegrad.errors import UserError
from tilegrad.losses import parse
from tilegrad.optimizers import SGD, Optimizer
from tilegrad.recipe.rates import Rate
from tilegrad.recipe.stored_types import Stored

Array = np.ndarray[Any, np.dtype[Any]]
AccumulationMode = Literal["mean", "sum"]
BatchNormPolicy = Literal["frozen", "train"]

DropoutMask = Callable[[str, tuple[int, ...], int], "Array | None"]
"""(node name, shape, mini-batch from 0) -> the keep mask (non-zero is kept), or None to leave values unchanged."""


@dataclass(frozen=True)
class TrainedPart:
    """Some channels of a tensor, along an axis, that train under a name of their own; the rest of it does not."""

    tensor: str
    axis: int
    channels: tuple[int, ...]


@dataclass(frozen=True)
class ReferenceRecipe:
    """How to train, in terms every reference understands; loss and optimizer bring their own references."""

    loss: str = "cross_entropy"
    optimizer: Optimizer = field(default_factory=SGD)
    accumulate: int = 1
    accum_mode: AccumulationMode = "mean"
    batchnorm: BatchNormPolicy = "frozen"
    rate: Rate = field(default_factory=Rate)
    clip: float | None = None
    undecayed: frozenset[str] = frozenset()  # names of parameters without weight decay
    store: Stored = field(default_factory=Stored)
    parts: Mapping[str, TrainedPart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse(self.loss)
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("accum_mode", self.accum_mode, ("mean", "sum")),
            ("batchnorm", self.batchnorm, ("frozen", "train")),
        )
        for what, value, allowed in choices:
            if value not in allowed:
                raise UserError(f"no reference for {what} '{value}'", stage="verify", expected="|".join(allowed))
        if self.accumulate < 1:
            raise UserError(
                "accumulation needs at least one mini-batch", stage="verify", expected=">= 1", got=str(self.accumulate)
            )

    @property
    def gradient_scale(self) -> float:
        """What one mini-batch's gradient is multiplied by when it enters the gradient buffer."""
        return 1.0 / self.accumulate if self.accum_mode == "mean" else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Equal recipes train equally. What a recipe does without is not named."""
        without = {
            "rate": self.rate.is_constant,
            "clip": self.clip is None,
            "undecayed": not self.undecayed,
            "store": self.store.is_plain,
            "parts": not self.parts,
        }
        own = {key: value for key, value in dataclasses.asdict(self).items() if not without.get(key, False)}
        if self.undecayed:
            own["undecayed"] = sorted(self.undecayed)
        options = {key: value for key, value in dataclasses.asdict(self.optimizer).items() if value is not False}
        return {**own, "optimizer": self.optimizer.name, **options}

    def first_update(self, weights: Mapping[str, Array], gradients: Mapping[str, Array]) -> dict[str, Array]:
        """Every weight after the first update, in float64 NumPy; no optimizer has state before it."""
        optimizer = dataclasses.replace(self.optimizer, lr=self.optimizer.lr * self.rate.share(0))
        spared = optimizer.without_decay()
        scale = 1.0
        if self.clip is not None:
            norm = float(np.sqrt(sum(float(np.sum(np.square(gradient))) for gradient in gradients.values())))
            scale = min(1.0, self.clip / (norm + 1e-6))
        return {
            name: (spared if name in self.undecayed else optimizer).first_update(weights[name], scale * gradient)
            for name, gradient in gradients.items()
        }


@dataclass(frozen=True)
class Start:
    """Where a run goes on that was begun before: what it had learned, and how far it was.

    `slots` is an optimizer's state by parameter; `gradients` what was accumulated since the last update.
    """

    weights: Mapping[str, Array]
    statistics: Mapping[str, Array] = field(default_factory=dict)
    slots: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    gradients: Mapping[str, Array] = field(default_factory=dict)
    learning_rate: float | None = None
    minibatches: int = 0
    updates: int = 0


@dataclass(frozen=True)
class ReferenceRun:
    """What a reference produced.

    `losses` has one entry per mini-batch, unscaled. `first_gradients` is the gradient *buffer* after the first
    mini-batch: the mean mode's buffer holds gradient / accumulate, the sum mode's the gradient itself. `weights` are
    the trainable initializers after the last update; mini-batches left over after it are in `losses` but in no weight.
    `statistics` are BatchNormalization's running mean and variance by initializer name (changed under policy `train`
    only, by PyTorch's rule: unbiased variance). `logits` are the inference entry's output after training on the first
    mini-batch's input. `snapshots` holds the weights after the updates that were asked for, counted from 1.
    """

    losses: tuple[float, ...]
    first_gradients: Mapping[str, Array]
    weights: Mapping[str, Array]
    statistics: Mapping[str, Array]
    logits: Array
    snapshots: Mapping[int, Mapping[str, Array]] = field(default_factory=dict)


NOISE_FLOOR = 1e-14
"""A tensor whose norm is this small beside the largest of its kind is float64's own rounding noise around zero."""


def tensor_scale(norm: float, largest: float = 0.0) -> float:
    """What a tensor's error is relative to: its norm, unless it is zero or rounding noise around zero.

    Some gradients are zero by mathematics (a bias in front of a softmax over the same axis); their reference is 1e-17
    and any float32 value is wrong by a factor of a million relative to that. Such a tensor is judged on the scale of
    the largest tensor of its kind, and absolutely if all are zero.
    """
    if norm > NOISE_FLOOR * largest:
        return norm
    return largest if largest > 0.0 else 1.0


def largest_norm(tensors: Iterable[Array]) -> float:
    norms = [float(np.linalg.norm(np.asarray(tensor, dtype=np.float64).ravel())) for tensor in tensors]
    return max((norm for norm in norms if np.isfinite(norm)), default=0.0)


def relative_error(measured: Array, reference: Array, largest: float = 0.0) -> float:
    """‖measured − reference‖ relative to `tensor_scale`; NaNs and infinities agree with their like."""
    left = np.asarray(measured, dtype=np.float64).ravel()
    right = np.asarray(reference, dtype=np.float64).ravel()
    if left.shape != right.shape:
        raise UserError(
            "a tensor and its reference differ in size", stage="verify", expected=str(right.size), got=str(left.size)
        )
    special = ~np.isfinite(left) | ~np.isfinite(right)
    if special.any():
        same = (np.isnan(left) & np.isnan(right)) | (left == right)
        if not same[special].all():
            return float("inf")
        left, right = left[~special], right[~special]
    return float(np.linalg.norm(left - right)) / tensor_scale(float(np.linalg.norm(right)), largest)


def relative_errors(measured: Mapping[str, Array], reference: Mapping[str, Array]) -> dict[str, float]:
    """The relative error of every tensor of the reference."""
    largest = largest_norm(reference.values())
    return {name: relative_error(measured[name], tensor, largest) for name, tensor in reference.items()}


def loss_errors(measured: tuple[float, ...], reference: tuple[float, ...]) -> tuple[float, ...]:
    """Per mini-batch error relative to the larger of the reference loss and 1 % of the first reference loss."""
    if len(measured) != len(reference):
        raise UserError(
            "the runs have different numbers of mini-batches",
            stage="verify",
            expected=str(len(reference)),
            got=str(len(measured)),
        )
    floor = 0.01 * abs(reference[0]) if reference else 0.0
    return tuple(_scalar_error(left, right, floor) for left, right in zip(measured, reference, strict=True))


def _scalar_error(measured: float, reference: float, floor: float) -> float:
    if measured == reference or (np.isnan(measured) and np.isnan(reference)):
        return 0.0
    if not (np.isfinite(measured) and np.isfinite(reference)):
        return float("inf")
    scale = max(abs(reference), floor if np.isfinite(floor) else 0.0)
    return abs(measured - reference) / scale if scale > 0.0 else abs(measured - reference)
