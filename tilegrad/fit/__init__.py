"""The cheapest way to train in the memory there is: what is kept, what is computed again, and what else would help."""

from __future__ import annotations

from tilegrad.fit.fitted import Fit, fitted

__all__ = ["Fit", "fitted"]
