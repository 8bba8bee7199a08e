"""PyTorch as the reference: its operators, its autograd, its optimizers.

PyTorch is an optional extra, so nothing here imports it before it is used; `available()` says whether it can be.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx

from tilegrad.errors import UserError
from tilegrad.verify.compare import Measured, Reference
from tilegrad.verify.jitter import jitter as jitter_weights
from tilegrad.verify.reference import (
    Array,
    DropoutMask,
    ReferenceRecipe,
    ReferenceRun,
    Start,
    loss_errors,
    relative_errors,
)

if TYPE_CHECKING:
    from tilegrad.verify.torch_module_reference import ModuleReference, ModuleTrainer
    from tilegrad.verify.torch_trainer import TorchTrainer

__all__ = ["ReferencePair", "ReferenceRecipe", "ReferenceRun", "available", "name", "run", "run_pair"]

Batch = tuple[Array, ...]


def available() -> bool:
    return importlib.util.find_spec("torch") is not None


def name() -> str:
    """What a report calls this reference, e.g. `PyTorch 2.13.0 float64`."""
    return f"PyTorch {importlib.metadata.version('torch').split('+')[0]} float64"


@dataclass(frozen=True)
class ReferencePair:
    """The float64 run that is the reference, and how far PyTorch's own float32 run strays from it.

    `loss_differences[i]` is the largest relative loss difference of mini-batches 0..i; `weight_differences` the largest
    over all updates, per tensor; `weight_differences_after` the largest up to each snapshot. All per tensor figures are
    relative to the tensor's norm.
    """

    name: str
    recipe: ReferenceRecipe
    double: ReferenceRun
    single: ReferenceRun
    loss_differences: tuple[float, ...]
    gradient_differences: dict[str, float]
    weight_differences: dict[str, float]
    statistic_differences: dict[str, float]
    weight_differences_after: dict[int, dict[str, float]]
    jittered: Callable[[int], Measured] | None = None

    def as_reference(self) -> Reference:
        return Reference(
            name=self.name,
            losses=self.double.losses,
            gradients=self.double.first_gradients,
            weights=self.double.weights,
            statistics=self.double.statistics if self.recipe.batchnorm == "train" else {},
            loss_differences=self.loss_differences,
            gradient_differences=self.gradient_differences,
            weight_differences=self.weight_differences,
            statistic_differences=self.statistic_differences,
            jittered=self.jittered,
        )


def run(
    model: onnx.ModelProto | ModuleReference,
    recipe: ReferenceRecipe,
    batches: Sequence[Batch],
    trainable: Sequence[str],
    dtype: Literal["float32", "float64"] = "float64",
    *,
    dropout_mask: DropoutMask | None = None,
    snapshots: Sequence[int] = (),
    jitter: int | None = None,
    start: Start | None = None,
) -> ReferenceRun:
    """Train `model` on `batches` in order, with an update after every `recipe.accumulate` of them.

    `jitter` numbers a choice of directions: each initial weight is moved by one float32 unit in the last place.
    """
    recorder = _Recorder(_trainer(model, recipe, trainable, dtype, dropout_mask), frozenset(snapshots), start)
    if jitter is not None:
        jitter_weights(recorder.trainer.parameters.values(), jitter)
    for batch in _checked(batches):
        recorder.minibatch(batch)
    return recorder.finish(batches[0])


def run_pair(
    model: onnx.ModelProto | ModuleReference,
    recipe: ReferenceRecipe,
    batches: Sequence[Batch],
    trainable: Sequence[str],
    *,
    dropout_mask: DropoutMask | None = None,
    snapshots: Sequence[int] = (),
    start: Start | None = None,
) -> ReferencePair:
    """The same training in float64 and float32 side by side; the distance between them is measured at every update.

    `start` is where a run goes on that was begun before.
    """
    double, single = (
        _Recorder(_trainer(model, recipe, trainable, dtype, dropout_mask), frozenset(snapshots), start)
        for dtype in _float_types(model)
    )
    differences = dict.fromkeys(trainable, 0.0)
    after: dict[int, dict[str, float]] = {}
    for batch in _checked(batches):
        updated = double.minibatch(batch)
        single.minibatch(batch)
        if updated:
            apart = relative_errors(single.trainer.weights(), double.trainer.weights())
            differences = {key: max(differences[key], error) for key, error in apart.items()}
            if double.updates in double.snapshot_updates:
                after[double.updates] = dict(differences)

    def jittered(number: int) -> Measured:
        again = run(
            model, recipe, batches, trainable, "float32", dropout_mask=dropout_mask, jitter=number, start=start
        )
        return Measured(again.losses, again.first_gradients, again.weights, again.statistics)

    exact, rounded = double.finish(batches[0]), single.finish(batches[0])
    return ReferencePair(
        name=_title(model) + ("" if recipe.store.is_plain else f", storing {recipe.store}"),
        recipe=recipe,
        double=exact,
        single=rounded,
        loss_differences=tuple(np.maximum.accumulate(loss_errors(rounded.losses, exact.losses)).tolist()),
        gradient_differences=relative_errors(rounded.first_gradients, exact.first_gradients),
        weight_differences=differences,
        statistic_differences=relative_errors(rounded.statistics, exact.statistics),
        weight_differences_after=after,
        jittered=jittered,
    )


class _Recorder:
    """One trainer and what its run has left so far."""

    def __init__(
        self, trainer: TorchTrainer | ModuleTrainer, snapshot_updates: frozenset[int], start: Start | None = None
    ) -> None:
        self.trainer = trainer
        self.before = 0 if start is None else start.minibatches
        if start is not None:
            trainer.begin_at(start)
        self.snapshot_updates = snapshot_updates
        self.losses: list[float] = []
        self.first_gradients: dict[str, Array] = {}
        self.snapshots: dict[int, dict[str, Array]] = {}
        self.updates = 0

    def minibatch(self, batch: Batch) -> bool:
        """Train on one mini-batch; True if it completed an update."""
        self.losses.append(self.trainer.step(*batch))
        if len(self.losses) == 1:
            self.first_gradients = self.trainer.gradients()
        if (self.before + len(self.losses)) % self.trainer.recipe.accumulate:
            return False
        self.trainer.update()
        self.updates += 1
        if self.updates in self.snapshot_updates:
            self.snapshots[self.updates] = self.trainer.weights()
        return True

    def finish(self, batch: Batch) -> ReferenceRun:
        return ReferenceRun(
            losses=tuple(self.losses),
            first_gradients=self.first_gradients,
            weights=self.trainer.weights(),
            statistics=self.trainer.statistics(),
            logits=self.trainer.infer(*batch),
            snapshots=self.snapshots,
        )


def _float_types(model: onnx.ModelProto | ModuleReference) -> tuple[str, str]:
    return ("float64", "float32") if isinstance(model, onnx.ModelProto) else model.float_types


def _title(model: onnx.ModelProto | ModuleReference) -> str:
    return name() if isinstance(model, onnx.ModelProto) else f"{name().removesuffix(' float64')} {model.title}"


def _trainer(
    model: onnx.ModelProto | ModuleReference,
    recipe: ReferenceRecipe,
    trainable: Sequence[str],
    dtype: str,
    dropout_mask: DropoutMask | None,
) -> TorchTrainer | ModuleTrainer:
    if not available():
        raise UserError("PyTorch is not installed", stage="verify", hint="pip install 'tilegrad[torch]'")
    if not isinstance(model, onnx.ModelProto):
        from tilegrad.verify.torch_module_reference import ModuleTrainer

        return ModuleTrainer(model, recipe, trainable, dtype)
    from tilegrad.verify.torch_trainer import TorchTrainer

    return TorchTrainer(model, recipe, trainable, dtype, dropout_mask)


def _checked(batches: Sequence[Batch]) -> Sequence[Batch]:
    if not batches:
        raise UserError("there is no mini-batch to train on", stage="verify")
    return batches
