"""The optimizer that options ask for."""

from __future__ import annotations

import math
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from tilegrad.errors import UserError
from tilegrad.recipe import OPTIMIZERS, Optimizer


def make_optimizer(
    name: str, lr: float | None, momentum: float | None, weight_decay: float | None, nesterov: bool = False
) -> Optimizer:
    """An optimizer from its options; one that it does not have is refused, not ignored."""
    kind = OPTIMIZERS.get(name)
    if kind is None:
        near = get_close_matches(name, OPTIMIZERS, n=1)
        raise UserError(
            "the optimizer cannot be used",
            stage="recipe",
            expected=" or ".join(OPTIMIZERS),
            got=name,
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    given = {"momentum": momentum, "weight_decay": weight_decay}
    options = {key: value for key, value in given.items() if value is not None}
    known = {field.name for field in fields(kind)}
    for key, value in options.items():
        flag = f"--{key.replace('_', '-')}"
        if key not in known:
            raise UserError(f"{flag} does not apply to the optimizer {name}", stage="recipe")
        if not 0.0 <= value < math.inf:
            raise UserError(
                f"{flag} cannot be used", stage="recipe", expected="a finite number, 0 or more", got=str(value)
            )
    if nesterov and "nesterov" not in known:
        raise UserError(f"--nesterov does not apply to the optimizer {name}", stage="recipe")
    flags: dict[str, Any] = {"nesterov": True} if nesterov else {}
    rate = {} if lr is None else {"lr": lr}
    return kind(**rate, **options, **flags)
