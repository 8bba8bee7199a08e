"""What `--loss` says: one loss, or several with weights, each of an output of the model.

    cross_entropy                        of the model's first output
    cross_entropy:smoothing=0.1,ignore=-100
    mse+0.5*l1                           a sum, each term with its weight
    cross_entropy@logits+0.1*mse@image   of other outputs than the first
    output:NAME                          a scalar that the model computes itself
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tilegrad.errors import UserError
from tilegrad.losses.base import Array, Loss

_OWN = "output"


@dataclass(frozen=True)
class Term:
    """`kind` None is an output that is the loss itself. `output` None is the model's first."""

    name: str
    kind: Loss | None
    output: str | None = None
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_classes(self) -> bool:
        return self.kind is not None and self.kind.has_classes


@dataclass(frozen=True)
class LossExpression:
    """Terms in the order in which they are added."""

    text: str
    terms: tuple[Term, ...]

    @property
    def targets(self) -> tuple[Term, ...]:
        """One term for each target that is fed: terms of one output that take the same kind of target share it."""
        found: dict[tuple[str | None, bool], Term] = {}
        for term in self.terms:
            if term.kind is not None:
                found.setdefault((term.output, term.has_classes), term)
        return tuple(found.values())

    @property
    def has_classes(self) -> bool:
        """Whether the first target is class indices."""
        return bool(self.targets) and self.targets[0].has_classes

    @property
    def is_output(self) -> bool:
        return all(term.kind is None for term in self.terms)

    def target_of(self, term: Term) -> int:
        """Which of `targets` a term reads."""
        keys = [(found.output, found.has_classes) for found in self.targets]
        return keys.index((term.output, term.has_classes))

    def value(self, outputs: Mapping[str, Any], targets: Sequence[Array], torch: Any = None) -> Any:
        """The loss by the references' definitions: of arrays in float64, or with `torch` of tensors.

        `outputs` are all of the model's, the first one first.
        """
        total: Any = None
        for term in self.terms:
            output = self.output_of(term, outputs)
            if term.kind is None:
                part = output.reshape(())
            else:
                target = _fitting(term, output, np.asarray(targets[self.target_of(term)]))
                if torch is None:
                    part = term.kind.float64(output, target, **term.options)
                else:
                    dtype = torch.int64 if term.has_classes else output.dtype
                    part = term.kind.torch(torch, output, torch.tensor(target, dtype=dtype), **term.options)
            part = part if term.weight == 1.0 else term.weight * part
            total = part if total is None else total + part
        return total

    def output_of(self, term: Term, outputs: Mapping[str, Any]) -> Any:
        if term.output is None:
            return next(iter(outputs.values()))
        if term.output not in outputs:
            raise UserError(
                f"the loss is of '{term.output}', which is no output of the model",
                stage="recipe",
                expected=" or ".join(f"'{name}'" for name in outputs),
                got=f"--loss {self.text}",
            )
        return outputs[term.output]


def _fitting(term: Term, output: Any, target: Array) -> Array:
    """The target in the output's shape; a label that is no class and not ignored is refused."""
    shape = tuple(output.shape)
    if term.has_classes:
        labels = target.astype(np.int64).reshape(shape[0], *shape[2:])
        wrong = (labels < 0) | (labels >= shape[1])
        if term.options.get("ignore") is not None:
            wrong &= labels != term.options["ignore"]
        if wrong.any():
            raise UserError("a label is out of range", stage="verify", expected=f"0 to {shape[1] - 1}")
        return labels
    if target.size != math.prod(shape):
        raise UserError(
            "targets and model output differ in shape", stage="verify", expected=str(shape), got=str(target.shape)
        )
    return target.astype(np.float64).reshape(shape)


@lru_cache(maxsize=256)
def parse(text: str) -> LossExpression:
    """Refuses what is no loss, with what could be meant."""
    from tilegrad.losses import LOSSES  # this module is one of the folder that is searched

    if not isinstance(text, str) or not text.strip():
        raise _unusable(text, LOSSES)
    if text.startswith(f"{_OWN}:"):
        name = text[len(_OWN) + 1 :]
        if not name:
            raise _unusable(text, LOSSES)
        return LossExpression(text, (Term(_OWN, None, name),))
    return LossExpression(text, tuple(_term(part, text, LOSSES) for part in _parts(text)))


def _parts(text: str) -> list[str]:
    """Between the plus signs, but for those of numbers (1e+3)."""
    return re.split(r"(?<![0-9.][eE])\+", text)


def _term(part: str, text: str, known: Mapping[str, Loss]) -> Term:
    weight, star, rest = part.partition("*")
    factor = 1.0
    if star:
        factor = _number(weight, text)
    else:
        rest = part
    rest, _, output = rest.strip().partition("@")
    name, _, given = rest.partition(":")
    if name == _OWN:
        if not given:
            raise _unusable(text, known)
        return Term(_OWN, None, given, factor)
    kind = known.get(name)
    if kind is None:
        raise _unusable(text, known)
    return Term(name, kind, output or None, factor, _options(name, kind, given, text))


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError("the loss cannot be used", stage="recipe", expected="a finite weight before '*'", got=whole)
    return value


def _options(name: str, kind: Loss, given: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in filter(None, given.split(",")):
        key, equals, value = item.partition("=")
        option = kind.options.get(key)
        if option is None or not equals:
            raise UserError(
                f"the loss {name} has no option '{key}'",
                stage="recipe",
                expected=" or ".join(f"{each}=…" for each in kind.options) or "none",
                got=text,
            )
        try:
            found[key] = option.read(value)
        except ValueError as error:
            raise UserError(
                f"the loss {name} cannot use {key}={value}", stage="recipe", expected=option.what, got=text
            ) from error
    return found


def _unusable(text: object, known: Mapping[str, Loss]) -> UserError:
    near = difflib.get_close_matches(str(text), known, n=1)
    return UserError(
        "the loss cannot be used",
        stage="recipe",
        expected=" or ".join(known),
        got=str(text) if isinstance(text, str) and text else repr(text),
        hint=f"did you mean '{near[0]}'?" if near else None,
    )
