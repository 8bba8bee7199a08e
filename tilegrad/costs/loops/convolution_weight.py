"""Trips of the weight gradient of convolutions (ops/conv.c)."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.costs.loops.base import Call, Counter, Trips, bounds, is_shared, load_of
from tilegrad.costs.loops.windows import axes_of, blocks_of
from tilegrad.ir.nest import Nest

WEIGHT_NAMES = (
    "call", "shared", *(f"units of {outs}" for outs in (1, 2, 3, 4)), "units*n", "units*n*rows",
    "rows with fast columns", "fast columns, whole", "fast columns, an end missing", "fast columns, both ends missing",
    "rows with single columns", "single columns", "single taps",
    "rows with full columns", "rows checked at the left", "rows checked at the right", "rows checked throughout",
    "full columns",
    "columns checked at the left", "columns checked at the right", "checked lanes inside", "checked lanes beyond",
    "rows clipped at the top", "rows clipped at the bottom", "lanes clipped at the left", "lanes clipped at the right",
    "units with rows", "units with columns", "units with rows*n", "units, continued",
)  # fmt: skip


@lru_cache(maxsize=16384)
def _three_columns(columns: int, position: int, extent: int, stride: int) -> tuple[int, ...]:
    """One row of `tg_conv_dw_block3`: whether it has blocks of four, those by missing ends; whether it has single
    columns, those, and their taps."""
    fast = taps = 0
    by_ends = [0, 0, 0]
    at = position
    while position >= -1 and columns - 4 * fast >= 4 and at + 3 * stride + 2 <= extent:
        by_ends[(at < 0) + (at + 3 * stride + 2 >= extent)] += 1
        fast += 1
        at += 4 * stride
    for column in range(4 * fast, columns):
        taps += sum(0 <= position + column * stride + j < extent for j in range(3))
    singles = columns - 4 * fast
    return int(fast > 0), *by_ends, int(singles > 0), singles, taps


@lru_cache(maxsize=16384)
def _lane_columns(
    columns: int, position: int, extent: int, stride: int, dilation: int, taps: int, lanes_total: int
) -> tuple[tuple[int, ...], ...]:
    """A row of `tg_conv_dw_block` for each group of lanes: whether it has full columns, checked ones at the left, at
    the right, and nothing between; how many; lanes of checked ones inside and beyond; of the lanes, how many are
    clipped at either end, and whether there is a column at all."""

    def inside(kw: int) -> tuple[int, int]:
        base = kw * dilation + position
        start = 0 if base >= 0 else -(base // stride)
        stop = columns if base + (columns - 1) * stride < extent else max(0, -((base - extent) // stride))
        return start, stop

    found = []
    for group in range(-(-lanes_total // 4)):
        ranges = [inside(min(4 * group + j, lanes_total - 1) % taps) for j in range(4)]
        begin, end = min(r[0] for r in ranges), max(r[1] for r in ranges)
        start, stop = max(r[0] for r in ranges), min(r[1] for r in ranges)
        ragged = [column for column in range(begin, end) if not start <= column < stop]
        lanes = sum(r[0] <= column < r[1] for column in ragged for r in ranges)
        beyond = sum(r[0] <= column and column >= r[1] for column in ragged for r in ranges)
        full = max(0, min(stop, end) - max(start, begin))
        clipped = sum(r[0] > 0 for r in ranges), sum(r[1] < columns for r in ranges), int(end > begin)
        left = sum(column < start for column in ragged)
        right = len(ragged) - left
        kinds = int(full > 0), int(left > 0), int(right > 0), int(left > 0 and right > 0 and not full)
        found.append((*kinds, full, left, right, lanes, beyond, *clipped))
    return tuple(found)


@lru_cache(maxsize=16384)
def _busiest_units(
    rows: tuple[tuple[int, int, int], ...], groups: tuple[tuple[int, ...], ...], blocks: int, repeats: int, cores: int,
    loads: tuple[float, ...],
) -> tuple[int, ...]:  # fmt: skip
    """Units are (repeat, block of channels, group of columns, kh), kh fastest. Of the busiest core: units, those of a
    last block, rows, the sums over its rows of what a group has, and what is clipped of its rows and lanes."""
    width = 4 + len(groups[0])
    prefix = [(0,) * width]
    for group in groups:
        for count, *rows_clipped in rows:
            ends = *rows_clipped, *group[-3:-1], int(count > 0), int(count > 0 and group[-1])
            values = (count, *[count * value for value in group[:-3]], *ends)
            prefix.append(tuple(a + b for a, b in zip(prefix[-1], values, strict=True)))
    period = len(prefix) - 1

    def before(unit: int) -> tuple[int, ...]:
        """Sums over the units before one."""
        rounds, rest = divmod(unit, period)
        short = rounds // blocks * period + (rest if rounds % blocks == blocks - 1 else 0)
        return short, *[rounds * total + part for total, part in zip(prefix[-1], prefix[rest], strict=True)]

    best: tuple[int, ...] = (0,) * (2 + width)
    most = -1.0
    for core in range(cores):
        start, stop = bounds(repeats * blocks * period, core, cores)
        sums = tuple(b - a for a, b in zip(before(start), before(stop), strict=True))
        load = load_of((stop - start, *sums), loads)
        if stop > start and load > most:
            most, best = load, (stop - start, *sums)
    return best


def weight(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = axes_of(nest, "x")
    stride, dilation, kw = columns_axis.stride, columns_axis.dilation, columns_axis.taps
    is_three = width == 4 and kw == 3 and dilation == 1 and stride <= 2

    @lru_cache(maxsize=4096)
    def tap_rows(at: int, size: int) -> tuple[tuple[int, int, int], ...]:
        """Rows of the map whose window row kh is inside the image, and how many of their ends are clipped, for each
        kh."""
        extent, step = rows_axis.extent, rows_axis.stride
        found = []
        for kh in range(rows_axis.taps):
            base = rows_axis.base(at) + kh * rows_axis.dilation
            inside = sum(0 <= base + i * step < extent for i in range(size))
            found.append((inside, int(base < 0), int(base + (size - 1) * step >= extent)))
        return tuple(found)

    def unit_loads(c: Call, last: int) -> tuple[float, ...]:
        """Of a unit, of one of a last block beside that, of a row and its parts, and of what a unit is clipped by."""
        if not c.loads:
            return ()
        images, by_outs = c.n["n"], c.loads[2:6]
        of_unit = by_outs[width - 1] + images * c.loads[6] + (not c.first) * c.loads[-1]
        parts = c.loads[8:15] if is_three else c.loads[15:24]
        ends = list(c.loads[-8:-2])
        ends[-2] += images * c.loads[-2]
        of_rows = [images * load for load in (c.loads[7], *parts)]
        return of_unit, by_outs[last - 1] - by_outs[width - 1], *of_rows, *ends

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        position, blocks = columns_axis.base(at["ow"]), blocks_of(n["o"], width)
        groups: tuple[tuple[int, ...], ...]
        if is_three:
            groups = ((*_three_columns(n["ow"], position, columns_axis.extent, stride), 0, 0, 0),) * n["i"]
        else:
            groups = _lane_columns(n["ow"], position, columns_axis.extent, stride, dilation, kw, n["i"] * kw)
        last = (n["o"] - 1) % width + 1
        loads = unit_loads(c, last)
        units, short, *sums = _busiest_units(tap_rows(at["oh"], n["oh"]), groups, blocks, n["g"], c.cores, loads)
        by_outs = [short * (outs == last) + (units - short) * (outs == width) for outs in (1, 2, 3, 4)]
        rows, *parts = [n["n"] * value for value in sums[:-6]]
        before, after = ((), (0.0,) * 9) if is_three else ((0.0,) * 7, ())
        return (
            1.0, is_shared(c.cores), *by_outs, units * n["n"], rows, *before, *parts, *after, *sums[-6:],
            n["n"] * sums[-2], units * (not c.first),
        )  # fmt: skip

    return trips
