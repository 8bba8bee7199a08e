"""A program: three entry graphs that share state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tilegrad.ir.graph import Graph
from tilegrad.ir.types import Constant, TensorType
from tilegrad.pictured import Pictured
from tilegrad.recipe import Recipe

ENTRIES = ("infer", "step", "update")

RESET_FLAG = "tg.lazy_reset_grad"
UPDATE_COUNTER = "tg.update"
LEARNING_RATE = "tg.learning_rate"


class Role(Enum):
    """Why a tensor outlives a call."""

    PARAMETER = "parameter"  # trains
    FROZEN = "frozen"  # a parameter that this recipe does not train
    STATISTIC = "statistic"  # running mean and variance, or a frozen variance's inverse deviation
    CONSTANT = "constant"
    HYPER = "hyper"  # learning rate, counters, flags
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    GUARD = "guard"  # a copy of what a guard restores


@dataclass(frozen=True)
class StateTensor:
    """`initial` None starts at zero. `owner` is the parameter that a gradient or optimizer slot belongs to, or the
    variance that an inverse deviation stands for."""

    name: str
    type: TensorType
    role: Role
    initial: Constant | None = None
    owner: str | None = None


@dataclass(frozen=True)
class TargetInput:
    """An input of the step that is no input of the model: what a loss compares an output with.

    `classes` is their number where it holds class indices, None otherwise: generated code refuses labels outside them,
    but for `ignored`.
    """

    name: str
    classes: int | None = None
    ignored: int | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Program(Pictured):
    """`entries` is keyed by the names in `ENTRIES`. `targets` are the step's inputs behind the model's own.

    `is_fused` programs update parameters within `step` and keep no gradients. Weight decay leaves the `undecayed`
    parameters alone.
    """

    name: str
    recipe: Recipe
    loss: str
    state: tuple[StateTensor, ...]
    entries: Mapping[str, Graph]
    targets: tuple[TargetInput, ...] = ()
    is_fused: bool = False
    undecayed: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        entries = ", ".join(f"{name} {len(graph.nodes):,} nodes" for name, graph in self.entries.items())
        fused = ", update fused" if self.is_fused else ""
        return f"<Program '{self.name}': loss {self.loss}, {entries}, {len(self.state):,} tensors of state{fused}>"

    @property
    def target_input(self) -> str:
        """The first target's name; empty where the model computes its loss from its inputs alone."""
        return self.targets[0].name if self.targets else ""

    @property
    def label_classes(self) -> int | None:
        return self.targets[0].classes if self.targets else None

    def labels(self, name: str) -> TargetInput | None:
        """The target of that name, if it holds class indices."""
        return next((target for target in self.targets if target.name == name and target.classes is not None), None)

    def tensor(self, name: str) -> StateTensor:
        return next(tensor for tensor in self.state if tensor.name == name)

    def with_role(self, *roles: Role) -> tuple[StateTensor, ...]:
        return tuple(tensor for tensor in self.state if tensor.role in roles)

    def calls(self, entry: str) -> int:
        """How often an entry is called for one update."""
        return self.recipe.accumulate if entry == "step" else 1

    def with_step(self, step: Graph) -> Program:
        """The same with another step."""
        return self if step is self.entries["step"] else replace(self, entries={**self.entries, "step": step})

    @property
    def trainable(self) -> tuple[StateTensor, ...]:
        return self.with_role(Role.PARAMETER)
