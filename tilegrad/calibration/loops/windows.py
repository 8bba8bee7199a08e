"""Rows, columns and taps of sliding windows, as the convolution and pooling kernels meet them."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import gcd
from operator import add, mul, sub

from tilegrad.calibration.loops.base import valid_taps
from tilegrad.ir.nest import Nest


@lru_cache(maxsize=4096)
def _prefixes(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Sums of the first 0, 1, 2, … weights."""
    return (0, *accumulate(weights))


@lru_cache(maxsize=16384)
def heaviest_share(
    weights: tuple[int, ...], repeats: int, cores: int, unit_load: float = 0.2
) -> tuple[int, int, int, int]:
    """Units are `repeats` times a row of `len(weights)` units, shared by the cores: where the share of the busiest core
    starts and stops, how many units it has, and their weight in all. A unit takes as long as `unit_load` of weight."""
    length = len(weights)
    total = repeats * length
    if cores == 1:
        return 0, total, total, repeats * sum(weights)
    prefix = _prefixes(weights)
    whole = prefix[-1]
    best, most = (0, 0, 0, 0), -1.0
    quotient, rest = divmod(total, cores)
    stop = 0
    for core in range(cores):
        start, stop = stop, stop + quotient + (core < rest)
        weight = (stop // length - start // length) * whole + prefix[stop % length] - prefix[start % length]
        load = unit_load * (stop - start) + weight
        if load > most:
            most, best = load, (start, stop, stop - start, weight)
    return best


@lru_cache(maxsize=16384)
def busiest_sums(
    units: tuple[tuple[int, ...], ...], repeats: int, cores: int, loads: tuple[float, ...]
) -> tuple[int, ...]:
    """`repeats` times the same units, each of which has some numbers, are shared by the cores: the sums of the core
    whose sums, times `loads`, are most."""
    prefix = [(0,) * len(loads)]
    for numbers in units:
        prefix.append(tuple(map(add, prefix[-1], numbers)))
    length = len(units)

    def before(unit: int) -> list[int]:
        rounds, rest = divmod(unit, length)
        return [rounds * total + part for total, part in zip(prefix[-1], prefix[rest], strict=True)]

    best, most = prefix[0], -1.0
    quotient, rest = divmod(repeats * length, cores)
    stop = 0
    for core in range(cores):
        start, stop = stop, stop + quotient + (core < rest)
        sums = tuple(map(sub, before(stop), before(start)))
        load = sum(map(mul, sums, loads))
        if load > most:
            most, best = load, sums
    return best


@lru_cache(maxsize=16384)
def busiest_window(weights: tuple[int, ...], repeats: int, cores: int, unit_load: float) -> tuple[int, ...]:
    """How many units of each weight the busiest core has, indexed by weight."""
    counts = [0] * (max(weights) + 1)
    start, _, units, _ = heaviest_share(weights, repeats, cores, unit_load)
    length = len(weights)
    if len(counts) == min(weights) + 1:
        counts[-1] = units
        return tuple(counts)
    rounds, rest = divmod(units, length)
    if rounds:
        for weight in weights:
            counts[weight] += rounds
    for unit in range(start, start + rest):
        counts[weights[unit % length]] += 1
    return tuple(counts)


def plain_rows(base: int, stride: int, dilation: int, taps: int, extent: int, count: int) -> tuple[int, ...]:
    """Taps inside the image, for each of `count` windows."""
    return tuple(valid_taps(base + i * stride, dilation, taps, extent) for i in range(count))


def gathered_rows(base: int, stride: int, dilation: int, taps: int, extent: int, count: int) -> tuple[int, ...]:
    """Taps of a strided gradient that exist and are inside the map, for each of `count` image positions."""
    result = []
    for i in range(count):
        positions = [base + i - k * dilation for k in range(taps)]
        result.append(sum(1 for p in positions if p % stride == 0 and 0 <= p // stride < extent))
    return tuple(result)


class Axis:
    """One spatial axis of a window nest: `name` is the axis whose positions are walked, `k` that of the taps.

    Positions are global, those of the whole tensor: a box never changes which taps exist.
    """

    def __init__(self, nest: Nest, operand: str, dimension: int, name: str, k: str, suffix: str) -> None:
        found = next(o for o in nest.operands if o.name == operand)
        assert found.index is not None
        index = found.index[dimension]
        self.name, self.k = name, k
        self.stride = int(nest.constants[f"stride_{suffix}"])
        self.dilation = int(nest.constants[f"dilation_{suffix}"])
        self.offset, self.extent = index.offset, found.shape[dimension]
        self.taps = nest.axis(k).extent
        self._rows = lru_cache(maxsize=4096)(self._count)
        self.is_gathered = name.startswith("i")

    def base(self, at: int) -> int:
        """Where the first tap of the window at `at` is; of a gather, its numerator."""
        return (at if self.is_gathered else at * self.stride) + self.offset

    def _count(self, at: int, size: int) -> tuple[int, ...]:
        count = gathered_rows if self.is_gathered else plain_rows
        return count(self.base(at), self.stride, self.dilation, self.taps, self.extent, size)

    def rows(self, at: int, size: int) -> tuple[int, ...]:
        return self._rows(at, size)


# What a row of outputs costs, by kind of column block: see _ROW_NAMES.
ROW_NAMES = (
    "threes", "threes*c", "threes*c*r, whole", "threes*c*r, an end missing", "threes*c*r, both ends missing",
    "inside blocks", "inside blocks*c", "inside blocks*c*r", "inside blocks*c*r*taps",
    "checked blocks", "checked blocks*c", "checked blocks*c*r", "checked taps, safe", "checked taps, lane by lane",
    "checked lanes", "checked lanes inside",
    "fives", "fives*c", "fives*c*r", "fives' taps, safe", "fives' taps, lane by lane", "fives' lanes inside",
    "empty blocks", "empty blocks*c", "empty blocks*c*r",
)  # fmt: skip


_NO_TAPS = (0.0,) * (len(ROW_NAMES) - 3)


@lru_cache(maxsize=65536)
def column_blocks(
    columns: int, position: int, extent: int, taps: int, lane: int, position_tap: int, tap: int, is_four: bool,
    first: bool,
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """`tg_conv_columns` on one row: (blocks by kind: three, inside, checked, of five), and per channel and window row:
    (an end missing, both missing, safe taps, taps lane by lane, lanes of those, lanes inside; and of a five: safe taps,
    taps lane by lane, lanes inside)."""
    threes = inside = checked = missing = both = safe_taps = slow_taps = slow_lanes = lanes_inside = 0
    five = (0, 0, 0)
    is_three = is_four and tap != 0 and taps == 3 and position_tap == tap
    column = 0
    while column < columns:
        if is_three and column + 4 > columns and first and columns >= 4:
            column = columns - 4
        lanes = min(4, columns - column)
        at = position + column * lane
        left = at + min(2 * tap, 0)
        last = at + (taps - 1) * position_tap
        if is_three and lanes == 4 and left >= -1 and left + 3 * lane + 2 <= extent:
            threes += 1
            ends = (left < 0) + (left + 3 * lane + 2 >= extent)
            missing += ends == 1
            both += ends == 2
        elif is_four and not is_three and column + 5 == columns:
            places = [at + k * position_tap for k in range(taps)]
            safe_places = [0 <= place < extent - 4 * lane for place in places]
            ragged = [place for place, is_safe in zip(places, safe_places, strict=True) if not is_safe]
            reached = sum(0 <= place + j * lane < extent for place in ragged for j in range(5))
            five = (sum(safe_places), len(ragged), reached)
            blocks = (threes, inside, checked, 1)
            return blocks, (missing, both, safe_taps, slow_taps, slow_lanes, lanes_inside, *five)
        elif lanes < 4 or min(at, last) < 0 or max(at, last) + 3 * lane >= extent:
            checked += 1
            safe = max(extent - 3 * lane, 0) if lanes == 4 else 0
            for k in range(taps if position_tap else min(taps, 1)):
                times = 1 if position_tap else taps
                place = at + k * position_tap
                if 0 <= place < safe:
                    safe_taps += times
                else:
                    slow_taps += times
                    slow_lanes += times * lanes
                    lanes_inside += times * sum(0 <= place + j * lane < extent for j in range(lanes))
        else:
            inside += 1
        column += 4
    return (threes, inside, checked, 0), (missing, both, safe_taps, slow_taps, slow_lanes, lanes_inside, *five)


def row_trips(
    blocks: tuple[tuple[int, ...], tuple[int, ...]], channels: int, rows: int, taps: int
) -> tuple[float, ...]:
    """ROW_NAMES of one row of outputs with so many window rows inside."""
    (threes, inside, checked, fives), (missing, both, safe_taps, slow_taps, slow_lanes, lanes_inside, *five) = blocks
    times = channels * rows
    if times * taps == 0:
        empty = threes + inside + checked + fives
        return (*_NO_TAPS, empty, empty * channels, empty * times)
    return (
        threes, threes * channels, (threes - missing - both) * times, missing * times, both * times,
        inside, inside * channels, inside * times, inside * times * taps,
        checked, checked * channels, checked * times, safe_taps * times, slow_taps * times,
        slow_lanes * times, lanes_inside * times,
        fives, fives * channels, fives * times, *[value * times for value in five], 0, 0, 0,
    )  # fmt: skip


def add_scaled(total: list[float], times: float, trips: tuple[float, ...]) -> None:
    for i, value in enumerate(trips):
        total[i] += times * value


def step_between_taps(stride: int, dilation: int) -> int:
    return dilation // gcd(stride, dilation)
