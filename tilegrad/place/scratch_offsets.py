"""Where each nest of an entry begins in scratchpad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Span:
    first: int
    stop: int

    def common(self, others: Sequence[_Span]) -> int:
        """Bytes that it has in common with these."""
        return sum(max(0, min(self.stop, other.stop) - max(self.first, other.first)) for other in others)


# Ways to place nests that are followed at a time, and what it costs to lie where results of the nest two before may
# still leave, beside lying where the nest before may still compute.
MOST_WAYS = 16
LEAVING_COUNTS = 0.125


def nest_offsets(sizes: Sequence[int], limit: int) -> list[int]:
    """The first byte of each nest, in so many bytes, so that neighbours have the fewest of them in common."""
    ways: list[tuple[float, tuple[_Span, ...]]] = [(0.0, ())]
    for size in sizes:
        found: dict[tuple[_Span, ...], tuple[float, tuple[_Span, ...]]] = {}
        for cost, spans in ways:
            before = spans[:-3:-1]
            for first in _candidates(size, before, limit):
                place = _Span(first, first + size)
                shared = place.common(before[:1]) + LEAVING_COUNTS * place.common(before[1:])
                found.setdefault((*before[:1], place), (cost + shared, (*spans, place)))
        ways = sorted(found.values(), key=lambda way: (way[0], way[1][-1].first))[:MOST_WAYS]
    return [span.first for span in ways[0][1]]


def _candidates(size: int, before: Sequence[_Span], limit: int) -> list[int]:
    beside = [first for span in before for first in (span.stop, span.first - size)]
    return [first for first in (0, limit - size, *beside) if 0 <= first <= limit - size]
