"""RMSprop: gradients divided by a running root mean square of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad.optimizers.base import Array, Optimizer


@dataclass(frozen=True)
class RMSprop(Optimizer):
    operator = "RMSprop"
    slots = ("square_avg",)
    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {"alpha": self.alpha, "epsilon": self.epsilon, "weight_decay": self.weight_decay}

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.RMSprop(
            parameters, lr=self.lr, alpha=self.alpha, eps=self.epsilon, weight_decay=self.weight_decay
        )

    def first_update(self, weight: Array, gradient: Array) -> Array:
        slope = gradient + self.weight_decay * weight
        root = np.sqrt((1.0 - self.alpha) * np.square(slope))
        return np.asarray(weight - self.lr * slope / (root + self.epsilon))
