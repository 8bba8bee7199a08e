"""What `--train lora:R[:ALPHA][:GLOB,…]` asks for, and the factors it makes of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt

from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.random import Purpose

FORM = "lora:R[:ALPHA][:GLOB,…] with a rank of 1 or more, as lora:4, lora:4:16 or lora:8:16:*attn*"


@dataclass(frozen=True)
class Lora:
    """Rank-R adapters: `x·A·B · alpha / rank` is added to a product `x·W`. Without globs, to every one there is."""

    rank: int
    alpha: float
    globs: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def lora_of(train: str | None) -> Lora | None:
    """The adapters that a selection asks for; its other parts are none of ours."""
    parts = [part for part in (train or "").split("+") if part.split(":")[0] == "lora"]
    if not parts:
        return None
    if len(parts) > 1:
        raise UserError("adapters are asked for twice", stage="recipe", expected="one lora:…", got=str(train))
    _, *words = parts[0].split(":", 3)
    try:
        rank = int(words[0]) if words else 0
        has_alpha = len(words) > 1 and _is_number(words[1])
        alpha = float(words[1]) if has_alpha else float(rank)
    except ValueError as error:
        raise _refused(parts[0]) from error
    rest = words[2:] if has_alpha else words[1:]
    if rank < 1 or rank > 2**20 or not isfinite(alpha) or alpha <= 0.0:
        raise _refused(parts[0])
    globs = tuple(glob for glob in ":".join(rest).split(",") if glob)
    if rest and not globs:
        raise _refused(parts[0])
    return Lora(rank, alpha, globs)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refused(text: str) -> UserError:
    return UserError("the adapters cannot be made", stage="recipe", expected=FORM, got=text)


def first_factor(seed: int, ordinal: int, inputs: int, rank: int) -> npt.NDArray[np.float32]:
    """A [inputs, rank], uniform in ±1/sqrt(inputs), keyed by the adapter's place in the model. B starts at zero, so
    that the model begins as it was."""
    drawn = random.to_signed(random.words(seed, Purpose.ADAPTERS, ordinal, inputs * rank))
    return (drawn * np.float32(1.0 / sqrt(inputs))).reshape(inputs, rank)
