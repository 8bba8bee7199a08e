"""Offsets for buffers with lifetimes, in as few bytes as a bounded, deterministic search finds.

The search places buffers one after the other at the lowest free offset. What matters is the order: several good ones
are tried, then the best is improved by moving the buffers that stick out at the top to the front. Limits count work,
not seconds, so that the same input always gives the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.ir.plan import Buffer

IMPROVEMENT_ROUNDS = 300
PLACEMENT_BUDGET = 60_000


@dataclass(frozen=True)
class Allocation:
    offsets: dict[str, int]
    size_bytes: int


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The largest sum of bytes alive at once: no allocation can be smaller."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + buffer.size_bytes
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - buffer.size_bytes
    peak = alive = 0
    for time in sorted(changes):
        alive += changes[time]
        peak = max(peak, alive)
    return peak


def _place(buffers: Sequence[Buffer], neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Lowest free offset for each buffer, in the given order."""
    offsets = [-1] * len(buffers)
    for i in order:
        size = buffers[i].size_bytes
        taken = sorted((offsets[j], offsets[j] + buffers[j].size_bytes) for j in neighbours[i] if offsets[j] >= 0)
        position = 0
        for start, stop in taken:
            if start - position >= size:
                break
            position = max(position, stop)
        offsets[i] = position
    return offsets


def _height(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    return max((o + b.size_bytes for o, b in zip(offsets, buffers, strict=True)), default=0)


def allocate(buffers: Sequence[Buffer]) -> Allocation:
    sized = [buffer for buffer in buffers if buffer.size_bytes > 0]
    bound = lower_bound(sized)
    neighbours = [
        [
            j
            for j, other in enumerate(sized)
            if j != i and other.first <= buffer.last and buffer.first <= other.last
        ]
        for i, buffer in enumerate(sized)
    ]
    indices = range(len(sized))
    span = [buffer.last - buffer.first + 1 for buffer in sized]
    orders = [
        sorted(indices, key=lambda i: (-sized[i].size_bytes, -span[i], sized[i].first)),
        sorted(indices, key=lambda i: (-span[i], -sized[i].size_bytes, sized[i].first)),
        sorted(indices, key=lambda i: (-span[i] * sized[i].size_bytes, sized[i].first)),
        sorted(indices, key=lambda i: (sized[i].first, -sized[i].last, -sized[i].size_bytes)),
        sorted(indices, key=lambda i: (-sized[i].last, sized[i].first, -sized[i].size_bytes)),
    ]
    best_order, best_offsets = [], [0] * len(sized)
    best_size = -1
    for order in orders:
        offsets = _place(sized, neighbours, order)
        size = _height(sized, offsets)
        if best_size < 0 or size < best_size:
            best_order, best_offsets, best_size = order, offsets, size
        if best_size == bound:
            break
    if best_size > bound:
        best_offsets = _improve(sized, neighbours, best_order, best_offsets, bound)
        best_size = _height(sized, best_offsets)
    placed = {buffer.name: offset for buffer, offset in zip(sized, best_offsets, strict=True)}
    return Allocation({buffer.name: placed.get(buffer.name, 0) for buffer in buffers}, max(best_size, 0))


def _improve(
    buffers: Sequence[Buffer],
    neighbours: Sequence[Sequence[int]],
    order: list[int],
    offsets: list[int],
    bound: int,
) -> list[int]:
    """Moves what sticks out to the front of the order, or swaps at random, keeping what is no worse."""
    draw = random.Random(0)
    best, size = offsets, _height(buffers, offsets)
    rounds = min(IMPROVEMENT_ROUNDS, PLACEMENT_BUDGET // max(len(buffers), 1))
    for _ in range(rounds):
        tops = [i for i, o in enumerate(best) if o + buffers[i].size_bytes == size]
        chosen = draw.choice(tops)
        candidate = list(order)
        if draw.random() < 0.6:
            candidate.remove(chosen)
            candidate.insert(draw.randrange(max(1, order.index(chosen))), chosen)
        else:
            a, b = draw.randrange(len(order)), draw.randrange(len(order))
            candidate[a], candidate[b] = candidate[b], candidate[a]
        placed = _place(buffers, neighbours, candidate)
        height = _height(buffers, placed)
        if height <= size:
            order, best, size = candidate, placed, height
        if size == bound:
            break
    return best
