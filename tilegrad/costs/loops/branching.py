"""Trips of elementwise kernels that branch on data: how many elements of the busiest core go which way, in the content
they are counted on (calibration/content.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilegrad.calibration.sequence import normal
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, bounds, is_shared
from tilegrad.ir.nest import Nest

Values = npt.NDArray[np.float32]
Ways = npt.NDArray[np.int64]
WAYS = 3


@dataclass(frozen=True)
class Branch:
    """`way` tells for each element which way it goes, from the values of the operands at these positions. `loads` is
    what an element takes about, to find the busiest core."""

    operands: tuple[int, ...]
    way: Callable[..., Ways]
    loads: tuple[float, ...]


def _sign(x: Values) -> Ways:
    return np.asarray(x > 0, np.int64)


def _order(a: Values, b: Values) -> Ways:
    return np.asarray(a > b, np.int64)


def _between(low: float, high: float) -> Callable[[Values], Ways]:
    """Below is found out first."""
    return lambda x: np.where(x <= low, 0, np.where(x < high, 1, 2))


def _near(bound: float) -> Callable[[Values], Ways]:
    return lambda x: np.asarray(np.abs(x) < bound, np.int64)


def _near_in_gelu(x: Values) -> Ways:
    return np.asarray(np.abs(0.797884561 * (x + 0.044715 * x**3)) < 0.55, np.int64)


def _whole(x: Values) -> Ways:
    """What becomes 0 as an integer, and what is negative."""
    return np.where(np.abs(x) < 1, 0, np.where(x > 0, 1, 2))


_HALF_LN2 = 0.34657359
_BRANCHES = {
    "abs_grad": Branch((1,), _sign, (13.0, 9.0)),
    "cast": Branch((0,), _whole, (170.0, 190.0, 195.0)),
    "clip": Branch((0,), _between(-0.5, 0.5), (9.0, 9.0, 9.0)),
    "clip_grad": Branch((1,), _between(-0.5, 0.5), (9.0, 12.0, 11.0)),
    "elu": Branch((0,), _between(-_HALF_LN2, 0.0), (40.0, 31.0, 8.0)),
    "elu_grad": Branch((1,), _sign, (11.0, 9.0)),
    "gelu_tanh": Branch((0,), _near_in_gelu, (55.0, 38.0)),
    "gelu_grad_tanh": Branch((1,), _near_in_gelu, (63.0, 45.0)),
    "hard_sigmoid_grad": Branch((1,), _between(0.0, 1.0), (9.0, 13.0, 11.0)),
    "l1_loss_grad": Branch((1, 2), _order, (12.5, 10.0)),
    "maximum": Branch((0, 1), _order, (12.5, 10.0)),
    "minimum": Branch((0, 1), _order, (10.0, 12.0)),
    "p_relu_slope_grad": Branch((1,), _sign, (10.0, 8.0)),
    "softplus_grad": Branch((1,), _near(_HALF_LN2), (37.0, 30.0)),
    "tanh_map": Branch((0,), _near(0.55), (47.0, 29.0)),
}
KERNELS = tuple(_BRANCHES)


@lru_cache(maxsize=256)
def _totals(kernel: str, count: int) -> tuple[list[int], ...]:
    """For each way, how many of the first 0, 1, 2, … of `count` elements go it."""
    branch = _BRANCHES[kernel]
    ways = branch.way(*[normal(count, position) for position in branch.operands])
    return tuple([0, *np.cumsum(ways == way).tolist()] for way in range(WAYS))


def _map(nest: Nest) -> Counter:
    kernel = nest.kernel
    loads = _BRANCHES[kernel].loads

    def trips(c: Call) -> Trips:
        count, cores = c.n["i"], c.cores
        totals = _totals(kernel, 1 << max(count - 1, 0).bit_length())
        best: tuple[int, ...] = (0,) * WAYS
        most = -1.0
        for core in range(cores):
            start, stop = bounds(count, core, cores)
            found = tuple([total[stop] - total[start] for total in totals])
            load = sum([a * b for a, b in zip(loads, found, strict=False)])
            if load > most:
                most, best = load, found
        is_even = float(cores > 1 and count % cores == 0)
        return 1.0, is_shared(cores), is_even, *[float(number > 0) for number in best], *best

    return trips


BRANCHING_MAP = Family(
    ("call", "shared", "shared evenly", *(f"{what}, way {way}" for what in ("any", "elements") for way in range(WAYS))),
    _map,
    ("type", "from_type", "to_type"),
)
