"""The mean of the squared differences."""

from __future__ import annotations

import numpy as np

from tilegrad.losses.base import Loss, Targets

LOSS = Loss(
    operator="MSELoss",
    targets=Targets.SIGNED,
    torch=lambda torch, output, target: torch.nn.functional.mse_loss(output, target),
    float64=lambda output, target: float(np.square(output - target).mean()),
    reconstructs=True,
)
