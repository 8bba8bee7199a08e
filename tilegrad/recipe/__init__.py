"""The recipe: how a model is trained. Frozen, validated on creation."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, get_args

from tilegrad.expectations import (
    LARGEST_COUNT,
    ONE_UNLESS_TOLD,
    as_count,
    expect,
    expect_count,
    expect_number,
    expect_one_of,
    expect_seed,
    expect_tolerance,
    expect_whole,
    is_a,
    refused,
)
from tilegrad.losses import LOSSES, parse
from tilegrad.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Momentum, Optimizer, RMSprop
from tilegrad.recipe.guards import Guard
from tilegrad.recipe.rates import Rate
from tilegrad.recipe.stored_types import Stored

__all__ = [
    "ACCUM_MODES",
    "BATCHNORM_POLICIES",
    "DECAY_RULES",
    "LARGEST_COUNT",
    "LOSSES",
    "OPTIMIZERS",
    "SGD",
    "AccumulationMode",
    "Adam",
    "AdamW",
    "BatchNormPolicy",
    "DecayRule",
    "Guard",
    "LossName",
    "LossText",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "Rate",
    "Recipe",
    "Stored",
    "expect_count",
    "expect_seed",
    "expect_tolerance",
    "expect_whole",
    "loss",
]

LossName = Literal["bce_with_logits", "cross_entropy", "huber", "l1", "mse"]
"""Those that a type checker knows; `loss` takes any name of the folder `losses`."""


class LossText(str):
    """An expression of losses (`tilegrad/losses/_expression.py`), or one that was added: see `loss`."""

    __slots__ = ()


def loss(text: str) -> LossText:
    """Any loss, as `--loss` takes it: `output:NAME`, `mse+0.5*l1`, `cross_entropy:smoothing=0.1`."""
    parse(text)
    return LossText(text)


BatchNormPolicy = Literal["frozen", "train", "fold"]
AccumulationMode = Literal["mean", "sum"]
DecayRule = Literal["all", "weights"]

BATCHNORM_POLICIES: tuple[BatchNormPolicy, ...] = get_args(BatchNormPolicy)
ACCUM_MODES: tuple[AccumulationMode, ...] = get_args(AccumulationMode)
SELECTIONS = (
    "all, last:K, bias, norm, names:GLOB,…, sparse:FILE, sparse:BUDGET or lora:R[:ALPHA][:GLOB,…], several with +"
)
DECAY_RULES: tuple[DecayRule, ...] = get_args(DecayRule)


@dataclass(frozen=True)
class Recipe:
    """`loss` and `train` None mean the model's own default (cross entropy and all parameters for most).

    `rate` is how the learning rate follows the updates. `clip` scales the gradients of an update down where the norm of
    all of them is larger. `decay` says what the optimizer's weight decay is for: all parameters, or all but biases and
    the scales of normalisations. `guard` says which losses and updates are undone. `store` says what is kept in two
    bytes a number. Where `batch` and `accumulate` are
    not given, a training graph that tells them has its own; 1 that is given is 1.
    """

    loss: LossName | LossText | None = None
    optimizer: Optimizer = field(default_factory=SGD)
    batch: int = ONE_UNLESS_TOLD
    accumulate: int = ONE_UNLESS_TOLD
    accum_mode: AccumulationMode = "mean"
    train: str | None = None
    batchnorm: BatchNormPolicy = "frozen"
    seed: int = 0
    rate: Rate = field(default_factory=Rate)
    clip: float | None = None
    decay: DecayRule = "all"
    guard: Guard | None = None
    store: Stored = field(default_factory=Stored)

    def __post_init__(self) -> None:
        if self.loss is not None:
            parse(self.loss)
        _expect_optimizer(self.optimizer)
        expect_one_of("the accumulation mode", self.accum_mode, ACCUM_MODES)
        expect_one_of("the BatchNorm policy", self.batchnorm, BATCHNORM_POLICIES)
        _expect_selection(self.train)
        expect_count("the batch size", self.batch)
        expect_count("the number of mini-batches to accumulate", self.accumulate)
        expect_seed(self.seed)
        expect(isinstance(self.rate, Rate), "the learning-rate schedule", "tg.Rate(…)", self.rate)
        if self.rate.kind == "cosine" and not self.rate.updates:
            raise refused("the learning-rate schedule", "cosine:UPDATES, where a run does not tell", "cosine")
        if self.clip is not None:
            expect_number("the largest norm of the gradients", self.clip)
            expect(self.clip > 0.0, "the largest norm of the gradients", "more than 0", self.clip)
            object.__setattr__(self, "clip", float(self.clip))
        expect_one_of("the rule of weight decay", self.decay, DECAY_RULES)
        expect(self.guard is None or isinstance(self.guard, Guard), "the guard", "tg.Guard(…)", self.guard)
        expect(isinstance(self.store, Stored), "what is stored", "tg.Stored(…)", self.store)
        slots = self.optimizer.slots
        object.__setattr__(self, "store", self.store.for_slots(slots, self.optimizer.name))
        for name in ("batch", "accumulate", "seed"):
            object.__setattr__(self, name, as_count(getattr(self, name)))


def _expect_selection(value: object) -> None:
    """What a selection means depends on the model; that it is a text does not."""
    if value is not None and not isinstance(value, str):
        hint = f"train='last:{value}'" if is_a(Integral, value) else None
        raise refused("the selection of what trains", SELECTIONS, value, hint)


def _expect_optimizer(value: object) -> None:
    if isinstance(value, Optimizer):
        return
    kinds = " or ".join(f"tg.{kind.__name__}(lr=…)" for kind in OPTIMIZERS.values())
    name = value.__name__ if isinstance(value, type) else str(value)
    kind = OPTIMIZERS.get(name.lower())
    raise refused("the optimizer", kinds, value, None if kind is None else f"optimizer=tg.{kind.__name__}(lr=0.01)")
