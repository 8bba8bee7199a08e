"""Huber's loss: half the squared difference up to `delta`, and beyond it a straight line of slope `delta`."""

from __future__ import annotations

from math import isfinite

import numpy as np

from tilegrad.losses.base import Array, Loss, Option, Targets


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0.0 and isfinite(value)):
        raise ValueError(text)
    return value


def _float64(output: Array, target: Array, delta: float = 1.0) -> float:
    apart = np.abs(output - target)
    return float(np.where(apart <= delta, 0.5 * np.square(apart), delta * (apart - 0.5 * delta)).mean())


LOSS = Loss(
    operator="HuberLoss",
    targets=Targets.SIGNED,
    torch=lambda torch, output, target, delta=1.0: torch.nn.functional.huber_loss(output, target, delta=delta),
    float64=_float64,
    reconstructs=True,
    options={"delta": Option(_positive, "a finite number above 0", "delta")},
)
