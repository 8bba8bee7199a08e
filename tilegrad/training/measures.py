"""How good a model is on stored samples: loss, accuracy, top-k, mean error, through the inference entry of a device.

The last mini-batch is filled up with samples that are not counted, so any number of them can be measured with any batch
size. Loss and measures are made on the host, in float64, of what the device put out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.data.batches import Batch, StoredSamples
from tilegrad.data.samples import infer_inputs
from tilegrad.devices.base import Session
from tilegrad.losses import Targets, parse

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measures:
    """Of `samples` samples. `accuracy` and `top` are shares of labels, None and empty where there are no classes;
    `mean_error` is the mean absolute difference from targets that are no labels."""

    samples: int
    loss: float
    accuracy: float | None = None
    top: dict[int, float] = field(default_factory=dict)
    mean_error: float | None = None

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.5g}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {100 * self.accuracy:.2f} %")
        parts += [f"top-{k} {100 * share:.2f} %" for k, share in self.top.items()]
        if self.mean_error is not None:
            parts.append(f"mean error {self.mean_error:.5g}")
        return ", ".join(parts)

    def better_than(self, other: Measures | None) -> bool:
        """By accuracy where there is one, then by loss."""
        if other is None:
            return True
        if self.accuracy is not None and other.accuracy is not None and self.accuracy != other.accuracy:
            return self.accuracy > other.accuracy
        return self.loss < other.loss

    def as_json(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "top": {str(k): share for k, share in self.top.items()},
            "mean_error": self.mean_error,
        }


def measure_samples(
    session: Session,
    stored: StoredSamples,
    top_k: Sequence[int] = (),
    telling: Callable[[int, int], None] = lambda done, of: None,
) -> Measures:
    """Every sample once, in order."""
    program = session.compiled.program
    batch = program.recipe.batch
    infer = program.entries["infer"]
    count, total = stored.count, -(-stored.count // batch)
    made: list[list[Array]] = [[] for _ in infer.outputs]
    for i in range(total):
        numbers = np.arange(i * batch, (i + 1) * batch, dtype=np.int64)
        results = session.run("infer", infer_inputs(session.compiled, stored.take(numbers)))
        kept = min(batch, count - i * batch)
        for column, array in zip(made, results, strict=True):
            column.append(array[:kept] if array.ndim and array.shape[0] == batch else array)
        telling(i + 1, total)
    outputs = {
        name: np.concatenate([np.atleast_1d(array) for array in column])
        for name, column in zip(infer.outputs, made, strict=True)
    }
    return _measures(session, outputs, stored.take(np.arange(count, dtype=np.int64)), count, top_k)


def _measures(
    session: Session, outputs: dict[str, Array], samples: Batch, count: int, top_k: Sequence[int]
) -> Measures:
    program = session.compiled.program
    loss = parse(program.loss)
    by_name = dict(zip(program.entries["step"].inputs, samples, strict=True))
    targets = [by_name[target.name] for target in program.targets]
    if loss.is_output:
        return Measures(count, float(np.mean([np.mean(loss.output_of(term, outputs)) for term in loss.terms])))
    wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in outputs.items()}
    value = float(loss.value(wide, targets))
    term = loss.targets[0]
    prediction, target = wide[term.output or next(iter(wide))], np.asarray(targets[0])
    if term.has_classes:
        return _classified(prediction, target, term.options.get("ignore"), count, value, top_k)
    if term.kind is not None and term.kind.targets is Targets.BINARY:
        return Measures(count, value, float(np.mean((prediction > 0.0) == (target.reshape(prediction.shape) > 0.5))))
    return Measures(count, value, mean_error=float(np.mean(np.abs(prediction - target.reshape(prediction.shape)))))


def _classified(
    logits: Array, labels: Array, ignored: int | None, count: int, loss: float, top_k: Sequence[int]
) -> Measures:
    """A label's rank is how many classes are above it; of equal ones the first wins, as in argmax."""
    rows = np.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])
    wanted = labels.astype(np.int64).reshape(-1)
    if ignored is not None:
        rows, wanted = rows[wanted != ignored], wanted[wanted != ignored]
    own = np.take_along_axis(rows, wanted[:, np.newaxis], axis=1)
    earlier = np.arange(rows.shape[1]) < wanted[:, np.newaxis]
    ranks = np.sum((rows > own) | ((rows == own) & earlier) | np.isnan(rows), axis=1)

    def share(k: int) -> float:
        return float(np.mean(ranks < k)) if len(ranks) else 0.0

    return Measures(count, loss, share(1), {k: share(k) for k in top_k if k > 1})
