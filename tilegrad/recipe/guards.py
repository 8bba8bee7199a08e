"""Guards: what must not come of a training, and is undone where it does. As text `nan,loss=100`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegrad.errors import UserError

FORM = "nan|loss=X|nan,loss=X"


@dataclass(frozen=True)
class Guard:
    """`finite`: neither the loss nor what an update writes may be a NaN or an infinity. `loss`: nor may it be above."""

    finite: bool = True
    loss: float | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and not (isinstance(self.loss, int | float) and math.isfinite(self.loss)):
            raise _refused(f"loss={self.loss}")
        if not self.finite and self.loss is None:
            raise _refused("nothing to guard against")

    def __str__(self) -> str:
        return ",".join([*(["nan"] if self.finite else []), *([] if self.loss is None else [f"loss={self.loss:g}"])])

    @staticmethod
    def parse(text: str) -> Guard:
        finite, loss = False, None
        for part in text.split(","):
            name, given, value = part.strip().partition("=")
            if name == "nan" and not given and not finite:
                finite = True
            elif name == "loss" and given and loss is None:
                try:
                    loss = float(value)
                except ValueError as error:
                    raise _refused(text) from error
            else:
                raise _refused(text)
        return Guard(finite, loss)


def _refused(got: str) -> UserError:
    return UserError(
        "the guard cannot be used", stage="recipe", expected="nan, loss=X with a finite limit X, or both", got=got
    )
