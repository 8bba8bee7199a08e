"""How the learning rate follows the updates: a function of the base rate and the number of updates so far.

The update entry evaluates it on the device (`ops/learning_rate.c`), so that a run is the same wherever it runs and
however often it was interrupted. Nothing here may import operators: the references in `tilegrad.verify` read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any, Literal, get_args

from tilegrad.errors import UserError
from tilegrad.expectations import LARGEST_COUNT, expect, expect_number, expect_one_of, expect_whole

RateKind = Literal["constant", "step", "cosine"]
RATE_KINDS: tuple[RateKind, ...] = get_args(RateKind)
FORMS = "constant, step:EVERY[:FACTOR] or cosine[:UPDATES[:FLOOR]]"


@dataclass(frozen=True)
class Rate:
    """A learning-rate schedule. All numbers count updates; shares are of the base rate, which may change meanwhile.

    `constant` keeps the rate. `step` multiplies it by `factor` after each `every` updates. `cosine` lets it fall along
    half a cosine to `floor` within `updates`, and stay there; 0 updates stand for all of the run. Before any of them,
    the rate rises in `warmup` equal steps: update t of them (from 0) uses (t + 1) / warmup of it.
    """

    kind: RateKind = "constant"
    warmup: int = 0
    every: int = 0
    factor: float = 0.1
    updates: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        expect_one_of("the learning-rate schedule", self.kind, RATE_KINDS)
        for what, value, lowest in (
            ("the number of warm-up updates", self.warmup, 0),
            ("the number of updates between steps", self.every, 1 if self.kind == "step" else 0),
            ("the number of updates of the schedule", self.updates, 0),
        ):
            expect_whole(what, value, f"{lowest} or more")
            expect(lowest <= value <= LARGEST_COUNT, what, f"{lowest} to {LARGEST_COUNT}", value)
        expect_number("the factor of the schedule", self.factor)
        expect_number("the floor of the schedule", self.floor)
        expect(self.floor <= 1.0, "the floor of the schedule", "0 to 1, a share of the learning rate", self.floor)
        for name in ("warmup", "every", "updates"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("factor", "floor"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant" and not self.warmup

    def over(self, updates: int) -> Rate:
        """The same with the run's number of updates where it is to follow that."""
        if self.kind != "cosine" or self.updates:
            return self
        return replace(self, updates=max(1, updates - self.warmup))

    def share(self, update: int) -> float:
        """Of the base rate, at an update counted from 0; in float64."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        since = update - self.warmup
        if self.kind == "step":
            return float(self.factor ** (since // self.every))
        if self.kind == "cosine":
            return self.floor + (1.0 - self.floor) * (1.0 + cos(pi * min(1.0, since / self.updates))) / 2.0
        return 1.0

    def torch_scheduler(self, torch: Any, optimizer: Any) -> Any:
        """The same of `torch.optim.lr_scheduler`: they define what a schedule means."""
        made = torch.optim.lr_scheduler
        base = optimizer.param_groups[0]["lr"]
        parts, ends = [], []
        if self.warmup:
            parts.append(made.LinearLR(optimizer, start_factor=1.0 / self.warmup, total_iters=max(1, self.warmup - 1)))
            ends.append(self.warmup)
        if self.kind == "step":
            parts.append(made.StepLR(optimizer, self.every, self.factor))
        elif self.kind == "cosine":  # PyTorch's rises again after its end
            parts.append(made.CosineAnnealingLR(optimizer, self.updates, eta_min=self.floor * base))
            ends.append(self.warmup + self.updates)
            parts.append(made.LambdaLR(optimizer, lambda _: self.floor))
        else:
            parts.append(made.ConstantLR(optimizer, factor=1.0, total_iters=0))
        return parts[0] if len(parts) == 1 else made.SequentialLR(optimizer, parts, ends)

    def __str__(self) -> str:
        text = {
            "constant": "constant",
            "step": f"times {self.factor:g} each {self.every:,} updates",
            "cosine": f"cosine over {self.updates:,} updates" + (f" to {self.floor:g}" if self.floor else ""),
        }[self.kind]
        return f"{text} after {self.warmup:,} of warm-up" if self.warmup else text

    def as_json(self) -> dict[str, Any]:
        options = {
            "constant": {},
            "step": {"every": self.every, "factor": self.factor},
            "cosine": {"updates": self.updates, "floor": self.floor},
        }
        return {"kind": self.kind, "warmup": self.warmup, **options[self.kind]}


def parse_rate(text: str, warmup: int = 0) -> Rate:
    """A schedule from its words on the command line."""
    kind, *words = text.split(":")
    try:
        if kind == "constant" and not words:
            return Rate(warmup=warmup)
        if kind == "step" and 1 <= len(words) <= 2:
            return Rate("step", warmup, every=int(words[0]), factor=float(words[1]) if words[1:] else 0.1)
        if kind == "cosine" and len(words) <= 2:
            updates, floor = (int(words[0]) if words else 0), (float(words[1]) if words[1:] else 0.0)
            return Rate("cosine", warmup, updates=updates, floor=floor)
    except ValueError as error:
        raise _refused(text) from error
    raise _refused(text)


def _refused(text: str) -> UserError:
    return UserError("the learning-rate schedule cannot be used", stage="recipe", expected=FORMS, got=text)
