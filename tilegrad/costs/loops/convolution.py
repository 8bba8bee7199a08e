"""Trips of convolutions (ops/conv.c, runtime/tg_convolution.h): forward, input gradient and weight gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from operator import mul

from tilegrad.costs.loops import depthwise
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, has_operand, is_shared, pieces, share
from tilegrad.costs.loops.convolution_weight import WEIGHT_NAMES, weight
from tilegrad.costs.loops.windows import ROW_NAMES, Clipped, axes_of, busiest, column_blocks, numbered, row_trips
from tilegrad.ir.nest import Nest

# What a call has beside its units, then what each unit has.
_CALL_NAMES = ("call", "shared", "ends of maps", "ends of blocks", "ends of groups")
_MAP_NAMES = (
    *_CALL_NAMES, "units", "units with rows", "rows", "blocks of unit taps", "rows of no taps", "flat rows",
    "steps to a row's first tap", "steps to a column's first tap",
    "units clipped at the top", "units clipped at the bottom", *ROW_NAMES, "blocks, continued", "fives, continued",
    "blocks, biased", "fives, biased",
)  # fmt: skip


def _map(nest: Nest, operand: str, width: int) -> Counter:
    """Of a map, from the image `x`, or of an image, from the gradient `dy`: a unit is a row of outputs of a block of
    channels."""
    rows_axis, columns_axis = axes_of(nest, operand)
    has_bias = has_operand(nest, "b")
    outs, ins = ("i", "o") if columns_axis.is_gathered else ("o", "i")
    is_unit = columns_axis.dilation == 1 and columns_axis.stride <= (1 if columns_axis.is_gathered else 2)
    taps_at = lru_cache(maxsize=4096)(columns_axis.taps_at)

    @lru_cache(maxsize=4096)
    def units_of(at: int, size: int) -> tuple[tuple[int, ...], tuple[tuple[int, Clipped], ...]]:
        return numbered([rows_axis.rows_at(i) for i in range(at, at + size)])

    def of_phase(c: Call, rows: int, phase: int) -> Trips:
        """What a unit has of each phase: from "rows" on to "steps to a column's first tap", fives, and ROW_NAMES."""
        channels, is_four = c.n[ins], width == 4
        steps, taps, position = taps_at(c.at[columns_axis.name] + phase)
        step, columns = columns_axis.step, share(c.n[columns_axis.name] - phase, columns_axis.phases)
        is_flat = rows > 0 and taps == 1
        if is_flat:  # as `tg_conv_flat` turns them
            step, channels, rows, taps = (0, 1, 1, channels) if rows == 1 else (0, channels, 1, rows)
        is_by_unit = is_unit and not is_flat
        blocks = column_blocks(
            columns, position, columns_axis.extent, taps, columns_axis.lane, step, is_by_unit and is_four and taps == 3,
            is_four, c.first,
        )  # fmt: skip
        number, *others = row_trips(blocks, channels, rows, taps)
        return 1, number * is_by_unit, taps == 0, is_flat, steps, blocks["fives"], number, *others

    def of_unit(c: Call, steps_down: int, rows: Clipped) -> Trips:
        phases = range(min(columns_axis.phases, c.n[columns_axis.name]))
        every = zip(*[of_phase(c, rows.inside, phase) for phase in phases], strict=True)
        turns, unit_blocks, without_taps, flat, steps, fives, blocks, *others = map(sum, every)
        is_biased = has_bias and c.last
        return (
            1.0, rows.inside > 0, turns, unit_blocks, without_taps, flat, steps_down, steps,
            rows.is_before, rows.is_beyond, blocks, *others,
            blocks * (not c.first), fives * (not c.first), blocks * is_biased, fives * is_biased,
        )  # fmt: skip

    def trips(c: Call) -> Trips:
        """Units are (outer, group, block, row), row fastest."""
        kinds, different = units_of(c.at[rows_axis.name], c.n[rows_axis.name])
        groups, blocks = c.n["g"], share(c.n[outs], width)

        def judged(start: int, stop: int) -> Trips:
            """The maps that a core has a part of tell the busiest; which ends it comes to follows from that."""
            return 0.0, 0.0, pieces(start, stop, len(kinds)), 0.0, 0.0

        of_kinds = [of_unit(c, *unit) for unit in different]
        start, stop, total = busiest(c, kinds, of_kinds, c.n["n"] * groups * blocks, judged)
        lengths = accumulate((len(kinds), blocks, groups), mul)
        return 1.0, is_shared(c.cores), *(stop // length - start // length for length in lengths), *total

    return trips


def _stride_pattern(nest: Nest) -> str:
    stride, dilation, taps = nest.constants["stride_w"], nest.constants["dilation_w"], nest.axis("kw").extent
    kind = f"stride={int(stride)}" if stride <= 2 else "stride=any"
    shape = "taps=1" if taps == 1 else "taps=3" if taps == 3 and dilation == 1 else "taps=any"
    return f"{shape} {kind}"


def _families(width: int) -> tuple[Family, Family, Family]:
    """Forward, input gradient and weight gradient, so many channels at a time."""
    return (
        Family(_MAP_NAMES, lambda nest: _map(nest, "x", width), (), _stride_pattern),
        Family(_MAP_NAMES, lambda nest: _map(nest, "dy", width), (), _stride_pattern),
        Family(WEIGHT_NAMES, lambda nest: weight(nest, width), (), _stride_pattern),
    )


CONV, CONV_DX, CONV_DW = _families(4)
_SINGLE, _SINGLE_DX, _SINGLE_DW = _families(1)


def _may_be_plane(nest: Nest, channels: str | None) -> bool:
    """Whether the depthwise kernels may keep 3x3 windows in registers."""
    k = nest.constants
    is_three = nest.axis("kh").extent == nest.axis("kw").extent == 3
    is_plain = k["dilation_h"] == k["dilation_w"] == 1 and k["stride_h"] == k["stride_w"] <= 2
    return is_three and is_plain and (channels is None or nest.axis(channels).extent == 1)


def _is_plane(nest: Nest, operand: str, is_sum: bool) -> Callable[[Call], bool]:
    """Whether a tile's windows are usual ones (`tg_plane_is_usual`), none of them cut, nor their sum."""
    axes = axes_of(nest, operand)
    is_any_usual = axes[0].is_gathered and axes[0].stride == 2

    def check(c: Call) -> bool:
        if not c.n["kh"] == c.n["kw"] == 3 or (is_sum and not (c.first and c.last)):
            return False
        return is_any_usual or all(depthwise.fits(a.low(c.at[a.name]), a.stride, c.n[a.name], a.extent) for a in axes)

    return check


def _single(general: Family, operand: str, channels: str | None, *planes: Family) -> Callable[[Nest], Family]:
    """`planes` are the families of windows in registers, by stride; the last one is that of all others, too."""

    def choose(nest: Nest) -> Family:
        if not _may_be_plane(nest, channels):
            return general
        plane = planes[min(int(nest.constants["stride_w"]), len(planes)) - 1]

        def bind(nest: Nest) -> Counter:
            is_plane = _is_plane(nest, operand, channels is not None)
            of_plane, of_any = plane.bind(nest), general.bind(nest)
            no_plane, no_other = (0.0,) * len(plane.names), (0.0,) * len(general.names)

            def trips(c: Call) -> Trips:
                if is_plane(c):
                    return *of_plane(c), *no_other
                return *no_plane, *of_any(replace(c, loads=c.loads[len(plane.names) :]))

            return trips

        names = (*(f"plane: {name}" for name in plane.names), *general.names)
        return Family(names, bind, (), lambda nest: f"plane {_stride_pattern(nest)}")

    return choose


conv_single = _single(_SINGLE, "x", "i", depthwise.MAP)
conv_single_dx = _single(_SINGLE_DX, "dy", "o", depthwise.IMAGE, depthwise.GATHER)
conv_single_dw = _single(_SINGLE_DW, "x", None, depthwise.WEIGHT)
