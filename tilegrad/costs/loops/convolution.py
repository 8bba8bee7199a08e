"""Trips of convolutions (ops/conv.c, runtime/tg_convolution.h): forward and input gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import gcd
from operator import mul

from tilegrad.costs.loops import depthwise
from tilegrad.costs.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    is_absent,
    is_shared,
    load_of,
    valid_taps,
)
from tilegrad.costs.loops.convolution_weight import WEIGHT_NAMES, weight
from tilegrad.costs.loops.windows import (
    ROW_NAMES,
    Axis,
    add_scaled,
    axes_of,
    block_number,
    blocks_of,
    busiest_kinds,
    column_blocks,
    row_trips,
    step_between_taps,
)
from tilegrad.ir.nest import Nest

# What a call has beside its units, then what each unit has.
_CALL_NAMES = ("call", "shared", "ends of maps", "ends of blocks", "ends of groups")
_MAP_NAMES = (
    *_CALL_NAMES, "units", "units with rows", "rows", "blocks of unit taps", "rows of no taps", "flat rows",
    "steps to a row's first tap", "steps to a column's first tap",
    "units clipped at the top", "units clipped at the bottom", *ROW_NAMES, "blocks, continued", "fives, continued",
    "blocks, biased", "fives, biased",
)  # fmt: skip


def _flat(channels: int, rows: int) -> tuple[int, int, int]:
    """Channels, rows and taps as `tg_conv_flat` turns them."""
    return (1, 1, channels) if rows == 1 else (channels, 1, rows)


@dataclass(frozen=True)
class _Unit:
    """A row of outputs: its window rows inside, steps to the first one, and whether some are clipped at either end."""

    rows: int
    steps: int
    above: bool
    below: bool


Units = tuple[tuple[int, ...], tuple[_Unit, ...]]


def _numbered(units: Sequence[_Unit]) -> Units:
    """Which of the different ones each is, and those."""
    different = tuple(dict.fromkeys(units))
    return tuple(map(different.index, units)), different


def _all_units(c: Call, units: Units, of_unit: Callable[[_Unit], Trips], groups: int, blocks: int) -> Trips:
    """_MAP_NAMES of the busiest core: units are (outer, group, block, row), row fastest."""
    kinds, different = units
    trips = [of_unit(unit) for unit in different]
    at, of_turn = len(_CALL_NAMES), c.loads[2] if c.loads else 0.0
    loads = tuple(load_of(found, c.loads[at:]) for found in trips)
    start, stop, counts = busiest_kinds(kinds, c.n["n"] * groups * blocks, c.cores, loads, of_turn)
    total = [0.0] * (len(_MAP_NAMES) - at)
    for number, found in zip(counts, trips, strict=True):
        if number:
            add_scaled(total, number, found)
    lengths = accumulate((len(kinds), blocks, groups), mul)
    return 1.0, is_shared(c.cores), *(stop // length - start // length for length in lengths), *total


def _unit_ends(c: Call, blocks: int, fives: int, has_bias: bool) -> Trips:
    is_biased = has_bias and c.last
    return blocks * (not c.first), fives * (not c.first), blocks * is_biased, fives * is_biased


def _map(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = axes_of(nest, "x")
    has_bias = not is_absent(nest, "b")
    stride, dilation = columns_axis.stride, columns_axis.dilation
    tap = 1 if dilation == 1 and stride in (1, 2) else 0

    @lru_cache(maxsize=4096)
    def units_of(at: int, size: int) -> Units:
        found = []
        step, taps, extent = rows_axis.dilation, rows_axis.taps, rows_axis.extent
        for top in map(rows_axis.base, range(at, at + size)):
            rows = valid_taps(top, step, taps, extent)
            found.append(_Unit(rows, 0, top < 0, top + (taps - 1) * step >= extent))
        return _numbered(found)

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        position = columns_axis.base(at["ow"])

        def of_unit(unit: _Unit) -> Trips:
            is_flat = unit.rows > 0 and columns_axis.taps == 1
            channels, window_rows, taps = (
                _flat(n["i"], unit.rows) if is_flat else (n["i"], unit.rows, columns_axis.taps)
            )
            blocks = column_blocks(
                n["ow"], position, columns_axis.extent, taps, stride, 0 if is_flat else dilation,
                0 if is_flat else tap, width == 4, c.first,
            )  # fmt: skip
            return (
                1.0, unit.rows > 0, 1, block_number(blocks) * (tap != 0 and not is_flat), 0, is_flat, 0, 0,
                unit.above, unit.below,
                *row_trips(blocks, channels, window_rows, taps),
                *_unit_ends(c, block_number(blocks), blocks[0][-1], has_bias),
            )  # fmt: skip

        return _all_units(c, units_of(at["oh"], n["oh"]), of_unit, n["g"], blocks_of(n["o"], width))

    return trips


def _gather(numerator: int, axis: Axis) -> tuple[int, int, int]:
    """`tg_conv_gather`: steps to the first tap that exists, how many do, and where in the map the first one is."""
    stride, dilation = axis.stride, axis.dilation
    k_step = stride // gcd(stride, dilation)
    k = next((k for k in range(k_step) if (numerator - k * dilation) % stride == 0), k_step)
    taps = max(0, -(-(axis.taps - k) // k_step)) if k < k_step else 0
    return k, taps, int((numerator - k * dilation) / stride)


def _image(nest: Nest, width: int) -> Counter:
    rows_axis, columns_axis = axes_of(nest, "dy")
    has_bias = not is_absent(nest, "b")
    stride, dilation = columns_axis.stride, columns_axis.dilation
    back = step_between_taps(stride, dilation)
    is_unit = stride == dilation == 1

    @lru_cache(maxsize=4096)
    def units_of(at: int, size: int) -> Units:
        back_down, extent = step_between_taps(rows_axis.stride, rows_axis.dilation), rows_axis.extent
        found = []
        for i in range(size):
            steps, taps, high = _gather(rows_axis.base(at + i), rows_axis)
            first = extent - 1 - high  # counted from the last row
            rows = valid_taps(first, back_down, taps, extent) if taps else 0
            found.append(_Unit(rows, steps, first < 0, first + (taps - 1) * back_down >= extent))
        return _numbered(found)

    @lru_cache(maxsize=4096)
    def phase_taps(phase: int) -> tuple[int, int, int]:
        return _gather(columns_axis.base(phase), columns_axis)

    def trips(c: Call) -> Trips:
        n, at = c.n, c.at
        phases = min(stride, n["iw"])

        def of_unit(unit: _Unit) -> Trips:
            total = [0.0] * len(ROW_NAMES)
            blocks_done = fives = flat_rows = without_taps = unit_blocks = steps = 0
            for phase in range(phases):
                phase_steps, phase_count, position = phase_taps(phase + at["iw"])
                is_flat = unit.rows > 0 and phase_count == 1
                channels, window_rows, taps = _flat(n["o"], unit.rows) if is_flat else (n["o"], unit.rows, phase_count)
                blocks = column_blocks(
                    -(-(n["iw"] - phase) // stride), position, columns_axis.extent, taps, 1, 0 if is_flat else -back,
                    -1 if is_unit and not is_flat else 0, width == 4, c.first,
                )  # fmt: skip
                add_scaled(total, 1, row_trips(blocks, channels, window_rows, taps))
                blocks_done, fives = blocks_done + block_number(blocks), fives + blocks[0][-1]
                flat_rows, without_taps = flat_rows + is_flat, without_taps + (phase_count == 0)
                steps += phase_steps
                unit_blocks += block_number(blocks) * (is_unit and not is_flat)
            return (
                1.0, unit.rows > 0, phases, unit_blocks, without_taps, flat_rows,
                unit.steps, steps, unit.above, unit.below, *total,
                *_unit_ends(c, blocks_done, fives, has_bias),
            )  # fmt: skip

        return _all_units(c, units_of(at["ih"], n["ih"]), of_unit, n["g"], blocks_of(n["i"], width))

    return trips


def _stride_pattern(nest: Nest) -> str:
    stride, dilation, taps = nest.constants["stride_w"], nest.constants["dilation_w"], nest.axis("kw").extent
    kind = f"stride={int(stride)}" if stride <= 2 else "stride=any"
    shape = "taps=1" if taps == 1 else "taps=3" if taps == 3 and dilation == 1 else "taps=any"
    return f"{shape} {kind}"


CONV = Family(_MAP_NAMES, lambda nest: _map(nest, 4), (), _stride_pattern)
CONV_DX = Family(_MAP_NAMES, lambda nest: _image(nest, 4), (), _stride_pattern)
CONV_DW = Family(WEIGHT_NAMES, lambda nest: weight(nest, 4), (), _stride_pattern)


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
    axes, back = axes_of(nest, operand), 2 if is_gradient else 0

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

            def trips(c: Call) -> Trips:
                if is_plane(c):
                    return *of_plane(c), *no_other
                return *no_plane, *of_any(replace(c, loads=c.loads[len(plane_names) :]))

            return trips

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
    lambda nest: weight(nest, 1), WEIGHT_NAMES, "x", None,
    lambda _: (depthwise.WEIGHT_NAMES, depthwise.weight_plane),
)  # fmt: skip
