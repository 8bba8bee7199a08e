"""What happens beside the updates of a run: measures before, per epoch and after, early stopping, and what is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.data.epochs import Feed
from tilegrad.devices.base import Session
from tilegrad.training.measures import Measures, measure_samples

Progress = Callable[[str, int, int], None]  # what, done, of
Arrays = dict[str, npt.NDArray[Any]]

RECENT = 100
"""Mini-batches that the loss in progress is the mean of."""


@dataclass(frozen=True)
class Epoch:
    """`loss` is the mean over its mini-batches while it trained."""

    number: int
    updates: int
    loss: float
    measures: Measures

    def as_json(self) -> dict[str, Any]:
        return {"epoch": self.number, "updates": self.updates, "loss": self.loss, **self.measures.as_json()}


@dataclass(frozen=True)
class Learning:
    """How good the model was: before, after each epoch, and at the end. `kept` is the epoch whose parameters were
    kept, None where the last ones were."""

    is_held_out: bool
    before: Measures
    epochs: tuple[Epoch, ...]
    after: Measures
    kept: int | None = None
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "of": "validation" if self.is_held_out else "training",
            "before": self.before.as_json(),
            "epochs": [epoch.as_json() for epoch in self.epochs],
            "after": self.after.as_json(),
            "kept_epoch": self.kept,
            "stopped_early": self.stopped,
        }


@dataclass
class Course:
    """Follows a run. `patience` is how many epochs may pass without a better measure; None never stops."""

    feed: Feed
    progress: Progress
    top_k: Sequence[int] = ()
    patience: int | None = None
    snapshot_at: int | None = None
    snapshot: tuple[Arrays, Arrays] | None = None  # weights and statistics after that update
    learning: Learning | None = None
    _before: Measures | None = None
    _epochs: list[Epoch] = field(default_factory=list)
    _best: tuple[int, Measures, Arrays] | None = None
    _stopped: bool = False
    _counted: int = 0
    _start: float = 0.0
    _measuring: float = 0.0

    def begin(self, session: Session) -> None:
        self._start = time.monotonic()
        if self.feed.measured is not None:
            self._before = self._measure(session, "before")

    def tell(self, done: int, of: int, losses: Sequence[float], updates: int = 0) -> None:
        """Epoch, loss, the last measure and the time left."""
        if not self.feed.ends:
            self.progress("train: mini-batch", done, of)
            return
        last = self._epochs[-1].measures if self._epochs else self._before
        number = 1 + sum(end <= updates for end in self.feed.ends[:-1])
        parts = [f"epoch {number} of {len(self.feed.ends)}", f"loss {np.mean(losses[-RECENT:]):.4g}"]
        if last is not None and last.accuracy is not None:
            parts.append(f"accuracy {100 * last.accuracy:.1f} %")
        passed = time.monotonic() - self._start - self._measuring
        minutes, seconds = divmod(int(passed / max(done, 1) * (of - done)), 60)
        self.progress(f"{', '.join(parts)}, {minutes}:{seconds:02d} left: mini-batch", done, of)

    def after_update(self, session: Session, update: int, losses: Sequence[float]) -> bool:
        """Whether to stop."""
        if update == self.snapshot_at:
            self.snapshot = (session.weights(), session.statistics())
        if update not in self.feed.ends or self.feed.measured is None:
            return False
        stops = self._after_epoch(session, update, losses)
        if stops and self.snapshot_at is not None and self.snapshot is None:
            self.snapshot = (session.weights(), session.statistics())
        return stops

    def _after_epoch(self, session: Session, update: int, losses: Sequence[float]) -> bool:
        begun, self._counted = self._counted, len(losses)
        for number in [i + 1 for i, end in enumerate(self.feed.ends) if end == update]:
            measures = self._measure(session, f"epoch {number}")
            mean = float(np.mean(losses[begun:] or losses))
            self._epochs.append(Epoch(number, update, mean, measures))
        if self.patience is None:
            return False
        epoch = self._epochs[-1]
        if epoch.measures.better_than(self._best[1] if self._best else None):
            self._best = (epoch.number, epoch.measures, session.parameters())
        assert self._best is not None
        self._stopped = epoch.number - self._best[0] >= self.patience and update < self.feed.updates
        return self._stopped

    def end(self, session: Session, updates: int) -> None:
        """The last measures; under patience, the best epoch's parameters."""
        if self._before is None:
            return
        kept = None
        if self._best is not None and self._best[0] != self._epochs[-1].number:
            session.set_parameters(self._best[2])
            kept = self._best[0]
        if kept is not None and self._best is not None:
            after = self._best[1]
        elif self._epochs and self._epochs[-1].updates == updates:
            after = self._epochs[-1].measures
        else:
            after = self._measure(session, "after")
        self.learning = Learning(self.feed.is_held_out, self._before, tuple(self._epochs), after, kept, self._stopped)

    def _measure(self, session: Session, when: str) -> Measures:
        assert self.feed.measured is not None
        start = time.monotonic()
        found = measure_samples(
            session,
            self.feed.measured,
            self.top_k,
            lambda done, of: self.progress(f"measures, {when}: mini-batch", done, of),
        )
        self._measuring += time.monotonic() - start
        return found


