"""Adam whose weight decay does not pass through the moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad.optimizers.adam import Adam
from tilegrad.optimizers.base import Array


@dataclass(frozen=True)
class AdamW(Adam):
    operator = "AdamW"
    weight_decay: float = 0.01

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        return torch.optim.AdamW(parameters, **self.torch_options())

    def first_update(self, weight: Array, gradient: Array) -> Array:
        return self.first_step(weight * (1.0 - self.lr * self.weight_decay), gradient)
