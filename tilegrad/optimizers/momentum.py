"""Stochastic gradient descent with momentum, Nesterov's on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilegrad.expectations import expect
from tilegrad.optimizers.base import Array, Optimizer


@dataclass(frozen=True)
class Momentum(Optimizer):
    operator = "Momentum"
    slots = ("momentum",)
    torch_slots: ClassVar[Mapping[str, str]] = {"momentum": "momentum_buffer"}
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(isinstance(self.nesterov, bool), "nesterov", "True or False", self.nesterov)
        expect(not self.nesterov or self.momentum > 0.0, "Nesterov's momentum", "more than 0", self.momentum)

    @property
    def attributes(self) -> dict[str, float]:
        own = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {**own, "nesterov": 1} if self.nesterov else own

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )

    def first_update(self, weight: Array, gradient: Array) -> Array:
        """There is no momentum yet; Nesterov's looks ahead by one all the same."""
        ahead = 1.0 + self.momentum if self.nesterov else 1.0
        return weight - self.lr * ahead * (gradient + self.weight_decay * weight)
