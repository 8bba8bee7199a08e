"""Cross entropy of logits and class indices; the operator keeps the log-probabilities for its gradient.

`smoothing` gives every class that share of each row's weight in equal parts, `weight` is a number for each class, and
rows whose label is `ignore` count nothing: PyTorch's `label_smoothing`, `weight` and `ignore_index`.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from tilegrad.losses.base import Array, Loss, Option, Targets


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise ValueError(text)
    return value


def _label(text: str) -> int:
    value = int(text)
    if not -(2**31) <= value < 2**31:
        raise ValueError(text)
    return value


def _weights(text: str) -> tuple[float, ...]:
    values = tuple(float(part) for part in text.split("/"))
    if not all(isfinite(value) and value >= 0.0 for value in values):
        raise ValueError(text)
    return values


def _torch(
    torch: Any,
    output: Any,
    labels: Any,
    smoothing: float = 0.0,
    ignore: int | None = None,
    weight: tuple[float, ...] | None = None,
) -> Any:
    ignored = {} if ignore is None else {"ignore_index": ignore}
    classes = None if weight is None else torch.tensor(weight, dtype=output.dtype)
    return torch.nn.functional.cross_entropy(output, labels, weight=classes, label_smoothing=smoothing, **ignored)


def _float64(
    logits: Array,
    labels: Array,
    smoothing: float = 0.0,
    ignore: int | None = None,
    weight: tuple[float, ...] | None = None,
) -> float:
    highest = logits.max(axis=1, keepdims=True)
    log_prob = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    classes = np.ones(logits.shape[1]) if weight is None else np.asarray(weight, np.float64)
    counts = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    known = np.where(counts, labels, 0)
    shares = classes[known] * counts
    chosen = np.take_along_axis(log_prob, known[:, None], axis=1).squeeze(1)
    spread = (log_prob * classes.reshape(-1, *[1] * (logits.ndim - 2))).mean(axis=1) * counts
    rows = (1.0 - smoothing) * shares * chosen + smoothing * spread
    return float(-rows.sum() / shares.sum())


LOSS = Loss(
    operator="SoftmaxCrossEntropyLoss",
    targets=Targets.CLASSES,
    torch=_torch,
    float64=_float64,
    outputs=2,
    options={
        "smoothing": Option(_share, "a number from 0 up to, not including, 1", "smoothing"),
        "ignore": Option(_label, "a label, a whole number", "ignore_index"),
        "weight": Option(_weights, "a number for each class, 0 or more, as in 1/0.5/2"),
    },
)
