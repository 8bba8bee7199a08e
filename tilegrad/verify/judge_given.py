"""The verdict on a run whose backward graph was given: what its makers stored, and their graphs executed in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilegrad.verify.compare import LossCheck, Measured, TensorCheck, Verdict, compare
from tilegrad.verify.given_graph import GivenGraphs, reference_of
from tilegrad.verify.reference import largest_norm, loss_errors, relative_error

if TYPE_CHECKING:
    from tilegrad.compiled import Compiled
    from tilegrad.ir.given import GivenReferences, GivenTraining

Batch = tuple[npt.NDArray[Any], ...]


def judge_given(compiled: Compiled, measured: Measured, batches: Sequence[Batch], tolerance: float) -> Verdict:
    """Stored results count where the run is theirs: same data, and for weights the same number of mini-batches."""
    training = compiled.model.training
    assert training is not None
    recipe = compiled.program.recipe
    reference, evaluation = reference_of(given_graphs(compiled), batches, recipe.accumulate)
    verdict = compare(measured, reference, tolerance)
    if measured.evaluation is not None and np.isfinite(evaluation):
        verdict = _with_tensors(verdict, [_evaluated(measured.evaluation, evaluation, tolerance, "")])
    stored = training.references
    if stored is None or not _is_theirs(training, compiled, batches):
        return verdict
    return _with_stored(verdict, measured, stored, tolerance)


def given_graphs(compiled: Compiled) -> GivenGraphs:
    """The graphs as they came, with what the recipe decides."""
    training = compiled.model.training
    assert training is not None
    recipe = compiled.program.recipe
    rates = {u.parameter: u.learning_rate for u in training.updates if u.learning_rate is not None}
    return GivenGraphs(
        training=training.protos["training"],
        evaluation=training.protos["evaluation"],
        parameters=training.gradients,
        initial=training.initial,
        inputs=compiled.program.entries["step"].inputs,
        optimizer=recipe.optimizer,
        rates=rates if recipe.optimizer == training.optimizer else {},
        slots={u.parameter: u.slots for u in training.updates if u.slots},
        updates_done=training.updates_done,
    )


def _is_theirs(training: GivenTraining, compiled: Compiled, batches: Sequence[Batch]) -> bool:
    """Whether the run is fed what came along."""
    names = compiled.program.entries["step"].inputs
    count = len(training.batches)
    return bool(count) and all(
        all(np.array_equal(array, training.batches[i % count][name]) for name, array in zip(names, batch, strict=True))
        for i, batch in enumerate(batches[:count])
    )


def _with_stored(verdict: Verdict, measured: Measured, stored: GivenReferences, tolerance: float) -> Verdict:
    known = stored.losses[: len(measured.losses)]
    errors = loss_errors(tuple(measured.losses[: len(known)]), known)
    losses: list[LossCheck] = []
    for check in verdict.losses:
        own = errors[check.minibatch] if check.minibatch < len(errors) else 0.0
        losses.append(replace(check, error=own) if own > check.error else check)
    rows: list[TensorCheck] = []
    if len(measured.losses) == stored.minibatches:
        largest, note = largest_norm(stored.weights.values()), f"stored in {stored.source}"
        rows = [
            TensorCheck(
                kind="weight",
                name=name,
                error=relative_error(measured.weights[name], array, largest),
                allowed=tolerance,
                note=note,
            )
            for name, array in stored.weights.items()
        ]
        if stored.evaluation is not None and measured.evaluation is not None:
            rows.append(_evaluated(measured.evaluation, stored.evaluation, tolerance, note))
    if not known and not rows:
        return verdict
    shown = (*known, *verdict.reference_losses[len(known) :])
    made = replace(verdict, reference=f"{stored.source} and {verdict.reference}", losses=tuple(losses))
    return _with_tensors(replace(made, reference_losses=shown), rows)


def _with_tensors(verdict: Verdict, rows: Sequence[TensorCheck]) -> Verdict:
    return replace(verdict, tensors=(*verdict.tensors, *rows))


def _evaluated(measured: float, wanted: float, tolerance: float, note: str) -> TensorCheck:
    error = abs(measured - wanted) / max(abs(wanted), 1e-30)
    return TensorCheck(kind="evaluation", name="the trained model", error=error, allowed=tolerance, note=note)
