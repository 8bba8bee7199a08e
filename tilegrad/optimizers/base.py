"""What an optimizer is, as one class: its operator, its slots, its options, and the references that judge it.

Nothing here or beside it may import operators, differentiation or code generation: the references in
`tilegrad.verify` read these objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilegrad.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
_WORDS = {"weight_decay": "the weight decay", "momentum": "the momentum"}


def expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise UserError(f"{what} cannot be used", stage="recipe", expected=expected, got=str(got))


def _expect_number(what: str, value: float) -> None:
    expect(0.0 <= value < float("inf"), what, "a finite number, 0 or more", value)
    expect(value <= LARGEST_FLOAT, what, f"at most {LARGEST_FLOAT:.3g}, the largest float", value)


@dataclass(frozen=True)
class Optimizer(ABC):
    """`operator` is the update operator: (weight, gradient, slots…, learning rate, updates before this one where it
    `counts_updates`) -> (weight, slots…). `slots` are its per-parameter state tensors, all starting at zero."""

    operator: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()
    counts_updates: ClassVar[bool] = False

    lr: float = 0.01

    def __post_init__(self) -> None:
        _expect_number("the learning rate", self.lr)
        for name, value in self.attributes.items():
            if name.startswith("beta"):
                expect(0.0 <= value < 1.0, name, "0 or more, less than 1", value)
            else:
                _expect_number(_WORDS.get(name, name), value)

    @property
    def name(self) -> str:
        """What users call it: the name of its file."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def attributes(self) -> dict[str, float]:
        """Compile-time constants of the update operator; the learning rate is state, so that it can be changed."""
        return {}

    @abstractmethod
    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        """The same rule of `torch.optim`: it defines what this optimizer means."""

    @abstractmethod
    def first_update(self, weight: Array, gradient: Array) -> Array:
        """The weight after the first update, in float64 NumPy, written from PyTorch's published definition.

        No state is needed: before its first update every optimizer's state is zero.
        """
