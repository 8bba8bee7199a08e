"""Trips of BatchNormalization with constant statistics (ops/frozen_batch_normalization.c)."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.calibration.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    bounds,
    in_blocks,
    is_absent,
    is_shared,
    share,
    with_fours,
)
from tilegrad.ir.nest import Nest

# What four channels together cost, in lone channels: forward and backward.
_FOUR_LOAD, _FOUR_GRAD_LOAD = 3.2, 2.4
# What a row and a run of rows cost beside their elements, in elements: with dx and both sums, and otherwise.
_ALL_LOADS, _OTHER_LOADS = (3.0, 6.5), (5.0, 0.1)


def _located(c: Call) -> float:
    """Whether the busiest core divides to find its first row."""
    return float(c.n["o"] > 1 and c.cores > 1)


def _norm(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        length = c.n["s"]
        rows = share(c.n["o"] * c.n["g"], c.cores)
        return (
            1.0, is_shared(c.cores), _located(c), rows, rows * (length >= 8), rows * (length // 8),
            rows * (length % 8 > 0), rows * (length % 8),
        )  # fmt: skip

    return trips


NORM = Family(
    ("call", "shared", "located", "rows", "rows, s >= 8", "rows*s/8", "rows, s % 8", "rows*s%8"), _norm, ("has_relu",)
)


def _flat(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        fours, rest = in_blocks(c.n["g"], c.cores, 4, _FOUR_LOAD)
        o = c.n["o"] * (fours + rest > 0)
        return 1.0, is_shared(c.cores), o, o * (fours > 0), o * fours, o * (rest > 0), o * rest

    return trips


FLAT = Family(("call", "shared", "o", "o, fours", "o*fours", "o, a rest", "o*rest"), _flat, ("has_relu",))


def _has_sums(nest: Nest) -> tuple[bool, bool]:
    return not is_absent(nest, "sum"), not is_absent(nest, "dot")


@lru_cache(maxsize=65536)
def _busiest_rows(rows: int, run: int, length: int, cores: int, loads: tuple[float, float]) -> tuple[int, int]:
    """Rows and runs of the busiest core: with short rows, one that has a run more may be it."""
    best, most = (0, 0), -1.0
    of_row, of_run = loads
    for core in range(cores):
        start, stop = bounds(rows, core, cores)
        runs = (stop - 1) // run - start // run + 1 if stop > start else 0
        load = (stop - start) * (of_row + length) + of_run * runs
        if load > most:
            most, best = load, (stop - start, runs)
    return best


def _grad(nest: Nest) -> Counter:
    """In fours if dx goes with both sums or with none, otherwise element by element."""
    in_turns = not is_absent(nest, "dx") and len(set(_has_sums(nest))) == 1
    loads = _ALL_LOADS if in_turns and all(_has_sums(nest)) else _OTHER_LOADS

    def trips(c: Call) -> Trips:
        length = c.n["s"]
        rows, runs = _busiest_rows(c.n["o"] * c.n["g"], c.n["g"], length, c.cores, loads)
        inner = (*with_fours(rows, length), 0) if in_turns else (0, 0, 0, 0, rows * length)
        return 1.0, is_shared(c.cores), _located(c), runs, rows, *inner, rows * (not c.first), rows * c.last

    return trips


GRAD = Family(
    (
        "call", "shared", "located", "runs", "rows", "rows, s >= 4", "rows*s/4", "rows, s % 4", "rows*s%4", "rows*s",
        "rows, continued", "rows, last tile",
    ),
    _grad,
)  # fmt: skip


def _flat_grad(nest: Nest) -> Counter:
    """Four channels at a time if all that can be wanted is."""
    in_fours = not is_absent(nest, "dx") and all(_has_sums(nest))

    def trips(c: Call) -> Trips:
        g, o = c.n["g"], c.n["o"]
        fours, rest = in_blocks(g, c.cores, 4, _FOUR_GRAD_LOAD) if in_fours else (0, share(g, c.cores))
        channels = 4 * fours + rest
        return (
            1.0, is_shared(c.cores), float(fours > 0), fours, fours * o, float(rest > 0), rest, rest * o,
            channels * (not c.first), channels * c.last,
        )  # fmt: skip

    return trips


FLAT_GRAD = Family(
    (
        "call", "shared", "with fours", "fours", "fours*o", "with a rest", "rest", "rest*o", "channels, continued",
        "channels, last tile",
    ),
    _flat_grad,
)  # fmt: skip
