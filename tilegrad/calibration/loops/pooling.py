"""Trips of pooling kernels."""

from __future__ import annotations

from functools import lru_cache

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


@lru_cache(maxsize=16384)
def _outcomes(base: int, stride: int, dilation: int, taps: int, extent: int, count: int) -> tuple[tuple[int, ...], ...]:
    """For each of `count` positions, how many taps are before the map, beyond it, between windows, and met."""
    result = []
    for i in range(count):
        found = [0, 0, 0, 0]
        for k in range(taps):
            place = base + i - k * dilation
            window = place // stride
            found[0 if place < 0 else 1 if window >= extent else 2 if place % stride else 3] += 1
        result.append(tuple(found))
    return tuple(result)


@lru_cache(maxsize=16384)
def _busiest_lines(outcomes: tuple[tuple[int, ...], ...], repeats: int, cores: int) -> tuple[int, ...]:
    """Lines of the busiest core, and the outcomes of their taps."""
    start, stop, lines, _ = heaviest_share(tuple(found[3] for found in outcomes), repeats, cores)
    sums = [0, 0, 0, 0]
    for line in range(start, stop):
        for i, value in enumerate(outcomes[line % len(outcomes)]):
            sums[i] += value
    return lines, *sums


def _gradient(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 1, "ih", "kh", "h"), Axis(nest, "dy", 2, "iw", "kw", "w")

    def outcomes(axis: Axis, at: int, count: int) -> tuple[tuple[int, ...], ...]:
        return _outcomes(axis.base(at), axis.stride, axis.dilation, axis.taps, axis.extent, count)

    def trips(c: Call) -> Trips:
        width = c.n["iw"]
        down = outcomes(rows, c.at["ih"], c.n["ih"])
        lines, *by_row = _busiest_lines(down, c.n["c"], c.cores)
        by_column = [sum(values) for values in zip(*outcomes(columns, c.at["iw"], width), strict=True)]
        met = by_row[3]
        return (
            1.0, is_shared(c.cores), lines, lines * width, *[value * width for value in by_row],
            *[met * value for value in by_column],
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

_OUTCOMES = ("before", "beyond", "between", "met")
POOL_GRAD = Family(
    (
        "call", "shared", "rows", "elements", *(f"window rows {what}" for what in _OUTCOMES),
        *(f"windows {what}" for what in _OUTCOMES),
    ),
    _gradient,
)  # fmt: skip
