"""Trips of pooling kernels."""

from __future__ import annotations

from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, is_shared
from tilegrad.calibration.loops.windows import Axis, heaviest_share
from tilegrad.ir.nest import Nest


def _forward(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 1, "oh", "kh", "h"), Axis(nest, "x", 2, "ow", "kw", "w")

    def trips(c: Call) -> Trips:
        n = c.n
        _, _, lines, window_rows = heaviest_share(rows.rows(c.at["oh"], n["oh"]), n["c"], c.cores)
        taps = sum(columns.rows(c.at["ow"], n["ow"]))
        return 1.0, is_shared(c.cores), lines, lines * n["ow"], window_rows * n["ow"], window_rows * taps

    return trips


POOL = Family(("call", "shared", "rows", "windows", "windows*rows inside", "taps inside"), _forward)


def _gradient(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 1, "ih", "kh", "h"), Axis(nest, "dy", 2, "iw", "kw", "w")

    def trips(c: Call) -> Trips:
        n = c.n
        _, _, lines, window_rows = heaviest_share(rows.rows(c.at["ih"], n["ih"]), n["c"], c.cores)
        taps = sum(columns.rows(c.at["iw"], n["iw"]))
        width = n["iw"]
        return (
            1.0, is_shared(c.cores), lines, lines * width, lines * width * rows.taps, window_rows * width,
            window_rows * width * columns.taps, window_rows * taps,
        )  # fmt: skip

    return trips


def _maximum_gradient(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 1, "ih", "kh", "h"), Axis(nest, "dy", 2, "iw", "kw", "w")
    area = rows.taps * columns.taps
    taps_h, taps_w = -(-rows.taps // rows.stride), -(-columns.taps // columns.stride)

    def trips(c: Call) -> Trips:
        n = c.n
        _, _, lines, window_rows = heaviest_share(rows.rows(c.at["ih"], n["ih"]), n["c"], c.cores)
        met = window_rows * sum(columns.rows(c.at["iw"], n["iw"]))
        width = n["iw"]
        return (
            1.0, is_shared(c.cores), lines, lines * width, lines * width * taps_h, window_rows * width,
            window_rows * width * taps_w, met, met / area, met / columns.taps,
        )  # fmt: skip

    return trips


MAX_POOL_GRAD = Family(
    (
        "call", "shared", "rows", "elements", "elements*taps down", "elements*window rows",
        "elements*window rows*taps across", "windows met", "maxima, expected", "maxima*kh",
    ),
    _maximum_gradient,
    ("stride_w", "dilation_w"),
)  # fmt: skip

POOL_GRAD = Family(
    (
        "call", "shared", "rows", "elements", "elements*kh", "elements*window rows", "elements*window rows*kw",
        "windows met",
    ),
    _gradient,
)  # fmt: skip
