"""What a loss is, as one object: its operator, its targets, and the references that judge it.

Nothing here or beside it may import operators, differentiation or code generation: the references in
`tilegrad.verify` read these objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
class Loss:
    """`operator` takes (prediction, target) and returns the mean loss first.

    `torch` gets the module torch, output and target in float64, and returns the scalar that PyTorch defines; `float64`
    does the same in NumPy, for machines without PyTorch. `reconstructs` says that a model whose output has its input's
    shape may take the input itself as target. `outputs` is how many the operator has, those kept for its gradient
    included.
    """

    operator: str
    targets: Targets
    torch: Callable[[Any, Any, Any], Any]
    float64: Callable[[Array, Array], float]
    reconstructs: bool = False
    outputs: int = 1

    @property
    def has_classes(self) -> bool:
        return self.targets is Targets.CLASSES
