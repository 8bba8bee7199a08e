"""A training graph that came from outside: forward, loss and backward as somebody else made them.

It is used as it is. Nothing here is differentiated, and what the graph calls its tensors stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.ir.graph import Graph
from tilegrad.optimizers import Optimizer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GivenUpdate:
    """One parameter's optimizer step. `learning_rate` None is the recipe's; `slots` are initial values, if stored."""

    parameter: str
    buffer: str
    learning_rate: float | None = None
    slots: tuple[Array, ...] = ()


@dataclass(frozen=True, eq=False)
class GivenReferences:
    """What whoever made the graph says comes out: losses of the first mini-batches, and what is left after them.

    `weights` and `evaluation` are after `minibatches` of them, `accumulate` to an update. `source` names the files.
    """

    source: str
    losses: tuple[float, ...] = ()
    weights: Mapping[str, Array] = field(default_factory=dict)
    evaluation: float | None = None
    minibatches: int = 0


@dataclass(frozen=True, eq=False)
class GivenTraining:
    """`step` has the data as inputs, its outputs begin with the loss, and its constants are every initial value.

    `gradients` is the accumulation buffer of each parameter, in order: state without a constant. `flag` is the input of
    the accumulators that resets them, "" where they have none. `writes` are values that become state (running
    statistics). `optimizer` None leaves it to the recipe. `evaluate` is the forward pass alone. `labels` are classes of
    inputs that hold labels. `batches` is the data that came along, by input, and `protos` are the graphs as they came,
    for references.
    """

    kind: str
    step: Graph
    gradients: Mapping[str, str]
    flag: str
    writes: tuple[tuple[str, str], ...]
    updates: tuple[GivenUpdate, ...]
    optimizer: Optimizer | None
    evaluate: Graph
    batch: int
    protos: Mapping[str, Any]
    initial: Mapping[str, Array]
    batches: tuple[Mapping[str, Array], ...] = ()
    references: GivenReferences | None = None
    accumulate: int | None = None
    steps: int | None = None
    updates_done: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.gradients)


def as_float32(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)
