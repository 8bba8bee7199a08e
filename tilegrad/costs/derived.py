"""Trip counts that follow from a nest alone: for every kernel but matrix products and convolutions.

A kernel shares some of its parallel axes between the cores, and runs along one axis in its innermost loop. Which these
are is its `Structure`: calibration takes the one that explains the counts best, and the table keeps it. From it follow,
for any tile, the units of the busiest core, the turns of the loops outside the innermost one, its starts, and its
elements: in eights, in fours and left over, as an unrolled loop takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from tilegrad.costs.loops import mirrored_family
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, heaviest, is_shared, share, shares_in_runs
from tilegrad.ir.nest import Access, AxisKind, Index, Nest, Operand

# Constants that select code. A kernel may have others: then its variants share their coefficients.
_SELECTING = (
    "type", "from_type", "to_type", "mode", "finish", "relu", "decoupled", "nesterov", "weight_decay", "has_relu",
    "has_ignored", "is_variance",
)  # fmt: skip
# The largest axis whose taps are tried one by one.
_MOST_TAPS = 64


@dataclass(frozen=True)
class Structure:
    """`shared` are the axes whose product the cores share; `run` is the axis of the innermost loop."""

    shared: tuple[str, ...]
    run: str


def plain_structure(nest: Nest) -> Structure:
    """A first guess: everything parallel is shared, and the last axis is the innermost."""
    return Structure(_parallel(nest), nest.axes[-1].name)


def structures(nest: Nest) -> list[Structure]:
    """Those that a kernel with these axes may have: the shared axes are the first parallel ones or the last ones."""
    parallel = _parallel(nest)
    count = len(parallel)
    shared = {parallel[:n] for n in range(1, count + 1)} | {parallel[n:] for n in range(count)}
    return [Structure(axes, axis.name) for axes in sorted(shared) or [()] for axis in nest.axes]


def _parallel(nest: Nest) -> tuple[str, ...]:
    return tuple(axis.name for axis in nest.axes if axis.kind is AxisKind.PARALLEL)


def family_of(nest: Nest, entry: Mapping[str, Any] | None) -> Family:
    """What the trips of a kernel are: by its entry in the table of costs, None for one that nobody counted."""
    if entry is None:
        return UNCOUNTED
    return mirrored_family(nest) or derived_family(nest, Structure(tuple(entry["shared"]), entry["run"]))


def derived_family(nest: Nest, structure: Structure) -> Family:
    outside = _outside(nest, structure)
    names = (
        "call", "shared", "units", *(f"units*{'*'.join(outside[: i + 1])}" for i in range(len(outside))), "runs",
        *(f"{what} {width}" for width in (4, 8) for what in ("runs of", "turns of", "runs with a rest of", "rest of")),
        "elements", "elements in pairs", "elements inside", "outputs, continued", "outputs, last tile",
    )  # fmt: skip
    return Family(names, lambda nest: _bind(nest, structure), _SELECTING, lambda nest: _pattern(nest, structure.run))


def _bind_uncounted(nest: Nest) -> Counter:
    parallel = _parallel(nest)
    names = [axis.name for axis in nest.axes]

    def trips(c: Call) -> Trips:
        outputs = share(prod([c.n[name] for name in parallel]), c.cores)
        steps = outputs * prod([c.n[name] for name in names if name not in parallel])
        return 1.0, is_shared(c.cores), outputs, steps, steps * len(nest.present)

    return trips


# Of a kernel that nobody counted: coefficients are those that fit all counted kernels together.
UNCOUNTED = Family(("call", "shared", "outputs", "steps", "steps*operands"), _bind_uncounted)


def _outside(nest: Nest, structure: Structure) -> tuple[str, ...]:
    """Axes of loops inside of the shared one and outside of the innermost."""
    return tuple(axis.name for axis in nest.axes if axis.name not in (*structure.shared, structure.run))


def _pattern(nest: Nest, run: str) -> str:
    """How each operand moves along the innermost loop: not, to its neighbour, or farther; and whether the last of
    several axes has one step only."""
    steps = "".join(_step(operand, run) for operand in nest.present if operand.index)
    return f"{steps} flat" if len(nest.axes) > 1 and nest.axes[-1].extent == 1 else steps


def _step(operand: Operand, axis: str) -> str:
    moved = [(d, index.coefficient(axis)) for d, index in enumerate(operand.index or ()) if index.coefficient(axis)]
    if not moved:
        return "0"
    dimension, coefficient = moved[-1]
    is_last = prod(operand.shape[dimension + 1 :]) == 1
    return "1" if is_last and coefficient == 1 else "s"


def _bind(nest: Nest, structure: Structure) -> Counter:
    outside, run = _outside(nest, structure), structure.run
    is_run_shared = run in structure.shared
    unshared = [name for name in _parallel(nest) if name not in structure.shared]
    inside = _inside(nest)

    def trips(c: Call) -> Trips:
        n = c.n
        turns = [*accumulate([n[name] for name in outside], mul)]
        often = turns[-1] if turns else 1
        outputs = prod([n[name] for name in unshared])
        share_inside = inside(c)

        def of_core(units: int, pieces: int) -> Trips:
            runs, length = (pieces, min(n[run], units)) if is_run_shared else (units, n[run])
            elements = often * (units if is_run_shared else runs * length)
            runs *= often
            return (
                1.0, is_shared(c.cores), units, *[units * turn for turn in turns], runs, *_with_turns(runs, length, 4),
                *_with_turns(runs, length, 8), elements, -(-runs // 2) * length, elements * share_inside,
                units * outputs * (not c.first), units * outputs * c.last,
            )  # fmt: skip

        total = prod([n[name] for name in structure.shared])
        shares = shares_in_runs(total, n[run] if is_run_shared else 1, c.cores) if structure.shared else ((1, 1),)
        return heaviest([of_core(*own) for own in shares or ((0, 0),)], c.loads)

    return trips


def _with_turns(runs: int, length: int, width: int) -> tuple[int, int, int, int]:
    """Of a loop that takes `width` elements a turn, then one: how often either runs at all, and its turns."""
    turns, rest = divmod(length, width)
    return runs * (turns > 0), runs * turns, runs * (rest > 0), runs * rest


def _inside(nest: Nest) -> Callable[[Call], float]:
    """The share of a tile's steps that touch no padding: of windows, and of gathers that divide."""
    windows: dict[Index, int] = {}
    for operand in nest.present:
        if operand.access is Access.READ:
            for index, extent in zip(operand.index or (), operand.shape, strict=False):
                if index.divisor > 1 or len(index.terms) > 1 or index.offset:
                    windows[index] = extent
    if not windows:
        return lambda c: 1.0

    def inside(c: Call) -> float:
        return prod([
            _taps_inside(index.terms, index.offset, index.divisor, extent, *_ranges(index, c))
            for index, extent in windows.items()
        ])  # fmt: skip

    return inside


def _ranges(index: Index, c: Call) -> tuple[tuple[int, int], ...]:
    return tuple((c.at[name], min(c.n[name], _MOST_TAPS)) for name, _ in index.terms)


@lru_cache(maxsize=65536)
def _taps_inside(
    terms: Sequence[tuple[str, int]], offset: int, divisor: int, extent: int, *ranges: tuple[int, int]
) -> float:
    """Of all combinations of these axes' positions, the share whose sum is a position of the operand."""
    places = [offset]
    for (_, coefficient), (start, count) in zip(terms, ranges, strict=True):
        places = [place + coefficient * i for place in places for i in range(start, start + count)]
    found = sum(1 for place in places if place % divisor == 0 and 0 <= place // divisor < extent)
    return found / len(places) if places else 1.0
