"""Rows, columns and taps of sliding windows, as the convolution kernels meet them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from operator import sub
from typing import NamedTuple, TypeVar

from tilegrad.costs.loops.base import Call, Trips, bounds, dot
from tilegrad.ir.nest import Nest

T = TypeVar("T")


def numbered(units: Sequence[T]) -> tuple[tuple[int, ...], tuple[T, ...]]:
    """Which of the different ones each is, and those."""
    different = tuple(dict.fromkeys(units))
    return tuple(map(different.index, units)), different


@lru_cache(maxsize=16384)
def _shares(kinds: tuple[int, ...], repeats: int, cores: int) -> list[tuple[int, int, list[int]]]:
    """Where each core's units start and stop, and how many of each kind it has."""

    def before(unit: int) -> list[int]:
        rounds, rest = divmod(unit, len(kinds))
        return [rounds * kinds.count(kind) + kinds[:rest].count(kind) for kind in range(max(kinds) + 1)]

    shares = [bounds(repeats * len(kinds), core, cores) for core in range(cores)]
    return [(start, stop, list(map(sub, before(stop), before(start)))) for start, stop in shares]


def busiest(
    c: Call, kinds: tuple[int, ...], of_kinds: Sequence[Trips], repeats: int, head: Callable[[int, int], Trips]
) -> tuple[int, int, Trips]:
    """`repeats` times the same units, each of a kind, are shared by the cores: where the units of the busiest core
    start and stop, and the sum of their trips. What precedes those in a call's trips, `head` says of a share."""
    loads = [dot(trips, c.loads[len(head(0, 0)) :]) for trips in of_kinds]
    start, stop, counts = max(
        _shares(kinds, repeats, c.cores), key=lambda own: dot(own[2], loads) + dot(head(own[0], own[1]), c.loads)
    )
    return start, stop, [dot(counts, column) for column in zip(*of_kinds, strict=True)]


def span_inside(base: int, step: int, count: int, extent: int) -> tuple[int, int]:
    """Of `count` places from `base` on, `step` apart, those in [0, extent): from which one on, and up to which."""
    start = 0 if base >= 0 else -(base // step)
    stop = count if base + (count - 1) * step < extent else max(0, -((base - extent) // step))
    return start, stop


class Clipped(NamedTuple):
    """How many of some places are inside, and whether some are before and beyond."""

    inside: int
    is_before: bool
    is_beyond: bool


def clipped(base: int, step: int, count: int, extent: int) -> Clipped:
    start, stop = span_inside(base, step, count, extent)
    return Clipped(max(0, stop - start), base < 0, base + (count - 1) * step >= extent)


class Taps(NamedTuple):
    """Of a window along an axis: steps until its first tap is found, how many there are, and where the first is."""

    steps: int
    taps: int
    position: int


class Axis:
    """One spatial axis of a window nest: `name` is the axis whose positions are walked.

    Windows of a map are of the image `x`, and `lane` apart. Those of an image are gathered from the gradient `dy`, in
    as many phases as a stride has positions: their taps go backwards. Positions are global, those of the whole tensor:
    a box never changes which taps exist.
    """

    def __init__(self, nest: Nest, operand: str, dimension: int, suffix: str) -> None:
        found = nest.operand(operand)
        assert found.index is not None
        self.is_gathered = operand == "dy"
        self.name = ("i" if self.is_gathered else "o") + suffix
        self.stride = int(nest.constants[f"stride_{suffix}"])
        self.dilation = int(nest.constants[f"dilation_{suffix}"])
        self.offset, self.extent = found.index[dimension].offset, found.shape[dimension]
        self.taps = nest.axis(f"k{suffix}").extent
        self.lane, self.phases = (1, self.stride) if self.is_gathered else (self.stride, 1)
        self.step = -(self.dilation // gcd(self.stride, self.dilation)) if self.is_gathered else self.dilation

    def base(self, at: int) -> int:
        """Where the first tap of the window at `at` is; of a gather, its numerator."""
        return at * self.lane + self.offset

    def low(self, at: int) -> int:
        """Where the lowest tap is, if that of a gather has no stride."""
        return self.base(at) - (self.taps - 1) * self.dilation * self.is_gathered

    def taps_at(self, at: int) -> Taps:
        """Those of a gather are found by `tg_conv_gather`."""
        if not self.is_gathered:
            return Taps(0, self.taps, self.base(at))
        k_step = self.stride // gcd(self.stride, self.dilation)
        places = [self.base(at) - k * self.dilation for k in range(k_step + 1)]
        k = next((k for k in range(k_step) if places[k] % self.stride == 0), k_step)
        taps = max(0, -(-(self.taps - k) // k_step)) if k < k_step else 0
        return Taps(k, taps, int(places[k] / self.stride))

    def rows_at(self, at: int) -> tuple[int, Clipped]:
        """Steps to the first row of a window, and its rows; those of a gather are counted from the last one."""
        steps, count, position = self.taps_at(at)
        first = self.extent - 1 - position if self.is_gathered else position
        return steps, clipped(first, abs(self.step), count, self.extent)


def axes_of(nest: Nest, operand: str) -> tuple[Axis, Axis]:
    """Rows and columns."""
    return Axis(nest, operand, 3, "h"), Axis(nest, operand, 4, "w")


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
# What blocks have per channel and window row: threes, then checked ones and fives.
_ENDS = ("whole", "an end missing", "both ends missing")
_TAPS = (
    "checked safe", "checked slow", "checked slow fours", "checked slow lanes", "fives safe", "fives slow", "lanes",
)  # fmt: skip


@lru_cache(maxsize=65536)
def column_blocks(
    columns: int, position: int, extent: int, taps: int, lane: int, step: int, is_three: bool, is_four: bool,
    first: bool,
) -> Counter[str]:  # fmt: skip
    """`tg_conv_columns` on one row: blocks by kind, and what they have per channel and window row."""
    found: Counter[str] = Counter()
    column = 0
    while column < columns:
        if is_three and column + 4 > columns and first and columns >= 4:
            column = columns - 4
        is_five = is_four and not is_three and column + 5 == columns
        lanes = 5 if is_five else min(4, columns - column)
        at, reach = position + column * lane, (lanes - 1) * lane
        left, last = at + min(2 * step, 0), at + (taps - 1) * step
        if is_three and lanes == 4 and left >= -1 and left + reach + 2 <= extent:
            found.update(("threes", _ENDS[(left < 0) + (left + reach + 2 >= extent)]))
        elif lanes != 4 or min(at, last) < 0 or max(at, last) + reach >= extent:
            kind = "fives" if is_five else "checked"
            places = [at + k * step for k in range(taps)]
            slow = [place for place in places if lanes < 4 or not 0 <= place < extent - reach]
            found[kind] += 1
            found[f"{kind} safe"] += taps - len(slow)
            found[f"{kind} slow"] += len(slow)
            found[f"{kind} slow lanes"] += len(slow) * lanes
            found["lanes"] += sum(0 <= place + j * lane < extent for place in slow for j in range(lanes))
            if lanes == 4:
                found["checked fours"] += 1
                found["checked slow fours"] += len(slow)
        else:
            found["inside"] += 1
        column += lanes
    return found


def row_trips(blocks: Counter[str], channels: int, rows: int, taps: int) -> Trips:
    """ROW_NAMES of one row of outputs with so many window rows inside."""
    threes, inside, checked, fives = (blocks[kind] for kind in ("threes", "inside", "checked", "fives"))
    number, times = threes + inside + checked + fives, channels * rows
    if times * taps == 0:
        return number, inside, blocks["checked fours"], fives, *_NO_TAPS
    of_taps = [blocks[kind] * times for kind in _TAPS]
    return (
        number, 0, 0, 0,
        threes, threes * channels, *[blocks[kind] * times for kind in _ENDS],
        inside, inside * channels, inside * times, inside * times * taps,
        checked, blocks["checked fours"], checked * channels, checked * times, *of_taps[:4],
        fives, fives * channels, fives * times, *of_taps[4:],
    )  # fmt: skip
