"""Trips of 3x3 depthwise convolutions kept in registers (runtime/tg_depthwise.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from tilegrad.costs.loops.base import Call, Counter, Family, Trips, has_operand, is_shared, pieces, share
from tilegrad.costs.loops.windows import Axis, axes_of, busiest
from tilegrad.ir.nest import Nest

_KINDS = ("full rows", "top rows", "bottom rows")
_ROW_PARTS = (
    "", ", at the left edge", " with turns", "*turns", "*rest", ", at the right edge", ", right after a rest",
)  # fmt: skip
_ROW_NAMES = tuple(f"{kind}{part}" for kind in _KINDS for part in _ROW_PARTS)
_GATHER_PARTS = ("", "*singles", "*even ones", "*taps of those", "*runs", "*pairs")
_GATHER_NAMES = (
    *(f"{kind}{part}" for kind in ("rows from two", "rows from one") for part in _GATHER_PARTS),
    "rows from none", "elements from none",
)  # fmt: skip


def fits(low: int, stride: int, count: int, extent: int) -> bool:
    """`tg_plane_fits`: windows reach at most one element beyond the image."""
    return low >= -1 and extent >= 2 and low + stride * (count - 1) + 2 <= extent


# The kind of each row of a plane, and the parts of a row of each kind.
Rows = tuple[tuple[int, ...], Sequence[tuple[int, ...]]]


@lru_cache(maxsize=16384)
def _kinds(low: int, stride: int, count: int, extent: int) -> tuple[int, ...]:
    """Of each row of windows, as an index into _KINDS."""
    places = [low + stride * i for i in range(count)]
    return tuple(1 if at < 0 else 0 if at + 2 < extent else 2 for at in places)


def _window_rows(rows: Axis, columns: Axis, c: Call) -> Rows:
    """_ROW_PARTS of each of _KINDS: all are alike."""
    low, stride, count = columns.low(c.at[columns.name]), columns.stride, c.n[columns.name]
    left, right = int(low < 0), int(low + stride * (count - 1) + 2 == columns.extent)
    turns, rest = divmod(count - left - right, 3 if stride == 1 else 2)
    parts = 1, left, int(turns > 0), turns, rest, right, right * (rest > 0)
    return _kinds(rows.low(c.at[rows.name]), stride, c.n[rows.name], rows.extent), (parts,) * len(_KINDS)


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


def _gathered_rows(rows: Axis, columns: Axis, c: Call) -> Rows:
    parts = (1, *_gather_columns(c.n["iw"], columns.base(c.at["iw"]), columns.extent))
    return _gather_kinds(rows.base(c.at["ih"]), c.n["ih"], rows.extent), (parts, parts, (1, c.n["iw"]))


def _planes(names: tuple[str, ...], operand: str, rows_of: Callable[[Axis, Axis, Call], Rows]) -> Family:
    """Cores share the rows of all planes; those of one plane are a segment."""

    def bind(nest: Nest) -> Counter:
        rows, columns = axes_of(nest, operand)
        has_bias = has_operand(nest, "b")

        def trips(c: Call) -> Trips:
            kinds, parts = rows_of(rows, columns, c)
            of_kinds = [(*_of_kind(parts, kind), has_bias, has_bias * c.n[columns.name]) for kind in range(len(parts))]

            def head(start: int, stop: int) -> Trips:
                return 1.0, is_shared(c.cores), pieces(start, stop, len(kinds))

            planes = c.n["n"] * c.n["g"] * c.n["i" if rows.is_gathered else "o"]
            start, stop, total = busiest(c, kinds, of_kinds, planes, head)
            return *head(start, stop), *total

        return trips

    return Family(("call", "shared", "segments", *names, "bias rows", "bias elements"), bind)


def _of_kind(parts: Sequence[tuple[int, ...]], kind: int) -> list[int]:
    """A row of one kind has nothing of the others."""
    return [part * (i == kind) for i, own in enumerate(parts) for part in own]


MAP = _planes(_ROW_NAMES, "x", _window_rows)
IMAGE = _planes(_ROW_NAMES, "dy", _window_rows)
GATHER = _planes(_GATHER_NAMES, "dy", _gathered_rows)


def _weight(nest: Nest) -> Counter:
    rows, columns = axes_of(nest, "x")

    def trips(c: Call) -> Trips:
        units = share(c.n["g"] * c.n["o"] * c.n["i"], c.cores)
        planes = units * c.n["n"]
        kinds, parts = _window_rows(rows, columns, c)
        of_rows = [planes * kinds.count(kind) * part for kind, own in enumerate(parts) for part in own]
        return 1.0, is_shared(c.cores), units, planes, planes - units * c.first, *of_rows

    return trips


WEIGHT = Family(("call", "shared", "units", "planes", "planes, continued", *_ROW_NAMES), _weight)
