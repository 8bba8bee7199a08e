"""What a loss is, as one object: its operator, its targets, and the references that judge it.

Nothing here or beside it may import operators, differentiation or code generation: the references in
`tilegrad.verify` read these objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Targets(Enum):
    """What a target is, and how a synthetic one is drawn."""

    CLASSES = "classes"  # one class index per sample (and position): the output without its second dimension
    SIGNED = "signed"  # the output's shape, evenly from [-1, 1)
    BINARY = "binary"  # the output's shape, 0 or 1


@dataclass(frozen=True)
class Option:
    """`read` makes the option of its text, or raises ValueError; `what` says in words what it may be.

    `attribute` is the operator's name for it. An option without one is an operand: the operator takes it, as a
    constant, behind prediction and target.
    """

    read: Callable[[str], Any]
    what: str
    attribute: str | None = None


@dataclass(frozen=True)
class Loss:
    """`operator` takes (prediction, target) and returns the mean loss first.

    `torch` gets the module torch, output and target in float64, and returns the scalar that PyTorch defines; `float64`
    does the same in NumPy, for machines without PyTorch. Both take the `options` that were given, by name: what stands
    behind the colon in `--loss NAME:OPTION=VALUE,…`. `reconstructs` says that a model whose output has its input's
    shape may take the input itself as target. `outputs` is how many the operator has, those kept for its gradient
    included.
    """

    operator: str
    targets: Targets
    torch: Callable[..., Any]
    float64: Callable[..., float]
    reconstructs: bool = False
    outputs: int = 1
    options: Mapping[str, Option] = field(default_factory=dict)

    @property
    def has_classes(self) -> bool:
        return self.targets is Targets.CLASSES
