"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad.optimizers.base import Array, Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    operator = "SGD"
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {"weight_decay": self.weight_decay}

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.SGD(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def first_update(self, weight: Array, gradient: Array) -> Array:
        return weight - self.lr * (gradient + self.weight_decay * weight)
