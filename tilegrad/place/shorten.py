"""Stays that are shortened until all of them have their place in L2.

Transfers start early and end late where L2 has the bytes, but free bytes are not always free in one piece. What the
allocator puts above the end of L2 gets another place: for as long as it likes, for less, or for the least that its
launches need; and where not even that is free, stays of others that could be shorter make room. So one stay that finds
no place costs the time of its transfer and no other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilegrad.ir.plan import Buffer
from tilegrad.place.allocate import lowest_free

Span = tuple[int, int]
# Of what a stay is longer than it must be.
_KEPT_EIGHTHS = (8, 6, 4, 2, 1, 0)
# How many are moved, at most; and what moving one costs, against shortening it.
MOST_MOVES, _MOVE_PRICE = 500, 2


def shorten(
    buffers: Sequence[Buffer], least: Mapping[str, Span], offsets: Mapping[str, int], room_bytes: int
) -> tuple[list[Buffer], dict[str, int]] | None:
    """Buffers and offsets within the room. `least` has the launches that need a buffer, where these may be fewer than
    it is there for. None: no place was found for one of them."""
    fit = _Fit(buffers, least, offsets, room_bytes)
    if not fit.run():
        return None
    found = [replace(b, first=first, last=last) for b, (first, last) in zip(buffers, fit.spans, strict=True)]
    return found, {buffer.name: offset or 0 for buffer, offset in zip(buffers, fit.offsets, strict=True)}


class _Fit:
    def __init__(
        self, buffers: Sequence[Buffer], least: Mapping[str, Span], offsets: Mapping[str, int], room_bytes: int
    ) -> None:
        self.sizes = [buffer.size_bytes for buffer in buffers]
        self.room = room_bytes
        self.wanted: list[Span] = [(buffer.first, buffer.last) for buffer in buffers]
        self.spans = list(self.wanted)
        self.least = [least.get(buffer.name, span) for buffer, span in zip(buffers, self.spans, strict=True)]
        self.offsets: list[int | None] = [
            offsets[b.name] if offsets[b.name] + b.size_bytes <= room_bytes else None for b in buffers
        ]
        self.moved = [1] * len(buffers)  # how often it lost its place, and one
        # The same in columns, where thousands are looked through for those of a time.
        self.firsts, self.lasts = np.array(self.spans, dtype=np.int64).reshape(-1, 2).T.copy()
        self.is_there = np.array([o is not None and s > 0 for o, s in zip(self.offsets, self.sizes, strict=True)])

    def _put(self, i: int, span: Span, offset: int | None) -> None:
        self.spans[i], self.offsets[i] = span, offset
        self.firsts[i], self.lasts[i] = span
        self.is_there[i] = offset is not None and self.sizes[i] > 0

    def run(self) -> bool:
        """What has no place takes one from others, the larger ones first, until all have one."""
        for _ in range(MOST_MOVES):
            left = [i for i, offset in enumerate(self.offsets) if offset is None]
            if not left:
                self._grow()
                return True
            i = max(left, key=lambda i: (self.sizes[i], -i))
            if self.sizes[i] > self.room:
                return False
            if not self._place(i):
                self._squeeze_in(i)
        return False

    def _grow(self) -> None:
        """Where what was in the way went elsewhere, stays are longer again."""
        for i in sorted(range(len(self.sizes)), key=lambda i: (-self.sizes[i], i)):
            (first, last), offset = self.spans[i], self.offsets[i]
            if self.spans[i] == self.wanted[i] or offset is None:
                continue
            beside = [self.spans[j] for j in _among(self._taken(self.wanted[i]), offset, self.sizes[i]) if j != i]
            begin = max([self.wanted[i][0], *(end + 1 for _, end in beside if end < first)])
            self._put(i, (begin, min([self.wanted[i][1], *(start - 1 for start, _ in beside if start > last)])), offset)

    def _place(self, i: int) -> bool:
        """At the lowest offset that is free, for as long as one is."""
        (first, last), (least_first, least_last) = self.wanted[i], self.least[i]
        if self._free(i, self._taken(self.least[i])) is None:
            return False
        for kept in _KEPT_EIGHTHS:
            span = least_first - (least_first - first) * kept // 8, least_last + (last - least_last) * kept // 8
            offset = self._free(i, self._taken(span))
            if offset is not None:
                self._put(i, span, offset)
                return True
        return False

    def _squeeze_in(self, i: int) -> None:
        """For the least that it needs, where least is in the way. That is shortened, or else loses its place, which
        costs more each time."""
        size, span = self.sizes[i], self.least[i]
        taken = self._taken(span)
        starts, stops, _ = np.array(taken, dtype=np.int64).reshape(-1, 3).T
        edges = np.unique(np.concatenate([[0, self.room - size], stops, starts - size]))
        places = edges[(edges >= 0) & (edges <= self.room - size)]
        is_met = (starts < places[:, None] + size) & (places[:, None] < stops)
        prices = np.array([self._price(j, span) for _, _, j in taken], dtype=np.int64)
        chosen = int(places[(is_met @ prices).argmin()])
        for j in _among(taken, chosen, size):
            first, last = self.spans[j]
            if self.least[j][1] < span[0]:
                self._put(j, (first, span[0] - 1), self.offsets[j])
            elif self.least[j][0] > span[1]:
                self._put(j, (span[1] + 1, last), self.offsets[j])
            else:
                self._put(j, self.spans[j], None)
                self.moved[j] += 1
        self._put(i, span, chosen)

    def _price(self, j: int, span: Span) -> int:
        is_needed = self.least[j][0] <= span[1] and span[0] <= self.least[j][1]
        return self.sizes[j] * (1 + _MOVE_PRICE * self.moved[j] if is_needed else 1)

    def _taken(self, span: Span) -> list[tuple[int, int, int]]:
        """Start, stop and number of what has a place at the same time, in order."""
        there = np.flatnonzero(self.is_there & (self.firsts <= span[1]) & (span[0] <= self.lasts)).tolist()
        places = [(self.offsets[j] or 0, j) for j in there]
        return sorted((offset, offset + self.sizes[j], j) for offset, j in places)

    def _free(self, i: int, taken: Sequence[tuple[int, int, int]]) -> int | None:
        position = lowest_free(((start, stop) for start, stop, _ in taken), self.sizes[i])
        return position if position + self.sizes[i] <= self.room else None


def _among(taken: Sequence[tuple[int, int, int]], offset: int, size: int) -> list[int]:
    return [j for start, stop, j in taken if start < offset + size and offset < stop]
