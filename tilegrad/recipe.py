"""The recipe: how a model is trained. Frozen, validated on creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import ClassVar, Literal, get_args

from tilegrad.errors import UserError

LossName = Literal["cross_entropy", "mse", "bce_with_logits", "l1"]
BatchNormPolicy = Literal["frozen", "train", "fold"]
AccumulationMode = Literal["mean", "sum"]

LOSSES: tuple[LossName, ...] = get_args(LossName)
BATCHNORM_POLICIES: tuple[BatchNormPolicy, ...] = get_args(BatchNormPolicy)
ACCUM_MODES: tuple[AccumulationMode, ...] = get_args(AccumulationMode)
LARGEST_COUNT = 2**31 - 1
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def _refused(what: str, expected: str, got: object, hint: str | None = None) -> UserError:
    """A text is shown as it is; anything else that is no number with its type."""
    shown = str(got) if isinstance(got, str) or _is_a(Real, got) else f"{got!r} ({type(got).__name__})"
    return UserError(f"{what} cannot be used", stage="recipe", expected=expected, got=shown, hint=hint)


def _expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise _refused(what, expected, got)


def _expect_one_of(what: str, value: object, choices: Sequence[str]) -> None:
    _expect(isinstance(value, str) and value in choices, what, " or ".join(choices), value)


def _is_a(kind: type, value: object) -> bool:
    """NumPy's numbers count; True is no number."""
    return isinstance(value, kind) and not isinstance(value, bool)


def expect_whole(what: str, value: object, expected: str) -> None:
    if not _is_a(Integral, value):
        raise _refused(what, f"a whole number, {expected}", value)


def expect_count(what: str, value: int) -> None:
    """A number of samples, mini-batches or updates: C and ONNX count them in 32 and 64 bits."""
    expect_whole(what, value, "1 or more")
    _expect(value >= 1, what, "1 or more", value)
    _expect(value <= LARGEST_COUNT, what, f"at most {LARGEST_COUNT}", value)


def expect_seed(value: int) -> None:
    expect_whole("the seed", value, "0 to 4294967295")
    _expect(0 <= value < 2**32, "the seed", "0 to 4294967295", value)


def expect_tolerance(value: float) -> None:
    """The error that is no disagreement."""
    _expect(_is_a(Real, value) and 0.0 < value < float("inf"), "the tolerance", "a finite number above 0", value)


_WORDS = {"weight_decay": "the weight decay", "momentum": "the momentum"}
# Beyond these an optimizer does not average any more: it amplifies, or divides by zero.
_BELOW_ONE = ("momentum", "beta1", "beta2")
_ABOVE_ZERO = ("epsilon",)


def _expect_number(what: str, value: float) -> None:
    _expect(_is_a(Real, value) and 0.0 <= value < float("inf"), what, "a finite number, 0 or more", value)
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
            what = _WORDS.get(name, name)
            if name in _BELOW_ONE:
                _expect(_is_a(Real, value) and 0.0 <= value < 1.0, what, "0 or more, less than 1", value)
            _expect_number(what, value)
            if name in _ABOVE_ZERO:
                _expect(value > 0.0, what, "more than 0", value)
        for each in fields(self):
            object.__setattr__(self, each.name, float(getattr(self, each.name)))  # NumPy's own are not for JSON

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
            _expect_one_of("the loss", self.loss, LOSSES)
        _expect_optimizer(self.optimizer)
        _expect_one_of("the accumulation mode", self.accum_mode, ACCUM_MODES)
        _expect_one_of("the BatchNorm policy", self.batchnorm, BATCHNORM_POLICIES)
        _expect_selection(self.train)
        expect_count("the batch size", self.batch)
        expect_count("the number of mini-batches to accumulate", self.accumulate)
        expect_seed(self.seed)
        for name in ("batch", "accumulate", "seed"):
            object.__setattr__(self, name, int(getattr(self, name)))


def _expect_selection(value: object) -> None:
    """What a selection means depends on the model; that it is a text does not."""
    if value is not None and not isinstance(value, str):
        hint = f"train='last:{value}'" if _is_a(Integral, value) else None
        raise _refused("the selection of what trains", "all, last:K, bias or names:GLOB,…", value, hint)


def _expect_optimizer(value: object) -> None:
    if isinstance(value, Optimizer):
        return
    kinds = " or ".join(f"tg.{kind.__name__}(lr=…)" for kind in OPTIMIZERS.values())
    name = value.__name__ if isinstance(value, type) else str(value)
    kind = OPTIMIZERS.get(name.lower())
    raise _refused("the optimizer", kinds, value, None if kind is None else f"optimizer=tg.{kind.__name__}(lr=0.01)")
