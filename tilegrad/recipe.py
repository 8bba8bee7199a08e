"""The recipe: how a model is trained. Frozen, validated on creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilegrad.errors import UserError

LOSSES = ("cross_entropy", "mse", "bce_with_logits", "l1")
BATCHNORM_POLICIES = ("frozen", "train", "fold")
ACCUM_MODES = ("mean", "sum")
LARGEST_COUNT = 2**31 - 1
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def _expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise UserError(f"{what} cannot be used", stage="recipe", expected=expected, got=str(got))


def _expect_one_of(what: str, value: str, choices: Sequence[str]) -> None:
    _expect(value in choices, what, " or ".join(choices), value)


def expect_count(what: str, value: int) -> None:
    """A number of samples, mini-batches or updates: C and ONNX count them in 32 and 64 bits."""
    _expect(value >= 1, what, "1 or more", value)
    _expect(value <= LARGEST_COUNT, what, f"at most {LARGEST_COUNT}", value)


_WORDS = {"weight_decay": "the weight decay", "momentum": "the momentum"}


def _expect_number(what: str, value: float) -> None:
    _expect(0.0 <= value < float("inf"), what, "a finite number, 0 or more", value)
    _expect(value <= LARGEST_FLOAT, what, f"at most {LARGEST_FLOAT:.3g}, the largest float", value)


@dataclass(frozen=True)
class Optimizer:
    """`operator` is the update operator; `slots` are its per-parameter state tensors, all starting at zero."""

    operator: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()
    counts_updates: ClassVar[bool] = False

    lr: float = 0.01

    def __post_init__(self) -> None:
        _expect_number("the learning rate", self.lr)
        for name, value in self.attributes.items():
            if name.startswith("beta"):
                _expect(0.0 <= value < 1.0, name, "0 or more, less than 1", value)
            else:
                _expect_number(_WORDS.get(name, name), value)

    @property
    def attributes(self) -> dict[str, float]:
        """Compile-time constants of the update operator; the learning rate is state, so that it can be changed."""
        return {}


@dataclass(frozen=True)
class SGD(Optimizer):
    operator = "SGD"
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {"weight_decay": self.weight_decay}


@dataclass(frozen=True)
class Momentum(Optimizer):
    operator = "Momentum"
    slots = ("momentum",)
    momentum: float = 0.9
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {"momentum": self.momentum, "weight_decay": self.weight_decay}


@dataclass(frozen=True)
class Adam(Optimizer):
    operator = "Adam"
    slots = ("exp_avg", "exp_avg_sq")
    counts_updates = True
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def attributes(self) -> dict[str, float]:
        return {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
        }


@dataclass(frozen=True)
class AdamW(Adam):
    operator = "AdamW"
    weight_decay: float = 0.01


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "momentum": Momentum, "adam": Adam, "adamw": AdamW}


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
        _expect(0 <= self.seed < 2**32, "the seed", "0 to 4294967295", self.seed)
