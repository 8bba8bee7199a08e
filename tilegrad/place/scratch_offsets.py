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


def nest_offsets(sizes: Sequence[int], limit: int) -> list[int]:
    """The first byte of each nest, in so many bytes: one that does not fit beside the nest before lies at an end."""
    spans: list[_Span] = []
    for i, size in enumerate(sizes):
        before = spans[:-3:-1]
        next_size = sizes[i + 1] if i + 1 < len(sizes) else 0
        places = [_Span(first, first + size) for first in _candidates(size, before, limit)]
        spans.append(max(places, key=lambda place: _worth(place, before, next_size, limit)))
    return [span.first for span in spans]


def _candidates(size: int, before: Sequence[_Span], limit: int) -> list[int]:
    beside = [first for span in before for first in (span.stop, span.first - size)]
    return [first for first in (0, limit - size, *beside) if 0 <= first <= limit - size]


def _worth(place: _Span, before: Sequence[_Span], next_size: int, limit: int) -> tuple[int, ...]:
    """What counts first: to lie apart from the nest before, which may still compute. Then that the next nest finds room
    beside this one; that results of the nest before that may still leave; and that they may when the next one comes.
    """
    return (
        -place.common(before[:1]),
        -_missing(next_size, [place], limit),
        -place.common(before),
        -_missing(next_size, [place, *before[:1]], limit),
        -place.first,
    )


def _missing(size: int, taken: Sequence[_Span], limit: int) -> int:
    """What a nest of this size would have in common with others where that is least."""
    return min(_Span(first, first + size).common(taken) for first in _candidates(size, taken, limit))
