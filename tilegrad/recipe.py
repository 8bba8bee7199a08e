"""The recipe: how a model is trained. Frozen, validated on creation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilegrad.losses import LOSSES
from tilegrad.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Momentum, Optimizer
from tilegrad.optimizers.base import expect

__all__ = ["LOSSES", "OPTIMIZERS", "SGD", "Adam", "AdamW", "Momentum", "Optimizer", "Recipe"]

BATCHNORM_POLICIES = ("frozen", "train", "fold")
ACCUM_MODES = ("mean", "sum")
LARGEST_COUNT = 2**31 - 1


def _expect_one_of(what: str, value: str, choices: Iterable[str]) -> None:
    expect(value in choices, what, " or ".join(choices), value)


def expect_count(what: str, value: int) -> None:
    """A number of samples, mini-batches or updates: C and ONNX count them in 32 and 64 bits."""
    expect(value >= 1, what, "1 or more", value)
    expect(value <= LARGEST_COUNT, what, f"at most {LARGEST_COUNT}", value)


@dataclass(frozen=True)
class Recipe:
    """`loss` and `train` None mean the model's own default (cross entropy and all parameters for most)."""

    loss: str | None = None
    optimizer: Optimizer = field(default_factory=SGD)
    batch: int = 1
    accumulate: int = 1
    accum_mode: str = "mean"
    train: str | None = None
    batchnorm: str = "frozen"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss is not None:
            _expect_one_of("the loss", self.loss, LOSSES)
        _expect_one_of("the accumulation mode", self.accum_mode, ACCUM_MODES)
        _expect_one_of("the BatchNorm policy", self.batchnorm, BATCHNORM_POLICIES)
        expect_count("the batch size", self.batch)
        expect_count("the number of mini-batches to accumulate", self.accumulate)
        expect(0 <= self.seed < 2**32, "the seed", "0 to 4294967295", self.seed)
