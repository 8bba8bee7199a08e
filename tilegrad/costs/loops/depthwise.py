"""Trips of 3x3 depthwise convolutions kept in registers (runtime/tg_depthwise.h)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from tilegrad.costs.loops.base import Call, Counter, Trips, is_absent, is_shared, load_of, share
from tilegrad.costs.loops.windows import axes_of, busiest_kinds, turns_of
from tilegrad.ir.nest import Nest

_KINDS = ("full rows", "top rows", "bottom rows")
_ROW_PARTS = (
    "", ", at the left edge", " with turns", "*turns", "*rest", ", at the right edge", ", right after a rest",
)  # fmt: skip
_ROW_NAMES = tuple(f"{kind}{part}" for kind in _KINDS for part in _ROW_PARTS)
MAP_NAMES = ("call", "shared", "segments", *_ROW_NAMES, "bias rows", "bias elements")


def fits(low: int, stride: int, count: int, extent: int) -> bool:
    """`tg_plane_fits`: windows reach at most one element beyond the image."""
    return low >= -1 and extent >= 2 and low + stride * (count - 1) + 2 <= extent


@lru_cache(maxsize=16384)
def _kinds(low: int, stride: int, count: int, extent: int) -> tuple[int, ...]:
    """Of each row of windows, as an index into _KINDS."""
    places = [low + stride * i for i in range(count)]
    return tuple(1 if at < 0 else 0 if at + 2 < extent else 2 for at in places)


def _row_parts(low: int, stride: int, columns: int, width: int) -> tuple[int, ...]:
    """_ROW_PARTS of one row."""
    left, right = int(low < 0), int(low + stride * (columns - 1) + 2 == width)
    turns, rest = divmod(columns - left - right, 3 if stride == 1 else 2)
    return 1, left, int(turns > 0), turns, rest, right, right * (rest > 0)


def _times(rows: Sequence[int], parts: Sequence[int]) -> list[float]:
    """Of so many rows of each kind, all of the same parts."""
    return [number * part for number in rows for part in parts]


def _segments(
    c: Call, planes: int, kinds: tuple[int, ...], parts: tuple[tuple[int, ...], ...], bias_row: tuple[int, int]
) -> tuple[int, tuple[int, ...]]:
    """Planes that the busiest core works on, and its rows of each kind. Loads are those of a call, of a shared one, of
    a segment, of each kind's parts, and of a row's bias."""
    loads: list[float] = []
    end = 3 + sum(map(len, parts))
    bias = load_of(bias_row, c.loads[end:])
    at = 3
    for of_kind in parts:
        loads.append(load_of(of_kind, c.loads[at : at + len(of_kind)]) + bias)
        at += len(of_kind)
    turn_load = c.loads[2] if c.loads else 0.0
    start, stop, counts = busiest_kinds(kinds, planes, c.cores, tuple(loads), turn_load)
    return turns_of(start, stop, len(kinds)), counts


def _plane(nest: Nest, operand: str, channels: str, back: int) -> Counter:
    """`back` is how far before its first tap a window begins."""
    rows, columns = axes_of(nest, operand)
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        width, left = c.n[columns.name], columns.base(c.at[columns.name]) - back
        kinds = _kinds(rows.base(c.at[rows.name]) - back, rows.stride, c.n[rows.name], rows.extent)
        parts = _row_parts(left, rows.stride, width, columns.extent)
        planes, bias_row = c.n["n"] * c.n["g"] * c.n[channels], (has_bias, has_bias * width)
        segments, counts = _segments(c, planes, kinds, (parts,) * len(_KINDS), bias_row)
        lines = sum(counts) * has_bias
        return 1.0, is_shared(c.cores), segments, *_times(counts, parts), lines, lines * width

    return trips


map_plane = partial(_plane, operand="x", channels="o", back=0)
image_plane = partial(_plane, operand="dy", channels="i", back=2)


_GATHER_PARTS = ("", "*singles", "*even ones", "*taps of those", "*runs", "*pairs")
GATHER_NAMES = (
    "call", "shared", "segments",
    *(f"{kind}{part}" for kind in ("rows from two", "rows from one") for part in _GATHER_PARTS),
    "rows from none", "elements from none", "bias rows", "bias elements",
)  # fmt: skip


@lru_cache(maxsize=16384)
def _gather_columns(columns: int, left: int, width: int) -> tuple[int, int, int, int, int]:
    """`tg_plane_gather_row`: single columns, even ones, their taps, runs of pairs, pairs."""
    singles = evens = taps = runs = pairs = column = 0
    while column < columns:
        across = column + left
        at = across >> 1
        if across % 2 == 0 and 1 <= at < width and column + 2 <= columns:
            count = min((columns - column) // 2, width - at)
            runs, pairs, column = runs + 1, pairs + count, column + 2 * count
            continue
        singles += 1
        evens += across % 2 == 0
        taps += (0 <= at < width) + (across % 2 == 0 and 1 <= at <= width)
        column += 1
    return singles, evens, taps, runs, pairs


@lru_cache(maxsize=16384)
def _gather_kinds(top: int, count: int, height: int) -> tuple[int, ...]:
    """Of each row: 0 from two rows of the map, 1 from one, 2 from none."""
    kinds = []
    for whole in range(top, top + count):
        high = whole >> 1
        kinds.append(2 - (0 <= high < height) - (whole % 2 == 0 and 1 <= high <= height))
    return tuple(kinds)


def gather_plane(nest: Nest) -> Counter:
    rows, columns = axes_of(nest, "dy")
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        n = c.n
        kinds = _gather_kinds(rows.base(c.at["ih"]), n["ih"], rows.extent)
        parts = (1, *_gather_columns(n["iw"], columns.base(c.at["iw"]), columns.extent))
        every = parts, parts, (1, n["iw"])
        bias_row = has_bias, has_bias * n["iw"]
        segments, (two, one, none) = _segments(c, n["n"] * n["g"] * n["i"], kinds, every, bias_row)
        lines = (two + one + none) * has_bias
        return (
            1.0, is_shared(c.cores), segments, *_times((two, one), parts), none, none * n["iw"], lines,
            lines * n["iw"],
        )  # fmt: skip

    return trips


WEIGHT_NAMES = ("call", "shared", "units", "planes", "planes, continued", *_ROW_NAMES)


def weight_plane(nest: Nest) -> Counter:
    rows, columns = axes_of(nest, "x")

    def trips(c: Call) -> Trips:
        n = c.n
        units = share(n["g"] * n["o"] * n["i"], c.cores)
        planes = units * n["n"]
        kinds = _kinds(rows.base(c.at["oh"]), rows.stride, n["oh"], rows.extent)
        counts = tuple(planes * kinds.count(kind) for kind in range(len(_KINDS)))
        left = columns.base(c.at["ow"])
        return (
            1.0, is_shared(c.cores), units, planes, planes - units * c.first,
            *_times(counts, _row_parts(left, rows.stride, n["ow"], columns.extent)),
        )  # fmt: skip

    return trips
