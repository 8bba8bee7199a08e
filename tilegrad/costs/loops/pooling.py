"""Trips of pooling kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from tilegrad.calibration.sequence import COLUMNS, ROWS, even
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, is_shared
from tilegrad.costs.loops.windows import Axis, busiest_sums
from tilegrad.ir.nest import Nest


@lru_cache(maxsize=16384)
def _windows(axis: Axis, at: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Of each of `count` windows: one, the taps inside, and whether it begins before the image and ends beyond it."""
    result = []
    for taps, i in zip(axis.rows(at, count), range(at, at + count), strict=True):
        begin = axis.base(i)
        result.append((1, taps, int(begin < 0), int(begin + (axis.taps - 1) * axis.dilation >= axis.extent)))
    return tuple(result)


def _forward(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 1, "oh", "kh", "h"), Axis(nest, "x", 2, "ow", "kw", "w")

    def trips(c: Call) -> Trips:
        n = c.n
        width, taps, before, beyond = _column_sums(_windows(columns, c.at["ow"], n["ow"]))
        loads = 40.0 + 40.0 * width + 5.0 * (before + beyond), 12.0 * width + 9.0 * taps, 5.0, 5.0
        lines, window_rows, above, below = busiest_sums(_windows(rows, c.at["oh"], n["oh"]), n["c"], c.cores, loads)
        return (
            1.0, is_shared(c.cores), lines, above, below, lines * width, lines * before, lines * beyond,
            window_rows * width, window_rows * taps,
        )  # fmt: skip

    return trips


POOL = Family(
    (
        "call", "shared", "rows", "rows clipped at the top", "rows clipped at the bottom", "windows",
        "windows clipped at the left", "windows clipped at the right", "windows*rows inside", "taps inside",
    ),
    _forward,
)  # fmt: skip


def _column_sums(columns: tuple[tuple[int, ...], ...]) -> list[int]:
    return [sum(values) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class _Gathered:
    """One spatial axis of a pooling's gradient. Windows begin at `offset` before the image; those of a tile's box are
    numbered from the first that may reach it."""

    stride: int
    dilation: int
    taps: int
    offset: int
    windows: int
    image: int
    low: int = 0
    high: int = 0

    @staticmethod
    def of(nest: Nest, dimension: int, name: str, suffix: str) -> _Gathered:
        axis = Axis(nest, "dy", dimension, f"i{suffix}", f"k{suffix}", suffix)
        counted = [int(nest.constants.get(f"{end}_{suffix}", 0)) for end in ("low", "high")]
        return _Gathered(
            axis.stride, axis.dilation, axis.taps, axis.offset, axis.extent, nest.axis(name).extent, *counted
        )

    def box(self, at: int, count: int) -> tuple[int, int]:
        """The first window of the box, and how many there are."""
        low, high = at + self.offset - (self.taps - 1) * self.dilation, at + count - 1 + self.offset
        start = max(0, -(-low // self.stride))
        return start, max(0, min(self.windows, high // self.stride + 1) - start)


@lru_cache(maxsize=16384)
def _average_outcomes(axis: _Gathered, at: int, count: int) -> tuple[tuple[int, ...], ...]:
    """For each of `count` positions, how many taps are before the windows, beyond them, between them, and met; and of
    those met, how many windows begin before what counts, or end beyond it."""
    first, windows = axis.box(at, count)
    result = []
    for i in range(at, at + count):
        found = [1, 0, 0, 0, 0, 0, 0]
        for k in range(axis.taps):
            place = i + axis.offset - k * axis.dilation - first * axis.stride
            window = place // axis.stride
            way = 1 if place < 0 else 2 if window >= windows else 3 if place % axis.stride else 4
            found[way] += 1
            if way == 4:
                begin = i - k * axis.dilation
                found[5] += begin < axis.low
                found[6] += begin + (axis.taps - 1) * axis.dilation >= axis.high
        result.append(tuple(found))
    return tuple(result)


def _average_gradient(nest: Nest) -> Counter:
    rows, columns = _Gathered.of(nest, 1, "ih", "h"), _Gathered.of(nest, 2, "iw", "w")

    def trips(c: Call) -> Trips:
        width = c.n["iw"]
        across = _column_sums(_average_outcomes(columns, c.at["iw"], width))[1:]
        inner = 14.0 * (across[0] + across[1]) + 17.0 * across[2] + 45.0 * across[3] + 5.0 * (across[4] + across[5])
        loads = (25.0 + 20.0 * width, 6.0 * width, 9.0 * width, 11.0 * width, 45.0 * width + inner, 5.0, 5.0)
        down = _average_outcomes(rows, c.at["ih"], c.n["ih"])
        lines, *by_row = busiest_sums(down, c.n["c"], c.cores, loads)
        return (
            1.0, is_shared(c.cores), lines, lines * width, *[value * width for value in by_row],
            *[by_row[3] * value for value in across],
        )  # fmt: skip

    return trips


_OUTCOMES = ("before", "beyond", "between", "met", "clipped at the start", "clipped at the end")
AVERAGE_POOL_GRAD = Family(
    (
        "call", "shared", "rows", "elements", *(f"window rows {what}" for what in _OUTCOMES),
        *(f"windows {what}" for what in _OUTCOMES),
    ),
    _average_gradient,
)  # fmt: skip


@lru_cache(maxsize=16384)
def _sightings(axis: _Gathered, at: int, count: int, position: int) -> tuple[tuple[int, ...], ...]:
    """`tg_sightings` of each of `count` positions: tries to find the first tap, whether all were needed, whether there
    are taps, taps, windows, and of the windows whose maximum is here (calibration/content.py) their number, the taps
    before it inside and outside of the image, and all their taps inside and outside."""
    values = even(axis.image, position)
    first, windows = axis.box(at, count)
    step = axis.stride // gcd(axis.stride, axis.dilation)
    result = []
    for i in range(at, at + count):
        tap = next((k for k in range(step) if (i + axis.offset - k * axis.dilation) % axis.stride == 0), step)
        found = [1, min(tap + 1, step), int(tap >= step - 1), int(tap < axis.taps), *(0,) * 7]
        for k in range(tap, axis.taps, step):
            found[4] += 1
            begin = i - k * axis.dilation
            window = (begin + axis.offset) // axis.stride - first
            if tap == step or not 0 <= window < windows:
                continue
            found[5] += 1
            places = [begin + j * axis.dilation for j in range(axis.taps)]
            inside = [0 <= place < axis.image for place in places]
            if values[i] == max(values[place] for place, is_inside in zip(places, inside, strict=True) if is_inside):
                before, every = sum(inside[:k]), sum(inside)
                for where, number in enumerate((1, before, k - before, every, axis.taps - every), start=6):
                    found[where] += number
        result.append(tuple(found))
    return tuple(result)


def _maximum_gradient(nest: Nest) -> Counter:
    rows, columns = _Gathered.of(nest, 1, "ih", "h"), _Gathered.of(nest, 2, "iw", "w")
    is_plain = columns.dilation == 1

    def trips(c: Call) -> Trips:
        width = c.n["iw"]
        across = _column_sums(_sightings(columns, c.at["iw"], width, COLUMNS))
        tries, wraps, reached, taps, windows, hits, left, left_outside, whole, whole_outside = across[1:]
        loads = (
            80.0 + 25.0 * width, 15.0, 0.0, 10.0 * width, 6.0 * width, 10.0 * width + 7.0 * taps + 14.0 * windows,
            20.0 * hits + 12.0 * left + 6.0 * left_outside, 12.0 * whole + 6.0 * whole_outside + 10.0 * hits,
            5.0 * hits, 0.0, 0.0,
        )  # fmt: skip
        down = _sightings(rows, c.at["ih"], c.n["ih"], ROWS)
        lines, searches, _, seen, steps, met, found, above, above_outside, *_ = busiest_sums(
            down, c.n["c"], c.cores, loads
        )
        return (
            1.0, is_shared(c.cores), lines, searches, lines * width, lines * (wraps if is_plain else tries),
            seen * width, steps * width, met * width, met * reached, met * taps, met * windows, found * hits,
            found * left, found * left_outside, above * hits, above * whole, above * whole_outside,
            above_outside * hits,
        )  # fmt: skip

    return trips


MAX_POOL_GRAD = Family(
    (
        "call", "shared", "rows", "tries", "elements", "elements' tries",
        "elements with taps", "elements*taps down", "elements*window rows", "elements*window rows with taps",
        "elements*window rows*taps across", "windows met", "maxima", "maxima*taps before", "maxima*taps outside",
        "rows above maxima", "taps above", "taps above, outside", "rows outside above",
    ),
    _maximum_gradient,
    ("stride_w", "dilation_w"),
)  # fmt: skip
