"""Trips of BatchNormalization with constant statistics (ops/frozen_batch_normalization.c)."""

from __future__ import annotations

from tilegrad.costs.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    heaviest,
    in_blocks,
    is_absent,
    is_shared,
    share,
    shares_in_runs,
    with_fours,
)
from tilegrad.ir.nest import Nest


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
    def of_share(c: Call, fours: int, rest: int) -> Trips:
        o = c.n["o"] * (fours + rest > 0)
        return 1.0, is_shared(c.cores), o, o * (fours > 0), o * fours, o * (rest > 0), o * rest

    return lambda c: heaviest([of_share(c, *found) for found in in_blocks(c.n["g"], c.cores, 4)], c.loads)


FLAT = Family(("call", "shared", "o", "o, fours", "o*fours", "o, a rest", "o*rest"), _flat, ("has_relu",))


def _has_sums(nest: Nest) -> tuple[bool, bool]:
    return not is_absent(nest, "sum"), not is_absent(nest, "dot")


def _grad(nest: Nest) -> Counter:
    """In fours if dx goes with both sums or with none, otherwise element by element."""
    in_turns = not is_absent(nest, "dx") and len(set(_has_sums(nest))) == 1

    def of_share(c: Call, rows: int, runs: int) -> Trips:
        length = c.n["s"]
        inner = (*with_fours(rows, length), 0) if in_turns else (0, 0, 0, 0, rows * length)
        return 1.0, is_shared(c.cores), _located(c), runs, rows, *inner, rows * (not c.first), rows * c.last

    def trips(c: Call) -> Trips:
        shares = shares_in_runs(c.n["o"] * c.n["g"], c.n["g"], c.cores)
        return heaviest([of_share(c, *found) for found in shares], c.loads)

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

    def of_share(c: Call, fours: int, rest: int) -> Trips:
        o, channels = c.n["o"], 4 * fours + rest
        return (
            1.0, is_shared(c.cores), float(fours > 0), fours, fours * o, float(rest > 0), rest, rest * o,
            channels * (not c.first), channels * c.last,
        )  # fmt: skip

    def trips(c: Call) -> Trips:
        g = c.n["g"]
        shares = in_blocks(g, c.cores, 4) if in_fours else [(0, share(g, c.cores))]
        return heaviest([of_share(c, *found) for found in shares], c.loads)

    return trips


FLAT_GRAD = Family(
    (
        "call", "shared", "with fours", "fours", "fours*o", "with a rest", "rest", "rest*o", "channels, continued",
        "channels, last tile",
    ),
    _flat_grad,
)  # fmt: skip
