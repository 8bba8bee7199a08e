"""Adam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad.optimizers.base import Array, Optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    operator = "Adam"
    slots = ("exp_avg", "exp_avg_sq")
    counts_updates = True
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
        }

    def torch_options(self) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "betas": (self.beta1, self.beta2),
            "eps": self.epsilon,
            "weight_decay": self.weight_decay,
        }

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.Adam(parameters, **self.torch_options())

    def first_update(self, weight: Array, gradient: Array) -> Array:
        return self.first_step(weight, gradient + self.weight_decay * weight)

    def first_step(self, weight: Array, slope: Array) -> Array:
        """Bias correction cancels (1 - beta) in both moments of the first update."""
        return np.asarray(weight - self.lr * slope / (np.abs(slope) + self.epsilon))
