"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad.optimizers.base import Array, Optimizer


@dataclass(frozen=True)
class Momentum(Optimizer):
    operator = "Momentum"
    slots = ("momentum",)
    momentum: float = 0.9
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {"momentum": self.momentum, "weight_decay": self.weight_decay}

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def first_update(self, weight: Array, gradient: Array) -> Array:
        """There is no momentum yet."""
        return weight - self.lr * (gradient + self.weight_decay * weight)
