"""Optimizers, one per file: `optimizers/NAME.py` defines a subclass of `Optimizer`; its operator is an ordinary pair in
`tilegrad/ops`."""

from __future__ import annotations

from types import ModuleType

from tilegrad.found import found_in
from tilegrad.optimizers.adam import Adam
from tilegrad.optimizers.adamw import AdamW
from tilegrad.optimizers.base import Optimizer
from tilegrad.optimizers.momentum import Momentum
from tilegrad.optimizers.rmsprop import RMSprop
from tilegrad.optimizers.sgd import SGD

__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Momentum", "Optimizer", "RMSprop"]


def _class_of(module: ModuleType) -> type[Optimizer] | None:
    own = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return next((value for value in own if isinstance(value, type) and issubclass(value, Optimizer)), None)


OPTIMIZERS: dict[str, type[Optimizer]] = found_in(__name__, __path__, _class_of)
