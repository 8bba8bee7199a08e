"""Trips of 3x3 depthwise convolutions kept in registers (runtime/tg_depthwise.h)."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.calibration.loops.base import Call, Counter, Trips, bounds, is_absent, is_shared, share
from tilegrad.calibration.loops.windows import Axis
from tilegrad.ir.nest import Nest

_STRIP_NAMES = ("strips", "rolling strips", "triples", "single rows", "checked rows", "checked row taps")
MAP_NAMES = (
    "call", "shared", "segments", "columns",
    *(f"{name}, all taps" for name in _STRIP_NAMES),
    *(f"{name}, an end missing" for name in _STRIP_NAMES),
    *(f"{name}, tap by tap" for name in _STRIP_NAMES),
    "bias rows", "bias elements",
)  # fmt: skip


def _inner(base: int, stride: int, tap: int, count: int, extent: int) -> tuple[int, int]:
    """`tg_plane_inner`: the windows inside the image altogether."""
    low = base if tap > 0 else base - 2
    start = 0 if low >= 0 else -(low // stride)
    high = low + 2
    stop = count if high + (count - 1) * stride < extent else max(0, -((high - extent) // stride))
    return start, stop


@lru_cache(maxsize=65536)
def _segment(
    start: int, stop: int, base: int, stride: int, tap: int, count: int, extent: int, rolling: bool
) -> tuple[int, int, int, int, int, int]:
    """Rows [start, stop) of a plane's strip: 1, whether it rolls, triples, single rows, checked rows, their taps."""
    inner_start, inner_stop = _inner(base, stride, tap, count, extent)
    low, high = max(start, inner_start), min(stop, inner_stop)
    inner = max(0, high - low) if rolling else 0
    triples = inner // 3 if stride == 1 else 0
    rows = [r for r in range(start, stop) if not (rolling and low <= r < high)]
    taps = sum(0 <= base + stride * row + tap * k < extent for row in rows for k in range(3))
    return 1, int(inner > 0), triples, inner - 3 * triples, len(rows), taps


@lru_cache(maxsize=65536)
def _busiest_segments(
    planes: int, count: int, base: int, stride: int, tap: int, extent: int, cores: int, rolling: bool
) -> tuple[int, ...]:
    """Sum of `_segment` over the pieces of planes that the busiest core has, and its rows."""
    total = planes * count
    best: tuple[int, ...] = (0,) * 7
    most = -1.0
    for core in range(cores):
        start, stop = bounds(total, core, cores)
        sums = [0] * 7
        while start < stop:
            row = start % count
            length = min(stop - start, count - row)
            repeats = (stop - start) // count if row == 0 and length == count else 1
            piece = _segment(row, row + length, base, stride, tap, count, extent, rolling)
            for i, value in enumerate((*piece, length)):
                sums[i] += repeats * value
            start += repeats * length
        load = 60.0 * sums[0] + 10 * sums[1] + 54 * sums[2] + 25 * sums[3] + 12 * sums[4] + 8 * sums[5]
        if load > most:
            most, best = load, tuple(sums)
    return best


@lru_cache(maxsize=16384)
def _column_kinds(columns: int, left: int, stride: int, tap: int, width: int) -> tuple[int, int, int]:
    """Columns with all three taps inside, with an outer one missing, and others."""
    kinds = [0, 0, 0]
    for column in range(columns):
        at = left + stride * column
        has = [0 <= at + k * tap < width for k in range(3)]
        kinds[0 if all(has) else 1 if has[1] and (has[0] or has[2]) else 2] += 1
    return kinds[0], kinds[1], kinds[2]


def _forward(rows: Axis, columns: Axis, c: Call, tap: int, planes: int, has_bias: bool) -> Trips:
    stride = rows.stride
    count, width = c.n[rows.name], c.n[columns.name]
    base, left = rows.base(c.at[rows.name]), columns.base(c.at[columns.name])
    kinds = _column_kinds(width, left, stride, tap, columns.extent)
    args = planes, count, base, stride, tap, rows.extent, c.cores
    rolled = _busiest_segments(*args, True)
    checked = _busiest_segments(*args, False) if kinds[2] else rolled
    result: list[float] = [1.0, is_shared(c.cores), rolled[0], rolled[0] * width]
    for kind, sums in zip(kinds, (rolled, rolled, checked), strict=True):
        result += [kind * value for value in sums[:6]]
    return *result, rolled[6] * has_bias, rolled[6] * width * has_bias


def map_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")
    has_bias = not is_absent(nest, "b")

    def trips(c: Call) -> Trips:
        return _forward(rows, columns, c, 1, c.n["n"] * c.n["g"] * c.n["o"], has_bias)

    return trips


_GATHER_NAMES = (
    "rows", "rows*blocks", "rows*singles", "taps*blocks", "taps*singles", "taps*single taps",
    "taps*blocks, at the edge",
)  # fmt: skip
IMAGE_NAMES = (*MAP_NAMES, *_GATHER_NAMES)


@lru_cache(maxsize=16384)
def _gather_columns(columns: int, left: int, width: int) -> tuple[int, int, int, int]:
    """`tg_plane_gather` along a row: blocks of eight, single columns, the taps of those, blocks at the left edge."""
    blocks = singles = taps = edge = column = 0
    while column < columns:
        across = column + left
        at = (across - across % 2) // 2
        if across % 2 == 0 and column + 8 <= columns and at >= 0 and at + 4 <= width:
            blocks += 1
            edge += at == 0
            column += 8
            continue
        singles += 1
        if across % 2:
            taps += 0 <= at < width
        else:
            taps += (0 <= at < width) + (1 <= at <= width)
        column += 1
    return blocks, singles, taps, edge


@lru_cache(maxsize=16384)
def _gather_rows(planes: int, taps: tuple[int, ...], cores: int) -> tuple[int, int, int]:
    """Segments, rows and window rows inside the map of the busiest core."""
    count = len(taps)
    total, best, most = planes * count, (0, 0, 0), -1.0
    prefix = [0]
    for value in taps:
        prefix.append(prefix[-1] + value)
    for core in range(cores):
        start, stop = bounds(total, core, cores)
        if start == stop:
            continue
        segments = (stop - 1) // count - start // count + 1
        inside = (stop // count - start // count) * prefix[-1] + prefix[stop % count] - prefix[start % count]
        load = 5.0 * (stop - start) + 10 * inside + segments
        if load > most:
            most, best = load, (segments, stop - start, inside)
    return best


def image_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "dy", 3, "ih", "kh", "h"), Axis(nest, "dy", 4, "iw", "kw", "w")
    has_bias = not is_absent(nest, "b")
    nothing = (0.0,) * len(_GATHER_NAMES)

    def trips(c: Call) -> Trips:
        n = c.n
        planes = n["n"] * n["g"] * n["i"]
        if rows.stride == 1:
            return *_forward(rows, columns, c, -1, planes, has_bias), *nothing
        segments, lines, taps = _gather_rows(planes, rows.rows(c.at["ih"], n["ih"]), c.cores)
        blocks, singles, single_taps, edge = _gather_columns(n["iw"], columns.base(c.at["iw"]), columns.extent)
        return (
            1.0, is_shared(c.cores), segments, *(0.0,) * (len(MAP_NAMES) - 5),
            lines * has_bias, lines * n["iw"] * has_bias,
            lines, lines * blocks, lines * singles, taps * blocks, taps * singles, taps * single_taps, taps * edge,
        )  # fmt: skip

    return trips


WEIGHT_NAMES = (
    "call", "shared", "units", "planes", "planes, continued",
    "full rows", "full rows, rolling", "full rows*triples", "full rows*singles", "full rows*edges",
    "full rows*checked", "full rows*checked taps",
    "cut rows", "cut rows, rolling", "cut rows*triples", "cut rows*singles", "cut rows*edges", "cut rows*checked",
    "cut row taps*columns",
)  # fmt: skip


@lru_cache(maxsize=16384)
def _weight_columns(columns: int, left: int, stride: int, width: int) -> tuple[int, int, int, int, int, int]:
    """Of a row: whether it rolls, triples, single columns, usual edges, columns checked tap by tap, their taps."""
    start, stop = _inner(left, stride, 1, columns, width)
    inner = max(0, stop - start)
    triples = inner // 3 if stride == 1 else 0
    edges = taps = 0
    for column in range(columns):
        at = left + stride * column
        if start <= column < stop:
            continue
        if (at == -1 and width >= 2) or (at >= 0 and at + 2 == width):
            edges += 1
        else:
            taps += sum(0 <= at + k < width for k in range(3))
    return int(inner > 0), triples, inner - 3 * triples, edges, columns - inner - edges, taps


def weight_plane(nest: Nest) -> Counter:
    rows, columns = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")

    def trips(c: Call) -> Trips:
        n = c.n
        units = share(n["g"] * n["o"] * n["i"], c.cores)
        planes = units * n["n"]
        inside = rows.rows(c.at["oh"], n["oh"])
        full = planes * inside.count(3)
        cut = planes * len(inside) - full
        cut_taps = planes * (sum(inside) - 3 * inside.count(3))
        left = columns.base(c.at["ow"])
        *pattern, taps = _weight_columns(n["ow"], left, rows.stride, columns.extent)
        continued = planes - units * c.first
        return (
            1.0, is_shared(c.cores), units, planes, continued,
            full, *[full * value for value in pattern], full * taps,
            cut, *[cut * value for value in pattern], cut_taps * n["ow"],
        )  # fmt: skip

    return trips
