"""Cross entropy of logits and class indices; the operator keeps the log-probabilities for its gradient."""

from __future__ import annotations

import numpy as np

from tilegrad.losses.base import Array, Loss, Targets


def _float64(logits: Array, labels: Array) -> float:
    highest = logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits - highest).sum(axis=1)) + highest.squeeze(1)
    chosen = np.take_along_axis(logits, labels[:, None], axis=1).squeeze(1)
    return float((log_sum - chosen).mean())


LOSS = Loss(
    operator="SoftmaxCrossEntropyLoss",
    targets=Targets.CLASSES,
    torch=lambda torch, output, labels: torch.nn.functional.cross_entropy(output, labels),
    float64=_float64,
    outputs=2,
)
