"""Trips of 3x3 depthwise convolutions kept in registers (runtime/tg_depthwise.h)."""

from __future__ import annotations

from functools import lru_cache
from operator import mul

from tilegrad.calibration.loops.base import Call, Counter, Trips, bounds, is_absent, is_shared, share
from tilegrad.calibration.loops.windows import Axis
from tilegrad.ir.nest import Nest

_KINDS = ("full rows", "top rows", "bottom rows")
_ROW_PARTS = (
    "", ", at the left edge", " with turns", "*turns", "*rest", ", at the right edge", ", right after a rest",
)  # fmt: skip
_ROW_NAMES = tuple(f"{kind}{part}" for kind in _KINDS for part in _ROW_PARTS)
MAP_NAMES = ("call", "shared", "segments", *_ROW_NAMES, "bias rows", "bias elements")
# What a segment, a row of each kind and each of its columns take about, to find the busiest core.
_SEGMENT_LOAD = 105.0
_KIND_LOADS = ((30.0, 16.0), (25.0, 11.0), (25.0, 11.0))
_BIAS_LOADS = (9.0, 7.0)


def fits(low: int, stride: int, count: int, extent: int) -> bool:
    """`tg_plane_fits`: windows reach at most one element beyond the image."""
    return low >= -1 and extent >= 2 and low + stride * (count - 1) + 2 <= extent


@lru_cache(maxsize=16384)
def _kinds(low: int, stride: int, count: int, extent: int) -> tuple[int, ...]:
    """Of each row of windows, as an index into _KINDS."""
    places = [low + stride * i for i in range(count)]
    return tuple(1 if at < 0 else 0 if at + 2 < extent else 2 for at in places)


@lru_cache(maxsize=16384)
def _busiest(
    planes: int, kinds: tuple[int, ...], loads: tuple[float, ...], segment_load: float, cores: int
) -> tuple[int, ...]:
    """Planes that the busiest core works on, and its rows of each kind."""
    count = len(kinds)
    prefix = [[0] * len(loads)]
    for kind in kinds:
        prefix.append([value + (i == kind) for i, value in enumerate(prefix[-1])])
    best: tuple[int, ...] = (0,) * (1 + len(loads))
    most = -1.0
    for core in range(cores):
        start, stop = bounds(planes * count, core, cores)
        if start == stop:
            continue
        whole = stop // count - start // count
        rows = [
            whole * total + after - before
            for total, after, before in zip(prefix[-1], prefix[stop % count], prefix[start % count], strict=True)
        ]
        segments = (stop - 1) // count - start // count + 1
        load = sum(load * number for load, number in zip(loads, rows, strict=True)) + segment_load * segments
        if load > most:
            most, best = load, (segments, *rows)
    return best


def _loads(kinds: tuple[tuple[float, float], ...], columns: int, has_bias: bool) -> tuple[float, ...]:
    """Of a row of each kind."""
    bias = (_BIAS_LOADS[0] + _BIAS_LOADS[1] * columns) * has_bias
    return tuple(row + column * columns + bias for row, column in kinds)


def _row_trips(rows: tuple[int, ...], low: int, stride: int, columns: int, width: int) -> list[float]:
    """_ROW_NAMES of so many rows of each kind."""
    left, right = int(low < 0), int(low + stride * (columns - 1) + 2 == width)
    turns, rest = divmod(columns - left - right, 3 if stride == 1 else 2)
    parts = 1, left, int(turns > 0), turns, rest, right, right * (rest > 0)
    return [number * part for number in rows for part in parts]


def _forward(rows: Axis, columns: Axis, c: Call, planes: int, back: int, has_bias: bool) -> Trips:
    """`back` is how far before its first tap a window begins."""
    stride, width = rows.stride, c.n[columns.name]
    top, left = rows.base(c.at[rows.name]) - back, columns.base(c.at[columns.name]) - back
    kinds = _kinds(top, stride, c.n[rows.name], rows.extent)
    segments, *counts = _busiest(planes, kinds, _loads(_KIND_LOADS, width, has_bias), _SEGMENT_LOAD, c.cores)
    lines = sum(counts) * has_bias
    return (
        1.0, is_shared(c.cores), segments, *_row_trips(tuple(counts), left, stride, width, columns.extent),
        lines, lines * width,
    )  # fmt: skip


def map_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        return _forward(rows, columns, c, c.n["n"] * c.n["g"] * c.n["o"], 0, has_bias)

    return trips


_GATHER_PARTS = ("", "*singles", "*taps of those", "*runs", "*pairs")
GATHER_NAMES = (
    "call", "shared", "segments",
    *(f"{kind}{part}" for kind in ("rows from two", "rows from one") for part in _GATHER_PARTS),
    "rows from none", "elements from none", "bias rows", "bias elements",
)  # fmt: skip
_GATHER_SEGMENT_LOAD = 75.0
_GATHER_LOADS = ((38.0, 13.0, 7.0, 29.0, 16.0), (29.0, 13.0, 5.0, 24.0, 10.0))


@lru_cache(maxsize=16384)
def _gather_columns(columns: int, left: int, width: int) -> tuple[int, int, int, int]:
    """`tg_plane_gather_row`: single columns, their taps, runs of pairs, pairs."""
    singles = taps = runs = pairs = column = 0
    while column < columns:
        across = column + left
        at = across >> 1
        if across % 2 == 0 and 1 <= at < width and column + 2 <= columns:
            count = min((columns - column) // 2, width - at)
            runs, pairs, column = runs + 1, pairs + count, column + 2 * count
            continue
        singles += 1
        taps += (0 <= at < width) + (across % 2 == 0 and 1 <= at <= width)
        column += 1
    return singles, taps, runs, pairs


@lru_cache(maxsize=16384)
def _gather_kinds(top: int, count: int, height: int) -> tuple[int, ...]:
    """Of each row: 0 from two rows of the map, 1 from one, 2 from none."""
    kinds = []
    for whole in range(top, top + count):
        high = whole >> 1
        kinds.append(2 - (0 <= high < height) - (whole % 2 == 0 and 1 <= high <= height))
    return tuple(kinds)


def gather_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 3, "ih", "kh", "h"), Axis(nest, "dy", 4, "iw", "kw", "w")
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        n = c.n
        kinds = _gather_kinds(rows.base(c.at["ih"]), n["ih"], rows.extent)
        parts = (1, *_gather_columns(n["iw"], columns.base(c.at["iw"]), columns.extent))
        loads = *[sum(map(mul, parts, load)) for load in _GATHER_LOADS], 16.0 + 3.0 * n["iw"]
        segments, two, one, none = _busiest(n["n"] * n["g"] * n["i"], kinds, loads, _GATHER_SEGMENT_LOAD, c.cores)
        lines = (two + one + none) * has_bias
        return (
            1.0, is_shared(c.cores), segments, *[number * part for number in (two, one) for part in parts],
            none, none * n["iw"], lines, lines * n["iw"],
        )  # fmt: skip

    return trips


def image_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 3, "ih", "kh", "h"), Axis(nest, "dy", 4, "iw", "kw", "w")
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        return _forward(rows, columns, c, c.n["n"] * c.n["g"] * c.n["i"], 2, has_bias)

    return trips


WEIGHT_NAMES = ("call", "shared", "units", "planes", "planes, continued", *_ROW_NAMES)


def weight_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")

    def trips(c: Call) -> Trips:
        n = c.n
        units = share(n["g"] * n["o"] * n["i"], c.cores)
        planes = units * n["n"]
        kinds = _kinds(rows.base(c.at["oh"]), rows.stride, n["oh"], rows.extent)
        counts = tuple(planes * kinds.count(kind) for kind in range(len(_KINDS)))
        left = columns.base(c.at["ow"])
        return (
            1.0, is_shared(c.cores), units, planes, planes - units * c.first,
            *_row_trips(counts, left, rows.stride, n["ow"], columns.extent),
        )  # fmt: skip

    return trips
