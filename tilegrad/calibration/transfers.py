"""How long transfers took, beside what they take alone: what cores and other transfers take from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilegrad.calibration.aligned import Happened
from tilegrad.calibration.fit import non_negative_least_squares
from tilegrad.calibration.observed import TraceEvent
from tilegrad.ir.listing import Fetch, Load, Store
from tilegrad.targets.base import L1, L2, L3, DmaTiming, Target

# Those whose time says how fast bytes move.
LONG_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Moved:
    """A long transfer between L2 and L1: cycles alone, as they were, cores' accesses to L1 meanwhile, and cycles during
    which one went the other way."""

    inward: bool
    alone: float
    cycles: float
    accesses: float
    opposed: float


@dataclass(frozen=True, slots=True)
class Span:
    """Of a transfer: cycles alone, and bytes. Of a kernel call on a tile: how often all cores load and store in a
    cycle."""

    start: float
    end: float
    alone: float = 0.0
    size_bytes: int = 0
    rate: float = 0.0


def moved(target: Target, happened: Sequence[Happened], calls: Sequence[Span]) -> Iterator[Moved]:
    engine = target.engine(L2, L1)
    ways = {True: list(_spans(engine.inward, True, happened)), False: list(_spans(engine.outward, False, happened))}
    for inward, own in ways.items():
        for one in own:
            if one.size_bytes >= LONG_BYTES:
                accesses = sum(cycles * call.rate for call, cycles in _beside(one, calls))
                opposed = sum(cycles for _, cycles in _beside(one, ways[not inward]))
                yield Moved(inward, one.alone, one.end - one.start, accesses, opposed)


def _spans(timing: DmaTiming, inward: bool, happened: Sequence[Happened]) -> Iterator[Span]:
    """Transfers of one direction, which come one after the other."""
    free = 0.0
    for one in happened:
        if isinstance(one.event, Fetch | Load | Store) and isinstance(one.event, Store) is not inward:
            for part, started, end in zip(one.event.parts, one.parts, one.ends, strict=True):
                start = max(free, started + timing.setup_cycles * (started >= free))
                alone = part.size_bytes * timing.cycles_per_byte + (part.rows - 1) * timing.cycles_per_extra_row
                yield Span(start, end, alone, part.size_bytes)
                free = end


def _beside(one: Span, others: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    """Those of others, in order, that last while this one does, with for how long."""
    for other in others[bisect_left(others, one.start, key=lambda span: span.end) :]:
        if other.start >= one.end:
            return
        yield other, min(one.end, other.end) - max(one.start, other.start)


def fit_moved(found: Sequence[Moved]) -> tuple[tuple[float, float], tuple[float, float]]:
    """What a transfer loses of its time for an access of the cores in each cycle, and beside one that goes the other
    way; both inward and outward. By least squares, weighted so that each counts by its cycles."""
    lost = []
    for inward in (True, False):
        own = [one for one in found if one.inward is inward]
        weights = np.array([max(one.cycles, 1.0) ** -0.5 for one in own])
        rows = np.array([[one.accesses, one.opposed] for one in own]).reshape(-1, 2)
        wanted = np.array([one.cycles - one.alone for one in own])
        lost.append(non_negative_least_squares(rows * weights[:, None], wanted * weights) if own else (0.0, 0.0))
    (a, b), (c, d) = lost
    return (round(float(a), 4), round(float(c), 4)), (round(float(b), 4), round(float(d), 4))


def far_crowded(target: Target, events: Sequence[TraceEvent]) -> Iterator[tuple[bool, float, float]]:
    """Of long transfers between L2 and L3, which come one after the other: which way, cycles alone, as they were."""
    engine, free = target.engine(L3, L2), 0
    started = [event for event in events if event.kind == "h"]
    for begin, end in zip(started, (event for event in events if event.kind == "H"), strict=True):
        inward = bool(begin.b)
        timing = engine.inward if inward else engine.outward
        start, free = max(begin.cycle, free), end.cycle
        if begin.a >= LONG_BYTES:
            yield inward, timing.cycles(begin.a), end.cycle - start
