"""Offsets for buffers with lifetimes, in as few bytes as a bounded, deterministic search finds.

Buffers are placed one after the other at the lowest free offset, in several good orders: for ordinary training graphs
one of them reaches the lower bound. Where none does, a complete search (search.c) looks for a smaller height, briefly,
or for long where a capacity must be met. Limits count work, not seconds: the same input always gives the same plan.
Without a C compiler the orders are improved by random moves instead, which finds more than the bound on hard
instances; the result is then deterministic too, but another one.

As a command it solves an instance in MiniMalloc's format: python -m tilegrad.place.allocate FILE.csv --capacity N
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import gcd
from pathlib import Path

import numpy as np

from tilegrad.analysis.lifetimes import peak_of
from tilegrad.errors import TilegradError, UserError
from tilegrad.ir.plan import Buffer
from tilegrad.place import native, restarts

# Work is nodes × buffers, about 0.1 µs each on a 2020s core.
BRIEF_WORK = 5_000_000
STEP_WORK = 300_000
LONG_WORK = 1_000_000_000
DESCENT_STEPS = 5
SEARCHED_BUFFERS = 2000  # more than that is left to the orders
# Pairs of buffers that are alive together. Above the first number, orders by time come first, which need not know the
# pairs and cost n log n; above the second, no others are tried.
FEW_PAIRS = 50_000
MANY_PAIRS = 2_000_000
IMPROVEMENT_ROUNDS = 300
PLACEMENT_BUDGET = 60_000


@dataclass(frozen=True)
class Allocation:
    offsets: dict[str, int]
    size_bytes: int


@dataclass(frozen=True)
class Progress:
    """Where the search is: the best height so far, what it tries to reach, and the bound that none can beat."""

    best_bytes: int
    target_bytes: int
    bound_bytes: int
    nodes: int

    @property
    def gap(self) -> float:
        return self.best_bytes / self.bound_bytes - 1.0 if self.bound_bytes else 0.0


Report = Callable[[Progress], None]


def lower_bound(buffers: Sequence[Buffer]) -> int:
    return peak_of(buffers)[0]


def allocate(
    buffers: Sequence[Buffer], *, capacity_bytes: int | None = None, progress: Report | None = None
) -> Allocation:
    """As few bytes as a brief search finds; with a capacity, a long search follows where these are too many.

    The result may exceed the capacity: nothing that fits was found, and the caller says so.
    """
    sized = [buffer for buffer in buffers if buffer.size_bytes > 0]
    solver = _Solver(sized, progress or (lambda _: None))
    pairs = _count_pairs(sized)
    if pairs > FEW_PAIRS:
        solver.place_in_order_of_time()
    if solver.size > solver.bound and pairs <= MANY_PAIRS:
        solver.place_in_good_orders()
    if solver.size > solver.bound and pairs <= MANY_PAIRS:
        if native.library() is None or len(sized) > SEARCHED_BUFFERS:
            solver.improve_order()
        else:
            solver.descend()
            if capacity_bytes is not None and solver.bound <= capacity_bytes < solver.size:
                solver.try_height(capacity_bytes, LONG_WORK)
    placed = {buffer.name: offset for buffer, offset in zip(sized, solver.offsets, strict=True)}
    return Allocation({buffer.name: placed.get(buffer.name, 0) for buffer in buffers}, solver.size)


class _Solver:
    """The best offsets so far."""

    def __init__(self, buffers: Sequence[Buffer], report: Report) -> None:
        self.buffers = buffers
        self.report = report
        self.bound = lower_bound(buffers)
        self.order: list[int] = []
        self.offsets = [0] * len(buffers)
        self.size = sum(buffer.size_bytes for buffer in buffers) + 1  # more than any order needs
        self.nodes = 0

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """For each buffer, those alive together with it."""
        buffers = self.buffers
        found: list[list[int]] = [[] for _ in buffers]
        alive: list[int] = []
        for i in sorted(range(len(buffers)), key=lambda i: buffers[i].first):
            alive = [j for j in alive if buffers[j].last >= buffers[i].first]
            for j in alive:
                found[i].append(j)
                found[j].append(i)
            alive.append(i)
        return found

    def keep(self, offsets: list[int], target: int) -> None:
        self.offsets, self.size = offsets, _height(self.buffers, offsets)
        self.report(Progress(self.size, target, self.bound, self.nodes))

    def reaches_bound(self, order: list[int], offsets: list[int], is_as_good_kept: bool = False) -> bool:
        """Keeps an order that is better than those before, or as good; whether none can be better now."""
        if _height(self.buffers, offsets) < self.size + is_as_good_kept:
            self.order = order
            self.keep(offsets, self.bound)
        return self.size == self.bound

    def place_in_order_of_time(self) -> None:
        """From the first to the last, and from the last to the first: the fourth and the fifth of the good orders."""
        times = [(buffer.first, buffer.last) for buffer in self.buffers]
        for spans in (times, [(-last, -first) for first, last in times]):
            order = sorted(range(len(times)), key=lambda i: (spans[i][0], -spans[i][1], -self.buffers[i].size_bytes))
            if self.reaches_bound(order, _place_in_time(self.buffers, spans, order)):
                break

    def place_in_good_orders(self) -> None:
        buffers, indices = self.buffers, range(len(self.buffers))
        span = [buffer.last - buffer.first + 1 for buffer in buffers]
        crowd = [sum(buffers[j].size_bytes for j in self.neighbours[i]) for i in indices]
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (-buffers[i].size_bytes, -span[i], buffers[i].first),
            lambda i: (-span[i], -buffers[i].size_bytes, buffers[i].first),
            lambda i: (-span[i] * buffers[i].size_bytes, buffers[i].first),
            lambda i: (buffers[i].first, -buffers[i].last, -buffers[i].size_bytes),
            lambda i: (-buffers[i].last, buffers[i].first, -buffers[i].size_bytes),
            lambda i: (-crowd[i], -buffers[i].size_bytes, buffers[i].first),
        ]
        for key in keys:
            order = sorted(indices, key=key)
            if self.reaches_bound(order, _place(buffers, self.neighbours, order)):
                break

    def try_height(self, height: int, work: int) -> bool:
        """Keeps offsets within this height, if the search finds some."""
        start = self.nodes

        def on_run(nodes: int) -> None:
            self.nodes = start + nodes
            self.report(Progress(self.size, height, self.bound, self.nodes))

        offsets = restarts.search(self.buffers, height, max(work // len(self.buffers), 100), on_run)
        if offsets is not None:
            self.keep(offsets, height)
        return offsets is not None

    def descend(self) -> None:
        """The bound if it can be had, or else what halving the gap a few times finds."""
        if self.try_height(self.bound, BRIEF_WORK):
            return
        unit = gcd(*(buffer.size_bytes for buffer in self.buffers))
        failed = self.bound
        for _ in range(DESCENT_STEPS):
            height = (failed + self.size) // 2 // unit * unit
            if height <= failed or self.size <= failed + unit:
                break
            if not self.try_height(height, STEP_WORK):
                failed = height

    def improve_order(self) -> None:
        """Moves what sticks out to the front of the order, or swaps at random, keeping what is no worse."""
        draw = random.Random(restarts.SEED)
        rounds = min(IMPROVEMENT_ROUNDS, PLACEMENT_BUDGET // max(len(self.buffers), 1))
        for _ in range(rounds):
            tops = [i for i, o in enumerate(self.offsets) if o + self.buffers[i].size_bytes == self.size]
            chosen = draw.choice(tops)
            candidate = list(self.order)
            if draw.random() < 0.6:
                candidate.remove(chosen)
                candidate.insert(draw.randrange(max(1, self.order.index(chosen))), chosen)
            else:
                a, b = draw.randrange(len(candidate)), draw.randrange(len(candidate))
                candidate[a], candidate[b] = candidate[b], candidate[a]
            if self.reaches_bound(candidate, _place(self.buffers, self.neighbours, candidate), is_as_good_kept=True):
                break


def _place(buffers: Sequence[Buffer], neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Lowest free offset for each buffer, in the given order."""
    offsets = [-1] * len(buffers)
    for i in order:
        taken = sorted((offsets[j], offsets[j] + buffers[j].size_bytes) for j in neighbours[i] if offsets[j] >= 0)
        offsets[i] = lowest_free(taken, buffers[i].size_bytes)
    return offsets


def lowest_free(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The lowest offset for so many bytes beside what is taken, as (start, stop) in order."""
    position = 0
    for start, stop in taken:
        if start - position >= size:
            break
        position = max(position, stop)
    return position


def _count_pairs(buffers: Sequence[Buffer]) -> int:
    """How many pairs of buffers are alive together."""
    births, deaths = (np.sort([getattr(b, end) for b in buffers]) for end in ("first", "last"))
    return int((np.arange(len(buffers)) - np.searchsorted(deaths, births)).sum())


def _place_in_time(buffers: Sequence[Buffer], spans: Sequence[tuple[int, int]], order: Sequence[int]) -> list[int]:
    """What `_place` gives where the order is that of the spans' starts: only what is alive then can be in the way."""
    offsets = [0] * len(buffers)
    alive: list[tuple[int, int]] = []  # a heap of (end, buffer)
    gaps: list[tuple[int, int]] = []  # (start, stop) below the top, in order, none beside another
    top = 0
    for i in order:
        start, end = spans[i]
        while alive and alive[0][0] < start:
            j = heappop(alive)[1]
            _free(gaps, offsets[j], offsets[j] + buffers[j].size_bytes)
        if gaps and gaps[-1][1] == top:
            top = gaps.pop()[0]
        size = buffers[i].size_bytes
        found = next((g for g, (low, high) in enumerate(gaps) if high - low >= size), None)
        if found is None:
            offsets[i] = top
            top += size
        else:
            low, high = gaps[found]
            offsets[i] = low
            gaps[found : found + 1] = [(low + size, high)] if low + size < high else []
        heappush(alive, (end, i))
    return offsets


def _free(gaps: list[tuple[int, int]], start: int, stop: int) -> None:
    """Gives bytes back, joined with the gaps beside them."""
    position = bisect_left(gaps, (start, stop))
    if position < len(gaps) and gaps[position][0] == stop:
        stop = gaps.pop(position)[1]
    if position and gaps[position - 1][1] == start:
        position -= 1
        start = gaps.pop(position)[0]
    gaps.insert(position, (start, stop))


def _height(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    return max((o + b.size_bytes for o, b in zip(offsets, buffers, strict=True)), default=0)


def read_instance(path: Path) -> list[Buffer]:
    """Buffers of a CSV with the columns id, lower, upper (excluded) and size."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        buffers = [Buffer(row["id"], int(row["size"]), int(row["lower"]), int(row["upper"]) - 1) for row in rows]
    except OSError as error:
        raise UserError(f"cannot read '{path}'", stage="allocate", got=str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"'{path}' is no allocation instance",
            stage="allocate",
            expected="columns id, lower, upper, size with integers",
            got=str(error),
        ) from error
    for buffer in buffers:
        if buffer.size_bytes < 0 or buffer.last < buffer.first:
            raise UserError(f"'{path}': buffer '{buffer.name}' has no size or no lifetime", stage="allocate")
    return buffers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilegrad.place.allocate", description=main.__doc__)
    parser.add_argument("file", type=Path, help="CSV with the columns id, lower, upper, size")
    parser.add_argument("--capacity", type=int, help="bytes to fit into; without it, as few as a brief search finds")
    options = parser.parse_args(arguments)
    shown: list[int] = []

    def show(now: Progress) -> None:
        # Every 20,000 nodes, and whenever the height shrinks.
        step = now.nodes // 20_000
        if shown[-2:] != [now.best_bytes, step]:
            shown.extend((now.best_bytes, step))
            print(
                f"{now.nodes:>9} nodes  best {now.best_bytes}  trying {now.target_bytes}  "
                f"bound {now.bound_bytes}  gap {now.gap:.2%}",
                flush=True,
            )

    try:
        buffers = read_instance(options.file)
        allocation = allocate(buffers, capacity_bytes=options.capacity, progress=show)
    except TilegradError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    is_inside = options.capacity is None or allocation.size_bytes <= options.capacity
    print(f"{allocation.size_bytes} bytes for {len(buffers)} buffers" + ("" if is_inside else ": does not fit"))
    return 0 if is_inside else 1


if __name__ == "__main__":
    sys.exit(main())
