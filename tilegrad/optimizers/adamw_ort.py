"""AdamW as ONNX Runtime's AdamWOptimizer has it by default, which is Hugging Face's form and not PyTorch's.

Epsilon is added to the root of the uncorrected second moment, the step has both corrections, and the weight decays
after its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad.expectations import expect
from tilegrad.optimizers.adam import Adam
from tilegrad.optimizers.base import Array


@dataclass(frozen=True)
class AdamWOrt(Adam):
    operator = "AdamWOptimizer"
    epsilon: float = 1e-6
    correct_bias: float = 1.0

    def __post_init__(self) -> None:
        wrong = isinstance(self.correct_bias, bool) or self.correct_bias not in (0, 1)
        expect(not wrong, "correct_bias", "0 or 1", self.correct_bias)
        super().__post_init__()

    @property
    def attributes(self) -> dict[str, float]:
        return {**super().attributes, "correct_bias": int(self.correct_bias)}

    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        defaults = {**self.torch_options(), "corrects": bool(self.correct_bias)}
        return _torch_class(torch)(parameters, defaults)

    def first_update(self, weight: Array, gradient: Array) -> Array:
        """The moments are (1 - beta) times the gradient and its square."""
        mean, square = (1.0 - self.beta1) * gradient, (1.0 - self.beta2) * np.square(gradient)
        size = self.lr * (np.sqrt(1.0 - self.beta2) / (1.0 - self.beta1) if self.correct_bias else 1.0)
        moved = weight - size * mean / (np.sqrt(square) + self.epsilon)
        return np.asarray(moved - self.lr * self.weight_decay * moved)


def _torch_class(torch: Any) -> Any:
    """PyTorch has none of this form: its arithmetic and its loop, by the published formula."""

    class HuggingFaceAdamW(torch.optim.Optimizer):  # type: ignore[misc]
        def step(self) -> None:
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            self._update(parameter, group, self.state[parameter])

        @staticmethod
        def _update(parameter: Any, group: Any, state: Any) -> None:
            (beta1, beta2), gradient = group["betas"], parameter.grad
            t = state["step"] = state.get("step", 0) + 1
            zero = torch.zeros_like(parameter)
            mean = state["mean"] = beta1 * state.get("mean", zero) + (1.0 - beta1) * gradient
            square = state["square"] = beta2 * state.get("square", zero) + (1.0 - beta2) * gradient * gradient
            correction = (1.0 - beta2**t) ** 0.5 / (1.0 - beta1**t) if group["corrects"] else 1.0
            parameter.sub_(group["lr"] * correction * mean / (square.sqrt() + group["eps"]))
            parameter.sub_(group["lr"] * group["weight_decay"] * parameter)

    return HuggingFaceAdamW
