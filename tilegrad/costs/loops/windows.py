"""Rows, columns and taps of sliding windows, as the convolution and pooling kernels meet them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

from tilegrad.costs.loops.base import bounds, load_of
from tilegrad.ir.nest import Nest


@lru_cache(maxsize=16384)
def busiest_kinds(
    kinds: tuple[int, ...], repeats: int, cores: int, loads: tuple[float, ...], turn_load: float
) -> tuple[int, int, tuple[int, ...]]:
    """`repeats` times the same units, each of a kind, are shared by the cores: where the units of the busiest core
    start and stop, and how many of each kind it has. `loads` are those of the kinds, `turn_load` that of a repeat."""
    length = len(kinds)
    prefix = [(0,) * len(loads)]
    for kind in kinds:
        prefix.append(tuple(value + (i == kind) for i, value in enumerate(prefix[-1])))
    best: tuple[int, int, tuple[int, ...]] = (0, 0, prefix[0])
    most = -1.0
    for core in range(cores):
        start, stop = bounds(repeats * length, core, cores)
        if start == stop:
            break
        whole = stop // length - start // length
        ends = zip(prefix[-1], prefix[stop % length], prefix[start % length], strict=True)
        counts = tuple(whole * total + after - before for total, after, before in ends)
        load = load_of(counts, loads) + turn_load * turns_of(start, stop, length)
        if load > most:
            most, best = load, (start, stop, counts)
    return best


def turns_of(start: int, stop: int, length: int) -> int:
    """The repeats that a share of units has a part of."""
    return (stop - 1) // length - start // length + 1 if stop > start else 0


class Axis:
    """One spatial axis of a window nest: `name` is the axis whose positions are walked.

    Positions are global, those of the whole tensor: a box never changes which taps exist.
    """

    def __init__(self, nest: Nest, operand: str, dimension: int, name: str, suffix: str) -> None:
        found = nest.operand(operand)
        assert found.index is not None
        self.name = name
        self.stride = int(nest.constants[f"stride_{suffix}"])
        self.dilation = int(nest.constants[f"dilation_{suffix}"])
        self.offset, self.extent = found.index[dimension].offset, found.shape[dimension]
        self.taps = nest.axis(f"k{suffix}").extent
        self.is_gathered = name.startswith("i")

    def base(self, at: int) -> int:
        """Where the first tap of the window at `at` is; of a gather, its numerator."""
        return (at if self.is_gathered else at * self.stride) + self.offset


def axes_of(nest: Nest, operand: str) -> tuple[Axis, Axis]:
    """Rows and columns: those of a map, whose windows are of the image `x`, or of an image, from the gradient `dy`."""
    side = "i" if operand == "dy" else "o"
    return Axis(nest, operand, 3, f"{side}h", "h"), Axis(nest, operand, 4, f"{side}w", "w")


# What a row of outputs costs, by kind of column block. A block whose outputs have no taps is empty: it enters no loop.
ROW_NAMES = (
    "blocks", "empty inside blocks", "empty checked blocks of four", "empty fives",
    "threes", "threes*c", "threes*c*r, whole", "threes*c*r, an end missing", "threes*c*r, both ends missing",
    "inside blocks", "inside blocks*c", "inside blocks*c*r", "inside blocks*c*r*taps",
    "checked blocks", "checked blocks of four", "checked blocks*c", "checked blocks*c*r",
    "checked taps, safe", "checked taps, lane by lane", "checked taps of four, lane by lane", "checked lanes",
    "fives", "fives*c", "fives*c*r", "fives' taps, safe", "fives' taps, lane by lane", "lanes inside",
)  # fmt: skip
_NO_TAPS = (0.0,) * (len(ROW_NAMES) - 4)


@lru_cache(maxsize=65536)
def column_blocks(
    columns: int, position: int, extent: int, taps: int, lane: int, position_tap: int, tap: int, is_four: bool,
    first: bool,
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """`tg_conv_columns` on one row: (blocks by kind: three, inside, checked, checked ones of four, of five), and per
    channel and window row: (an end missing, both missing, safe taps, taps lane by lane, those of four lanes, lanes of
    those; of a five: safe taps, taps lane by lane; and lanes inside of either)."""
    threes = inside = checked = checked_fours = missing = both = safe_taps = slow_taps = slow_fours = slow_lanes = (
        lanes_inside
    ) = 0
    fives = five_safe = five_slow = 0
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
            lanes_inside += sum(0 <= place + j * lane < extent for place in ragged for j in range(5))
            five_safe, five_slow = sum(safe_places), len(ragged)
            fives = 1
            break
        elif lanes < 4 or min(at, last) < 0 or max(at, last) + 3 * lane >= extent:
            checked += 1
            checked_fours += lanes == 4
            safe = max(extent - 3 * lane, 0) if lanes == 4 else 0
            for k in range(taps if position_tap else min(taps, 1)):
                times = 1 if position_tap else taps
                place = at + k * position_tap
                if 0 <= place < safe:
                    safe_taps += times
                else:
                    slow_taps += times
                    slow_fours += times * (lanes == 4)
                    slow_lanes += times * lanes
                    lanes_inside += times * sum(0 <= place + j * lane < extent for j in range(lanes))
        else:
            inside += 1
        column += 4
    of_checked = safe_taps, slow_taps, slow_fours, slow_lanes
    return (threes, inside, checked, checked_fours, fives), (
        missing, both, *of_checked, five_safe, five_slow, lanes_inside
    )  # fmt: skip


def blocks_of(channels: int, width: int) -> int:
    """Blocks of so many channels, the last one may be short."""
    return -(-channels // width)


def block_number(blocks: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    threes, inside, checked, _, fives = blocks[0]
    return threes + inside + checked + fives


def row_trips(
    blocks: tuple[tuple[int, ...], tuple[int, ...]], channels: int, rows: int, taps: int
) -> tuple[float, ...]:
    """ROW_NAMES of one row of outputs with so many window rows inside."""
    (threes, inside, checked, checked_fours, fives), (missing, both, *others) = blocks
    times = channels * rows
    if times * taps == 0:
        return block_number(blocks), inside, checked_fours, fives, *_NO_TAPS
    of_taps = [value * times for value in others]
    return (
        block_number(blocks), 0, 0, 0,
        threes, threes * channels, (threes - missing - both) * times, missing * times, both * times,
        inside, inside * channels, inside * times, inside * times * taps,
        checked, checked_fours, checked * channels, checked * times, *of_taps[:4],
        fives, fives * channels, fives * times, *of_taps[4:],
    )  # fmt: skip


def add_scaled(total: list[float], times: float, trips: Sequence[float]) -> None:
    for i, value in enumerate(trips):
        total[i] += times * value


def step_between_taps(stride: int, dilation: int) -> int:
    return dilation // gcd(stride, dilation)
