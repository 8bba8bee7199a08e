"""Which points are worth having: no other is at least as good in everything and better in something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad.exploration.store import OK, Row

OBJECTIVES = {"memory": -1, "cycles": -1, "traffic": -1, "loss": -1, "accuracy": 1}
"""1: more is better."""


def available(objectives: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Those that some point has a figure of."""
    return tuple(name for name in objectives if any(row["figures"].get(name) is not None for row in rows))


def scores(figures: Mapping[str, Any], objectives: Sequence[str]) -> tuple[float, ...] | None:
    """More is better; None where a figure is missing."""
    found = [figures.get(name) for name in objectives]
    if any(value is None for value in found):
        return None
    return tuple(OBJECTIVES[name] * float(value) for name, value in zip(objectives, found, strict=True))  # type: ignore[arg-type]


def marked(rows: Sequence[Row], objectives: Sequence[str]) -> list[Row]:
    """The rows, each with whether it is on the front. Of equal ones, all are."""
    own = [scores(row["figures"], objectives) if row["status"] == OK and objectives else None for row in rows]
    known = [score for score in own if score is not None]

    def is_beaten(score: tuple[float, ...]) -> bool:
        return any(other != score and all(a >= b for a, b in zip(other, score, strict=True)) for other in known)

    return [
        {**row, "pareto": score is not None and not is_beaten(score)} for row, score in zip(rows, own, strict=True)
    ]
