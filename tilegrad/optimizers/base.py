"""What an optimizer is, as one class: its operator, its slots, its options, and the references that judge it.

Nothing here or beside it may import operators, differentiation or code generation: the references in
`tilegrad.verify` read these objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from tilegrad.expectations import RATE_UNLESS_TOLD, expect, expect_number, expect_share, is_told

Array = np.ndarray[Any, np.dtype[Any]]
_WORDS = {"weight_decay": "the weight decay", "momentum": "the momentum"}
# Beyond these an optimizer does not average any more: it amplifies, or divides by zero.
_BELOW_ONE = ("momentum", "beta1", "beta2", "alpha")
_ABOVE_ZERO = ("epsilon",)


@dataclass(frozen=True)
class Optimizer(ABC):
    """`operator` is the update operator: (weight, gradient, slots…, learning rate, updates before this one where it
    `counts_updates`) -> (weight, slots…). `slots` are its per-parameter state tensors, all starting at zero;
    `torch_slots` are those that `torch.optim` has under another name."""

    operator: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()
    counts_updates: ClassVar[bool] = False
    torch_slots: ClassVar[Mapping[str, str]] = {}

    lr: float = RATE_UNLESS_TOLD

    def __post_init__(self) -> None:
        expect_number("the learning rate", self.lr)
        for name, value in self.attributes.items():
            what = _WORDS.get(name, name)
            if name in _BELOW_ONE:
                expect_share(what, value)
            expect_number(what, value)
            if name in _ABOVE_ZERO:
                expect(value > 0.0, what, "more than 0", value)
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if not isinstance(value, bool) and is_told(value):
                object.__setattr__(self, name, float(value))  # NumPy's own are not for JSON

    @property
    def name(self) -> str:
        """What users call it: the name of its file."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def attributes(self) -> dict[str, float]:
        """Compile-time constants of the update operator; the learning rate is state, so that it can be changed."""
        return {}

    def without_decay(self) -> Optimizer:
        """The same for parameters that weight decay leaves alone."""
        changes: dict[str, Any] = {"weight_decay": 0.0}
        return replace(self, **changes) if "weight_decay" in self.attributes else self

    @abstractmethod
    def torch_optimizer(self, torch: Any, parameters: Sequence[Any]) -> Any:
        """The same rule of `torch.optim`: it defines what this optimizer means."""

    @abstractmethod
    def first_update(self, weight: Array, gradient: Array) -> Array:
        """The weight after the first update, in float64 NumPy, written from PyTorch's published definition.

        No state is needed: before its first update every optimizer's state is zero.
        """
