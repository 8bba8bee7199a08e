"""Binary cross entropy of logits: softplus(output) - output * target."""

from __future__ import annotations

import numpy as np

from tilegrad.losses.base import Loss, Targets

LOSS = Loss(
    operator="BCEWithLogitsLoss",
    targets=Targets.BINARY,
    torch=lambda torch, output, target: torch.nn.functional.binary_cross_entropy_with_logits(output, target),
    float64=lambda output, target: float((np.logaddexp(0.0, output) - output * target).mean()),
)
