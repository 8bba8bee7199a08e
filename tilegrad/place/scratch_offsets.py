"""Where each nest of an entry begins in scratchpad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_Span = tuple[int, int]

# Ways to place nests that are followed at a time, and what it costs to lie where results of the nest two before may
# still leave, beside lying where the nest before may still compute.
MOST_WAYS = 16
LEAVING_COUNTS = 0.125


@dataclass(frozen=True, slots=True)
class _Way:
    """Places of the nests so far: that of the latest one, and of those before it. Ways share how they began."""

    cost: float
    place: _Span
    before: _Way | None


def nest_offsets(sizes: Sequence[int], limit: int) -> list[int]:
    """The first byte of each nest, in so many bytes, so that neighbours have the fewest of them in common."""
    ways: list[_Way | None] = [None]
    for size in sizes:
        found: dict[tuple[_Span, ...], _Way] = {}
        for way in ways:
            before = [] if way is None else [way.place] if way.before is None else [way.place, way.before.place]
            for first in _candidates(size, before, limit):
                place = first, first + size
                shared = sum(n * _common(place, one) for n, one in zip((1, LEAVING_COUNTS), before, strict=False))
                found.setdefault((*before[:1], place), _Way(shared + (way.cost if way else 0.0), place, way))
        ways = [*sorted(found.values(), key=lambda way: (way.cost, way.place[0]))[:MOST_WAYS]]
    offsets, best = [], ways[0]
    while best is not None:
        offsets.append(best.place[0])
        best = best.before
    return offsets[::-1]


def _common(one: _Span, other: _Span) -> int:
    """Bytes that two have in common."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def _candidates(size: int, before: Sequence[_Span], limit: int) -> list[int]:
    beside = [first for start, stop in before for first in (stop, start - size)]
    return [first for first in (0, limit - size, *beside) if 0 <= first <= limit - size]
