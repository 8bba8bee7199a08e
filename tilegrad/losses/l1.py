"""The mean of the absolute differences."""

from __future__ import annotations

import numpy as np

from tilegrad.losses.base import Loss, Targets

LOSS = Loss(
    operator="L1Loss",
    targets=Targets.SIGNED,
    torch=lambda torch, output, target: torch.nn.functional.l1_loss(output, target),
    float64=lambda output, target: float(np.abs(output - target).mean()),
    reconstructs=True,
)
