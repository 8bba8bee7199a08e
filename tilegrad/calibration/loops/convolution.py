"""Trips of convolutions (ops/conv.c, runtime/tg_convolution.h): forward, input gradient and weight gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tilegrad.calibration.loops import depthwise
from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, bounds, is_absent, is_shared
from tilegrad.calibration.loops.windows import (
    ROW_NAMES,
    Axis,
    add_scaled,
    busiest_window,
    column_blocks,
    row_trips,
    step_between_taps,
)
from tilegrad.ir.nest import Nest

_MAP_NAMES = ("call", "shared", "units", "rows", "flat rows", *ROW_NAMES, "blocks, continued", "blocks, biased")


def _blocks(channels: int, width: int) -> int:
    return -(-channels // width)


def _flat(channels: int, rows: int) -> tuple[int, int, int]:
    """Channels, rows and taps as `tg_conv_flat` turns them."""
    return (1, 1, channels) if rows == 1 else (channels, 1, rows)


def _unit_load(width: int, channels: int, blocks: int, phases: int, taps: float) -> float:
    """How long a unit takes beside its window rows, in the time of one of them, about: a row of so many blocks of
    columns, in phases whose windows have so many taps."""
    each = 10.0 + (30.0 if width == 4 else 14.0) * taps
    return (140.0 + 60.0 * phases + 110.0 * blocks) / (max(1, channels * blocks) * each)


def _map(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")
    has_bias = not is_absent(nest, "b")
    stride, dilation = columns_axis.stride, columns_axis.dilation
    tap = 1 if dilation == 1 and stride in (1, 2) else 0

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        weights = rows_axis.rows(at["oh"], n["oh"])
        unit_load = _unit_load(width, n["i"], _blocks(n["ow"], 4), 1, columns_axis.taps)
        counts = busiest_window(weights, n["n"] * n["g"] * _blocks(n["o"], width), c.cores, unit_load)
        total = [0.0] * len(ROW_NAMES)
        position = columns_axis.base(at["ow"])
        blocks_done = flat_rows = 0
        for rows, units in enumerate(counts):
            if units == 0:
                continue
            is_flat = rows > 0 and columns_axis.taps == 1
            flat_rows += units * is_flat
            channels, window_rows, taps = _flat(n["i"], rows) if is_flat else (n["i"], rows, columns_axis.taps)
            blocks = column_blocks(
                n["ow"], position, columns_axis.extent, taps, stride, 0 if is_flat else dilation,
                0 if is_flat else tap, width == 4, c.first,
            )  # fmt: skip
            add_scaled(total, units, row_trips(blocks, channels, window_rows, taps))
            blocks_done += units * sum(blocks[0])
        units = sum(counts)
        return (
            1.0, is_shared(c.cores), units, units - flat_rows, flat_rows, *total,
            blocks_done * (not c.first), blocks_done * (has_bias and c.last),
        )  # fmt: skip

    return trips


def _image(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = Axis(nest, "dy", 3, "ih", "kh", "h"), Axis(nest, "dy", 4, "iw", "kw", "w")
    has_bias = not is_absent(nest, "b")
    stride, dilation, offset = columns_axis.stride, columns_axis.dilation, columns_axis.offset
    back = step_between_taps(stride, dilation)
    k_step = stride // (dilation // back)
    is_unit = stride == dilation == 1

    @lru_cache(maxsize=4096)
    def phase_taps(phase: int) -> tuple[int, int]:
        """The taps that a column's phase sees, and where in the map the first one is."""
        numerator = phase + offset
        for k in range(k_step):
            if (numerator - k * dilation) % stride == 0:
                return max(0, -(-(columns_axis.taps - k) // k_step)), (numerator - k * dilation) // stride
        return 0, 0

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        weights = rows_axis.rows(at["ih"], n["ih"])
        phases = min(stride, n["iw"])
        blocks_in_all = phases * _blocks(n["iw"], 4 * phases)
        unit_load = _unit_load(width, n["o"], blocks_in_all, phases, columns_axis.taps / stride)
        counts = busiest_window(weights, n["n"] * n["g"] * _blocks(n["i"], width), c.cores, unit_load)
        total = [0.0] * len(ROW_NAMES)
        blocks_done = flat_rows = 0
        for rows, units in enumerate(counts):
            if units == 0:
                continue
            for phase in range(phases):
                phase_count, position = phase_taps(phase + at["iw"])
                is_flat = rows > 0 and phase_count == 1
                flat_rows += units * is_flat
                channels, window_rows, taps = _flat(n["o"], rows) if is_flat else (n["o"], rows, phase_count)
                blocks = column_blocks(
                    -(-(n["iw"] - phase) // stride), position, columns_axis.extent, taps, 1, 0 if is_flat else -back,
                    -1 if is_unit and not is_flat else 0, width == 4, c.first,
                )  # fmt: skip
                add_scaled(total, units, row_trips(blocks, channels, window_rows, taps))
                blocks_done += units * sum(blocks[0])
        units = sum(counts)
        return (
            1.0, is_shared(c.cores), units, units * phases - flat_rows, flat_rows, *total,
            blocks_done * (not c.first), blocks_done * (has_bias and c.last),
        )  # fmt: skip

    return trips


_WEIGHT_NAMES = (
    "call", "shared", *(f"units of {outs}" for outs in (1, 2, 3, 4)), "units*n", "units*n*rows",
    "rows with fast columns", "fast columns, whole", "fast columns, an end missing", "fast columns, both ends missing",
    "rows with single columns", "single columns", "single taps",
    "rows with full columns", "rows checked at the left", "rows checked at the right", "rows checked throughout",
    "full columns",
    "columns checked at the left", "columns checked at the right", "checked lanes inside", "checked lanes beyond",
    "rows clipped at the top", "rows clipped at the bottom", "lanes clipped at the left", "lanes clipped at the right",
    "units with rows", "units with columns", "units, continued",
)  # fmt: skip


# About what a unit, a row, each part of a row and what is clipped take, to find the busiest core.
_THREE_LOADS = (150.0, 25.0, 0.0, 81.0, 78.0, 73.0, 0.0, 14.0, 5.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0)
_LANE_LOADS = (310.0, 25.0, 10.0, 5.0, 5.0, 5.0, 35.0, 23.0, 23.0, 8.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0, 15.0)
_SINGLE_LANE_LOADS = (250.0, 20.0, 10.0, 5.0, 5.0, 5.0, 17.0, 18.0, 18.0, 5.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0, 15.0)


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
        load = sum(a * b for a, b in zip(loads, (stop - start, *sums[1:]), strict=True))
        if stop > start and load > most:
            most, best = load, (stop - start, *sums)
    return best


def _weight(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = Axis(nest, "x", 3, "oh", "kh", "h"), Axis(nest, "x", 4, "ow", "kw", "w")
    stride, dilation, kw = columns_axis.stride, columns_axis.dilation, columns_axis.taps
    is_three = width == 4 and kw == 3 and dilation == 1 and stride <= 2
    loads = _THREE_LOADS if is_three else _LANE_LOADS if width == 4 else _SINGLE_LANE_LOADS

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

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        position, blocks = columns_axis.base(at["ow"]), _blocks(n["o"], width)
        groups: tuple[tuple[int, ...], ...]
        if is_three:
            groups = ((*_three_columns(n["ow"], position, columns_axis.extent, stride), 0, 0, 0),) * n["i"]
        else:
            groups = _lane_columns(n["ow"], position, columns_axis.extent, stride, dilation, kw, n["i"] * kw)
        units, short, *sums = _busiest_units(tap_rows(at["oh"], n["oh"]), groups, blocks, n["g"], c.cores, loads)
        last = (n["o"] - 1) % width + 1
        by_outs = [short * (outs == last) + (units - short) * (outs == width) for outs in (1, 2, 3, 4)]
        rows, *parts = [n["n"] * value for value in sums[:-6]]
        before, after = ((), (0.0,) * 9) if is_three else ((0.0,) * 7, ())
        return (
            1.0, is_shared(c.cores), *by_outs, units * n["n"], rows, *before, *parts, *after, *sums[-6:],
            units * (not c.first),
        )  # fmt: skip

    return trips


def _stride_pattern(nest: Nest) -> str:
    stride, dilation, taps = nest.constants["stride_w"], nest.constants["dilation_w"], nest.axis("kw").extent
    kind = f"stride={int(stride)}" if stride <= 2 else "stride=any"
    shape = "taps=1" if taps == 1 else "taps=3" if taps == 3 and dilation == 1 else "taps=any"
    return f"{shape} {kind}"


CONV = Family(_MAP_NAMES, lambda nest: _map(nest, 4), (), _stride_pattern)
CONV_DX = Family(_MAP_NAMES, lambda nest: _image(nest, 4), (), _stride_pattern)
CONV_DW = Family(_WEIGHT_NAMES, lambda nest: _weight(nest, 4), (), _stride_pattern)


def _may_be_plane(nest: Nest, channels: str | None) -> bool:
    """Whether the depthwise kernels may keep 3x3 windows in registers."""
    k = nest.constants
    is_three = nest.axis("kh").extent == nest.axis("kw").extent == 3
    is_plain = k["dilation_h"] == k["dilation_w"] == 1 and k["stride_h"] == k["stride_w"] <= 2
    return is_three and is_plain and (channels is None or nest.axis(channels).extent == 1)


def _is_plane(nest: Nest, operand: str, is_sum: bool) -> Callable[[Call], bool]:
    """Whether a tile's windows are usual ones (`tg_plane_is_usual`), none of them cut, nor their sum."""
    is_gradient = operand == "dy"
    is_gathered = is_gradient and nest.constants["stride_h"] == 2
    names = (("ih", "iw") if is_gradient else ("oh", "ow"), ("kh", "kw"), "hw")
    axes = [Axis(nest, operand, 3 + d, *words) for d, words in enumerate(zip(*names, strict=True))]
    back = 2 if is_gradient else 0

    def check(c: Call) -> bool:
        if not c.n["kh"] == c.n["kw"] == 3 or (is_sum and not (c.first and c.last)):
            return False
        return is_gathered or all(
            depthwise.fits(a.base(c.at[a.name]) - back, a.stride, c.n[a.name], a.extent) for a in axes
        )

    return check


def _single(
    general: Callable[[Nest], Counter], names: tuple[str, ...], operand: str, channels: str | None,
    planes: Callable[[Nest], tuple[tuple[str, ...], Callable[[Nest], Counter]]],
) -> Callable[[Nest], Family]:  # fmt: skip
    family = Family(names, general, (), _stride_pattern)

    def choose(nest: Nest) -> Family:
        if not _may_be_plane(nest, channels):
            return family
        plane_names, plane = planes(nest)

        def bind(nest: Nest) -> Counter:
            is_plane, of_plane, of_any = _is_plane(nest, operand, channels is not None), plane(nest), general(nest)
            no_plane, no_other = (0.0,) * len(plane_names), (0.0,) * len(names)
            return lambda c: (*of_plane(c), *no_other) if is_plane(c) else (*no_plane, *of_any(c))

        every = (*(f"plane: {name}" for name in plane_names), *names)
        return Family(every, bind, (), lambda nest: f"plane {_stride_pattern(nest)}")

    return choose


conv_single = _single(
    lambda nest: _map(nest, 1), _MAP_NAMES, "x", "i", lambda _: (depthwise.MAP_NAMES, depthwise.map_plane)
)
conv_single_dx = _single(
    lambda nest: _image(nest, 1), _MAP_NAMES, "dy", "o",
    lambda nest: (depthwise.GATHER_NAMES, depthwise.gather_plane)
    if nest.constants["stride_w"] == 2
    else (depthwise.MAP_NAMES, depthwise.image_plane),
)  # fmt: skip
conv_single_dw = _single(
    lambda nest: _weight(nest, 1), _WEIGHT_NAMES, "x", None,
    lambda _: (depthwise.WEIGHT_NAMES, depthwise.weight_plane),
)  # fmt: skip
