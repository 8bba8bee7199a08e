"""Epochs over stored samples: which are held out, in which order the others come, and how far they reach.

Mini-batches run on from one epoch into the next, so that every sample of every epoch is used; only what is left at the
very end, less than an update, is not. Which sample comes when is a function of (seed, epoch, index) alone: a board, or
a run that was interrupted, needs to know no more (docs/training.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilegrad import random
from tilegrad.compiled import Compiled
from tilegrad.data.batches import Batch, Batches, GivenBatches, MiniBatches, StoredSamples
from tilegrad.data.samples import make_batches
from tilegrad.errors import UserError
from tilegrad.recipe import expect_count

DEFAULT_STEPS = 4
HELD_OUT = 0xFFFFFFFF
"""The epoch whose order says which samples are held out: no run gets that far."""


@dataclass(frozen=True)
class Plan:
    """How a run goes through its data. `epochs` None is `steps` updates on samples in order."""

    steps: int | None = None
    epochs: int | None = None
    shuffles: bool | None = None
    validation: float | str | Path | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            expect_count("the number of steps", self.steps)
        if self.epochs is not None:
            expect_count("the number of epochs", self.epochs)
        if self.steps is not None and self.epochs is not None:
            raise UserError(
                "a run is told how long it is twice", stage="options", got=f"{self.steps} steps, {self.epochs} epochs"
            )
        if isinstance(self.validation, float | int) and not 0.0 < self.validation < 1.0:
            raise UserError(
                "the share of validation samples cannot be used",
                stage="data",
                expected="more than 0 and less than 1, or an .npz file",
                got=str(self.validation),
            )


@dataclass(frozen=True, eq=False)
class OrderedSamples:
    """Epoch after epoch of the chosen samples, each in an order of its own."""

    stored: StoredSamples
    chosen: npt.NDArray[np.int64]
    seed: int
    shuffles: bool

    @property
    def batched(self) -> tuple[bool, ...]:
        return self.stored.batched

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        epochs, places = np.divmod(numbers, len(self.chosen))
        if self.shuffles:
            for epoch in np.unique(epochs):
                of_it = epochs == epoch
                places[of_it] = random.order(self.seed, int(epoch), len(self.chosen))[places[of_it]]
        return self.stored.take(self.chosen[places])


@dataclass(frozen=True, eq=False)
class Feed:
    """What a run is fed. `measured` are the samples that measures are of, held out or not; `ends` are the updates after
    which an epoch is complete."""

    batches: Batches | GivenBatches
    updates: int
    ends: tuple[int, ...] = ()
    measured: StoredSamples | None = None
    is_held_out: bool = False
    notes: tuple[str, ...] = ()

    def first(self, minibatches: int) -> MiniBatches:
        return self.batches.first(minibatches)

    @property
    def sample_count(self) -> int | None:
        """Of a pass over the data; None where there is no end to it."""
        samples = self.batches.samples if isinstance(self.batches, Batches) else None
        if isinstance(samples, OrderedSamples):
            return len(samples.chosen)
        return samples.count if isinstance(samples, StoredSamples) else None


def make_feed(compiled: Compiled, data: str | Path | None, plan: Plan, default_steps: int = DEFAULT_STEPS) -> Feed:
    """The mini-batches of a run, and what is held out of them."""
    batches = make_batches(compiled, data)
    given = compiled.model.training
    if data is None and given is not None and given.steps:
        default_steps = max(1, given.steps * (given.accumulate or 1) // compiled.program.recipe.accumulate)
    if plan.epochs is None and plan.validation is None and not plan.shuffles:
        return Feed(batches, plan.steps or default_steps)
    if not isinstance(batches, Batches) or not isinstance(batches.samples, StoredSamples):
        raise UserError("epochs are of samples that are stored", stage="data", hint="give --data F.npz")
    stored = batches.samples
    recipe = compiled.program.recipe
    held: StoredSamples | None = None
    notes: tuple[str, ...] = ()
    chosen = np.arange(stored.count, dtype=np.int64)
    if isinstance(plan.validation, float | int):
        chosen, held, notes = _split(stored, float(plan.validation), recipe.seed)
    elif plan.validation is not None:
        held = _stored_of(make_batches(compiled, plan.validation))
    shuffles = plan.epochs is not None if plan.shuffles is None else plan.shuffles
    ordered = OrderedSamples(stored, chosen, recipe.seed, shuffles)
    feed = Feed(
        replace(batches, samples=ordered),
        plan.steps or default_steps,
        measured=held if held is not None else stored,
        is_held_out=held is not None,
        notes=notes,
    )
    if plan.epochs is None:
        return feed
    return _with_epochs(feed, plan.epochs, len(chosen), recipe.batch, recipe.accumulate)


def _stored_of(batches: Batches | GivenBatches) -> StoredSamples:
    assert isinstance(batches, Batches) and isinstance(batches.samples, StoredSamples)
    return batches.samples


def _split(
    stored: StoredSamples, share: float, seed: int
) -> tuple[npt.NDArray[np.int64], StoredSamples, tuple[str, ...]]:
    """Training samples in the order of the file, and those held out."""
    held_count = round(share * stored.count)
    if not 0 < held_count < stored.count:
        raise UserError(
            "the share of validation samples leaves no sample",
            stage="data",
            expected="at least one sample to train on and one to validate with",
            got=f"{held_count} of {stored.count} samples held out ({share:g})",
        )
    held = np.sort(random.order(seed, HELD_OUT, stored.count)[:held_count])
    rest = np.setdiff1d(np.arange(stored.count, dtype=np.int64), held)
    return rest, stored.chosen(held), (f"{held_count:,} of {stored.count:,} samples are held out for validation",)


def _with_epochs(feed: Feed, epochs: int, samples: int, batch: int, accumulate: int) -> Feed:
    per_update = batch * accumulate
    total = epochs * samples
    updates = total // per_update
    if not updates:
        raise UserError(
            "the samples do not fill one update",
            stage="data",
            expected=f"{per_update:,} samples or more (batch {batch}, {accumulate} mini-batches to an update)",
            got=f"{samples:,} samples, {epochs} epoch(s)",
        )
    ends = tuple(max(1, (epoch * samples) // per_update) for epoch in range(1, epochs + 1))
    left = total - updates * per_update
    note = f"{left:,} samples of the last epoch are left over: they do not fill an update of {per_update:,}"
    return replace(feed, updates=updates, ends=ends, notes=(*feed.notes, *((note,) if left else ())))


def count_updates(samples: int, plan: Plan, batch: int, accumulate: int, default_steps: int = DEFAULT_STEPS) -> int:
    """How many updates a run will have, before anything is compiled: what a schedule may follow."""
    if plan.epochs is None:
        return plan.steps or default_steps
    if isinstance(plan.validation, float | int):
        samples -= round(plan.validation * samples)
    return max(1, plan.epochs * samples // (batch * accumulate))
