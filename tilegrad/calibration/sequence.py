"""Numbers that fill the unit interval evenly, and what kernels meet in them.

Where a kernel branches on data, its count depends on content. So content is a fixed sequence (calibration/content.py),
every stretch of which has close to the same share of values on either side of any threshold, and descriptions of loops
ask here how often a branch goes which way.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

# Multiples of these fill the unit interval evenly, and independently of each other.
_STEPS = tuple(float(np.sqrt(prime)) % 1.0 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))

# The sequences of an image whose elements are the sum of one number of their row and one of their column.
ROWS, COLUMNS = 0, 1
_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)], dtype=np.float32)


def even(count: int, position: int, offset: float = 0.0) -> npt.NDArray[np.float64]:
    """In [0, 1); operands differ by their `position`."""
    steps = np.arange(1, count + 1, dtype=np.float64) * _STEPS[position % len(_STEPS)]
    return np.mod(offset + steps, 1.0, dtype=np.float64)


def normal_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Normally distributed, from numbers in [0, 1)."""
    return np.asarray(_QUANTILES[(values * len(_QUANTILES)).astype(np.int64)])


def normal(count: int, position: int, offset: float = 0.0) -> npt.NDArray[np.float32]:
    return normal_of(even(count, position, offset))


@lru_cache(maxsize=4096)
def negatives(count: int) -> int:
    """Of the first operand's first `count` values, those whose quantile is below zero."""
    return int((even(count, 0) < 0.5).sum())


@lru_cache(maxsize=4096)
def records(count: int, levels: int, is_minimum: bool, is_continued: bool, with_ties: bool) -> int:
    """How often one of the first operand's first `count` values replaces the extremum of those before it: of values
    that are rounded down to so many levels, 0 for none. A sum of tiles that is continued has met them all."""
    values = even(count, 0)
    if levels:
        values = np.floor(values * levels)
    values = -values if is_minimum else values
    before = np.concatenate(([-np.inf], np.maximum.accumulate(values)[:-1]))
    if is_continued:
        before = np.full(count, values.max())
    return int((values >= before).sum() if with_ties else (values > before).sum())


def indices(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Of rows below `limit`."""
    return np.asarray(even(count, 0) * limit, np.int64)


@lru_cache(maxsize=4096)
def takings(rows: int, count: int) -> tuple[int, ...]:
    """How many of `count` indices take each row."""
    return tuple(np.bincount(indices(count, rows), minlength=rows).tolist())
