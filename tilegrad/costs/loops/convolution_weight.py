"""Trips of the weight gradient of convolutions (ops/conv.c)."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.costs.loops.base import Call, Counter, Trips, is_shared, share
from tilegrad.costs.loops.windows import Clipped, axes_of, busiest, clipped, numbered, span_inside
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


# What a row has for a group of columns: from "rows with fast columns" on to "checked lanes beyond", then lanes that are
# clipped at the left and at the right, and whether there is a column at all.
Group = tuple[int, ...]
_NO_THREE, _NO_LANES = (0,) * 7, (0,) * 12


@lru_cache(maxsize=16384)
def _three_columns(columns: int, position: int, extent: int, stride: int) -> Group:
    """One row of `tg_conv_dw_block3`: whether it has blocks of four, those by missing ends; whether it has single
    columns, those, and their taps."""
    fast, at = 0, position
    by_ends = [0, 0, 0]
    while position >= -1 and columns - 4 * fast >= 4 and at + 3 * stride + 2 <= extent:
        by_ends[(at < 0) + (at + 3 * stride + 2 >= extent)] += 1
        fast += 1
        at += 4 * stride
    singles = columns - 4 * fast
    taps = sum(clipped(at + j, stride, singles, extent).inside for j in range(3))
    return int(fast > 0), *by_ends, int(singles > 0), singles, taps, *_NO_LANES


@lru_cache(maxsize=16384)
def _lane_columns(
    columns: int, position: int, extent: int, stride: int, dilation: int, taps: int, lanes_total: int
) -> tuple[Group, ...]:
    """A row of `tg_conv_dw_block` for each group of lanes: whether it has full columns, checked ones at the left, at
    the right, and nothing between; how many; and lanes of checked ones, inside and beyond."""
    found = []
    for group in range(0, lanes_total, 4):
        lanes = [min(group + j, lanes_total - 1) % taps for j in range(4)]
        ranges = [span_inside(kw * dilation + position, stride, columns, extent) for kw in lanes]
        begin, end = min(r[0] for r in ranges), max(r[1] for r in ranges)
        start, stop = max(r[0] for r in ranges), min(r[1] for r in ranges)
        full, left = max(0, stop - start), max(0, min(start, end) - begin)
        right = max(0, end - begin) - full - left
        inside = sum(max(0, r[1] - r[0]) for r in ranges) - 4 * full
        beyond = sum(max(0, end - max(r)) for r in ranges)
        kinds = int(full > 0), int(left > 0), int(right > 0), int(left > 0 and right > 0 and not full)
        clipped_lanes = sum(r[0] > 0 for r in ranges), sum(r[1] < columns for r in ranges)
        found.append((*_NO_THREE, *kinds, full, left, right, inside, beyond, *clipped_lanes, int(end > begin)))
    return tuple(found)


def weight(nest: Nest, width: int) -> Counter:
    rows, columns = axes_of(nest, "x")
    is_three = width == 4 and columns.taps == 3 and columns.dilation == 1 and columns.stride <= 2

    @lru_cache(maxsize=4096)
    def tap_rows(at: int, size: int) -> list[Clipped]:
        """Rows of the map whose window row kh is inside the image, for each kh."""
        bases = [rows.base(at) + kh * rows.dilation for kh in range(rows.taps)]
        return [clipped(base, rows.stride, size, rows.extent) for base in bases]

    def groups_of(c: Call) -> tuple[Group, ...]:
        """Those that differ by where they are: threes do not, and there is one for each channel."""
        place = c.n["ow"], columns.base(c.at["ow"]), columns.extent, columns.stride
        if is_three:
            return (_three_columns(*place),)
        return _lane_columns(*place, columns.dilation, columns.taps, c.n["i"] * columns.taps)

    def trips(c: Call) -> Trips:
        """Units are (repeat, block of channels, group of columns, kh), kh fastest."""
        n, images = c.n, c.n["n"]
        groups, every_kh = groups_of(c), tap_rows(c.at["oh"], c.n["oh"])
        kinds, different = numbered([(group, kh) for group in groups for kh in every_kh])
        block = len(kinds) * (n["i"] if is_three else 1)
        blocks, last = share(n["o"], width), (n["o"] - 1) % width + 1

        def of_kind(group: Group, kh: Clipped) -> Trips:
            *parts, left, right, has_columns = group
            rows, has_rows = images * kh.inside, kh.inside > 0
            return (
                images, rows, *[rows * part for part in parts], kh.is_before, kh.is_beyond, left, right,
                has_rows, has_rows and has_columns, images * has_rows, not c.first,
            )  # fmt: skip

        def in_last_blocks(units: int) -> int:
            whole, rest = divmod(units, block)
            return whole // blocks * block + (rest if whole % blocks == blocks - 1 else 0)

        def head(start: int, stop: int) -> Trips:
            short = in_last_blocks(stop) - in_last_blocks(start)
            by_outs = [short * (outs == last) + (stop - start - short) * (outs == width) for outs in (1, 2, 3, 4)]
            return 1.0, is_shared(c.cores), *by_outs

        repeats = n["g"] * blocks * block // len(kinds)
        start, stop, total = busiest(c, kinds, [of_kind(*kind) for kind in different], repeats, head)
        return *head(start, stop), *total

    return trips
