"""The recipe: how a model is trained. Frozen, validated on creation."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, get_args

from tilegrad.expectations import (
    LARGEST_COUNT,
    expect_count,
    expect_one_of,
    expect_seed,
    expect_tolerance,
    expect_whole,
    is_a,
    refused,
)
from tilegrad.losses import LOSSES, parse
from tilegrad.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Momentum, Optimizer

__all__ = [
    "ACCUM_MODES",
    "BATCHNORM_POLICIES",
    "LARGEST_COUNT",
    "LOSSES",
    "OPTIMIZERS",
    "SGD",
    "AccumulationMode",
    "Adam",
    "AdamW",
    "BatchNormPolicy",
    "LossName",
    "Momentum",
    "Optimizer",
    "Recipe",
    "expect_count",
    "expect_seed",
    "expect_tolerance",
    "expect_whole",
]

LossName = str
"""A name of the folder `losses`, or an expression of them (`tilegrad/losses/_expression.py`)."""
BatchNormPolicy = Literal["frozen", "train", "fold"]
AccumulationMode = Literal["mean", "sum"]

BATCHNORM_POLICIES: tuple[BatchNormPolicy, ...] = get_args(BatchNormPolicy)
ACCUM_MODES: tuple[AccumulationMode, ...] = get_args(AccumulationMode)


@dataclass(frozen=True)
class Recipe:
    """`loss` and `train` None mean the model's own default (cross entropy and all parameters for most)."""

    loss: LossName | None = None
    optimizer: Optimizer = field(default_factory=SGD)
    batch: int = 1
    accumulate: int = 1
    accum_mode: AccumulationMode = "mean"
    train: str | None = None
    batchnorm: BatchNormPolicy = "frozen"
    seed: int = 0

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
        for name in ("batch", "accumulate", "seed"):
            object.__setattr__(self, name, int(getattr(self, name)))


def _expect_selection(value: object) -> None:
    """What a selection means depends on the model; that it is a text does not."""
    if value is not None and not isinstance(value, str):
        hint = f"train='last:{value}'" if is_a(Integral, value) else None
        raise refused("the selection of what trains", "all, last:K, bias or names:GLOB,…", value, hint)


def _expect_optimizer(value: object) -> None:
    if isinstance(value, Optimizer):
        return
    kinds = " or ".join(f"tg.{kind.__name__}(lr=…)" for kind in OPTIMIZERS.values())
    name = value.__name__ if isinstance(value, type) else str(value)
    kind = OPTIMIZERS.get(name.lower())
    raise refused("the optimizer", kinds, value, None if kind is None else f"optimizer=tg.{kind.__name__}(lr=0.01)")
