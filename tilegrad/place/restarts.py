"""Runs the search in search.c again and again, each time with another order, until it finds a place for everything.

A run that starts badly hardly ever recovers, so runs are short. Each teaches the next which sections of time are hard:
buffers that cross the sections that failed most come first.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Sequence

from tilegrad.ir.plan import Buffer
from tilegrad.place import native

UNIT_NODES = 300
SEED = 0
_MEMORY = 0.7  # how much of what earlier runs taught is kept
_NOISE = 2.0


def find_sections(buffers: Sequence[Buffer]) -> tuple[int, list[tuple[int, int]]]:
    """How many maximal sets of buffers are alive together, and which of them each buffer belongs to.

    Sets in order of time: a buffer belongs to the sets start to stop - 1.
    """
    events = sorted([(b.first, False) for b in buffers] + [(b.last, True) for b in buffers])
    moments = []
    was_birth = False
    for time, is_death in events:
        if is_death and was_birth:
            moments.append(time)
        was_birth = not is_death
    return len(moments), [(bisect.bisect_left(moments, b.first), bisect.bisect_right(moments, b.last)) for b in buffers]


def _luby(i: int) -> int:
    """1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …: the best lengths for runs of which nothing is known."""
    while (i + 1) & i:
        i -= (1 << (i.bit_length() - 1)) - 1
    return (i + 1) // 2


def _importance(run: int, weights: Sequence[float], buffer: Buffer) -> float:
    """Runs take turns in what makes a buffer come first: none of the three is best for every instance."""
    span = buffer.last - buffer.first + 1
    return (sum(weights), max(weights) * span, max(weights) * span * buffer.size_bytes)[run % 3]


def search(
    buffers: Sequence[Buffer],
    capacity_bytes: int,
    budget_nodes: int,
    on_run: Callable[[int], None] = lambda nodes: None,
) -> list[int] | None:
    """Offsets within the capacity, or None: there are none, or the budget ran out. `on_run` gets the nodes so far."""
    section_count, ranges = find_sections(buffers)
    totals = [0.0] * section_count
    for buffer, (start, stop) in zip(buffers, ranges, strict=True):
        for section in range(start, stop):
            totals[section] += buffer.size_bytes
    weights = [total / sum(totals) for total in totals]
    draw = random.Random(SEED)
    nodes = run = 0
    while nodes < budget_nodes:
        run += 1
        rank = [
            _importance(run, weights[start:stop], buffer) * (1.0 + _NOISE * draw.random())
            for buffer, (start, stop) in zip(buffers, ranges, strict=True)
        ]
        order = sorted(range(len(buffers)), key=lambda i: (-rank[i], i))
        attempt = native.search(
            [ranges[i] for i in order],
            [buffers[i].size_bytes for i in order],
            section_count,
            capacity_bytes,
            min(UNIT_NODES * _luby(run), budget_nodes - nodes),
        )
        nodes += attempt.nodes
        if attempt.offsets is not None:
            return [offset for _, offset in sorted(zip(order, attempt.offsets, strict=True))]
        if attempt.is_proof:
            return None
        on_run(nodes)
        failed = sum(attempt.failures) or 1
        weights = [
            _MEMORY * weight + (1.0 - _MEMORY) * count / failed
            for weight, count in zip(weights, attempt.failures, strict=True)
        ]
    return None
