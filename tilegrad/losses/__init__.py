"""Losses, one per file: `losses/NAME.py` defines `LOSS`, and its operator is an ordinary pair in `tilegrad/ops`."""

from __future__ import annotations

from tilegrad.found import found_in
from tilegrad.losses._expression import LossExpression, Term, parse
from tilegrad.losses.base import Loss, Option, Targets

__all__ = ["LOSSES", "Loss", "LossExpression", "Option", "Targets", "Term", "parse"]

LOSSES: dict[str, Loss] = found_in(__name__, __path__, lambda module: getattr(module, "LOSS", None))
