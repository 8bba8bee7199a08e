"""Time on a chip with a scratchpad: the one model that everything with cycles in it asks.

A conductor starts transfers and waits for them, DMA engines work through their queues, and cores compute. The timed
listing (`tilegrad/sequence/timing.py`) is a listing played on this clock; tilings and neighbours are judged by playing
what they would do (`tilegrad/schedule/judge.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from operator import itemgetter
from typing import NamedTuple

from tilegrad.costs.conduct import Act, CodeCache
from tilegrad.costs.kernel_cost import KernelCosts, Span
from tilegrad.targets.base import DmaEngine, Target

Interval = tuple[float, float]

# Of all cores together, where nothing is known of a kernel; and what share of a transfer's time they take at most.
TYPICAL_ACCESSES, MOST_LOST = 1.5, 0.5


class Reason(Enum):
    """Why the conductor stands still."""

    LOAD = "operands have not arrived"
    STORE = "results have not left"
    TABLE = "the table has not arrived"
    MOVE = "L3 is not done"
    QUEUE = "the engine's queue is full"
    PIPE = "the other side of a pipe is not there yet"
    ENGINE = "the engine computes for another nest"

    __hash__ = object.__hash__  # as that of `Act`


NO_STALLS = dict.fromkeys(Reason, 0.0)


class Stall(NamedTuple):
    reason: Reason
    cycles: float


@dataclass
class Channel:
    """One direction of an engine: commands one after the other. `beside` are those of another hop that the same engine
    moves, one at a time."""

    free: float = 0.0
    beside: Channel | None = None
    busy: list[Interval] = field(default_factory=list)
    size_bytes: float = 0


class SharedMemory:
    """A memory that engines of several clusters move bytes to and from: what they ask for at once, it does one after
    the other, and it never rests while something is asked for. `sharers` is how many ask for the same at the same
    time, where only one of them is played."""

    def __init__(self, bytes_per_cycle: float, sharers: int = 1) -> None:
        self.cycles_per_byte = sharers / bytes_per_cycle
        self.busy: list[Interval] = []  # in order, apart

    def forget(self, now: float) -> None:
        """What is over."""
        self.busy = [one for one in self.busy if one[1] > now]

    def take(self, now: float, size_bytes: float) -> float:
        """When it is done with what is asked for now. Engines are played in turns, each for a while: one that comes
        later may ask for an earlier time."""
        left, at = size_bytes * self.cycles_per_byte, now
        first = last = bisect_left(self.busy, now, key=itemgetter(1))
        while last < len(self.busy) and self.busy[last][0] < at + left:
            start, stop = self.busy[last]
            left -= max(start - at, 0.0)
            at = stop
            last += 1
        begin = min(now, self.busy[first][0]) if first < last else now
        self.busy[first:last] = [(begin, at + left)]
        return at + left


class EngineClock:
    """A DMA engine. Where its queue is full, whoever brings a command waits until the oldest one is done."""

    def __init__(
        self, engine: DmaEngine, beside: EngineClock | None = None, shared: SharedMemory | None = None
    ) -> None:
        """`beside` is the same engine on its other hop; `shared` the memory that other clusters move bytes to, too."""
        self.engine = engine
        self.beside = beside
        self.shared = shared
        self.restart()

    def restart(self) -> None:
        self.inward = Channel()
        self.outward = Channel() if self.engine.duplex else self.inward
        self.ends: deque[float] = deque(maxlen=self.engine.queue_depth)  # of the latest commands
        if self.beside is not None:
            self.ends = self.beside.ends
            for own, other in ((self.inward, self.beside.inward), (self.outward, self.beside.outward)):
                own.beside, other.beside = other, own

    @property
    def channels(self) -> tuple[Channel, ...]:
        return (self.inward, self.outward) if self.engine.duplex else (self.inward,)

    def accepted(self, now: float) -> float:
        """When the queue takes another command."""
        return max(now, self.ends[0]) if len(self.ends) == self.engine.queue_depth else now

    def take(
        self,
        now: float,
        inward: bool,
        size_bytes: float,
        rows: int,
        lost: float = 0.0,
        until: float = 0.0,
        opposed: tuple[float, float] = (0.0, 0.0),
    ) -> Interval:
        """A command that the queue has taken: when it begins to move bytes, and when the last has arrived. `lost` is
        the share of its time that others take at the memory, `until` some time; `opposed` the shares that inward and
        outward transfers take from each other."""
        timing = self.engine.inward if inward else self.engine.outward
        channel = self.inward if inward else self.outward
        busy = size_bytes * timing.cycles_per_byte + (rows - 1) * timing.cycles_per_extra_row
        latency = timing.setup_cycles
        if not self.engine.overlaps_setup:
            busy, latency = busy + latency, 0.0
        start = max(now, channel.free)
        if channel.beside is not None:
            start = max(start, channel.beside.free)
        if start < until and lost > 0.0:
            busy = min(busy / (1.0 - lost), busy + (until - start) * lost)
        other = self.outward if inward else self.inward
        if other is not channel and other.free > start:
            both = min(busy, other.free - start)
            busy += both * opposed[not inward]
            other.free += both * opposed[inward]
        channel.free = start + busy
        if self.shared is not None:
            channel.free = max(channel.free, self.shared.take(start, size_bytes))
        channel.busy.append((start, channel.free))
        channel.size_bytes += size_bytes
        self.ends.append(channel.free)
        return start, channel.free + latency


class Clock:
    """Of one cluster. `forked` is when the kernel call under way began, None between calls."""

    def __init__(self, target: Target, costs: KernelCosts) -> None:
        self.target = target
        self.costs = costs
        self.near = EngineClock(target.engine(target.home, target.compute))
        far = target.far_engine
        self.far = None if far is None else EngineClock(far, self.near if far.shares else None)
        self.restart()

    def restart(self) -> None:
        """Time begins, and nothing is under way."""
        self.near.restart()
        if self.far is not None and (self.far.ends or self.far.beside):
            self.far.restart()
        self.now = 0.0
        self.forked: float | None = None
        self.latest = Act.START
        self.code = CodeCache()
        self.computes_until = 0.0  # as far as is known
        self.accesses_per_cycle = 0.0
        self.compute_cycles = 0.0
        self.conduct_cycles = 0.0
        self.stall_cycles = NO_STALLS.copy()  # while no core computes
        self.computing: list[Interval] = []

    def spend(self, cycles: float) -> None:
        """The conductor works."""
        self.now += cycles
        if self.forked is None:
            self.conduct_cycles += cycles

    def act(self, act: Act, share: float = 1.0) -> None:
        """The conductor comes to its next act, or to a share of such acts."""
        pair = self.latest, act
        self.latest = act
        conduct, now = self.costs.conduct, self.now
        found = conduct.pairs.get(pair)
        if found is None:
            cycles = conduct.acts.get(act, 0.0)
        else:
            gone = self.code.run(pair, found.gone)
            cycles = found.cycles(gone, now < self.computes_until, self.near.inward.free - now)
        self.spend(cycles * share)

    def cold_cycles(self, kernels: Sequence[str], level: str) -> float:
        """What kernels that begin now, one after the other, take to fetch their code."""
        cold = [self.costs.cold_cycles(kernel, level) for kernel in kernels]
        return sum(self.code.run(kernel, cycles) * cycles for kernel, cycles in zip(kernels, cold, strict=True))

    def command(self, engine: EngineClock, inward: bool, size_bytes: float, rows: int = 1) -> Interval:
        """The conductor gives an engine a command, as soon as the queue takes it; one for each row, where it must."""
        if rows > 1 and not engine.engine.has_2d:
            spans = [self.command(engine, inward, size_bytes / rows) for _ in range(rows)]
            return spans[0][0], spans[-1][1]
        accepted = engine.accepted(self.now)
        if accepted > self.now:
            self.stall_until(accepted, Reason.QUEUE)
        self.spend(engine.engine.enqueue_cycles)
        if engine is not self.near:
            lost = 1.0 - 1.0 / self.costs.conduct.far_crowded[not inward]
            return engine.take(self.now, inward, size_bytes, rows, lost, inf)
        conduct = self.costs.conduct
        lost = min(MOST_LOST, conduct.crowded[not inward] * self.accesses_per_cycle)
        return engine.take(self.now, inward, size_bytes, rows, lost, self.computes_until, conduct.opposed)

    def stall_until(self, time: float, reason: Reason) -> Stall | None:
        """The conductor waits."""
        cycles = time - self.now
        if cycles <= 0:
            return None
        self.now = time
        if self.forked is None:
            self.stall_cycles[reason] += cycles
        return Stall(reason, cycles)

    def begin(self, cycles: float = 0.0, accesses_per_cycle: float = TYPICAL_ACCESSES) -> None:
        """Cores begin a kernel call, which will take about so many cycles, and load and store so often together."""
        assert self.forked is None
        self.accesses_per_cycle = accesses_per_cycle
        self.forked = self.now
        self.computes_until = self.now + cycles

    def end(self, span: Span) -> Interval:
        """The conductor comes to the barrier of a kernel call, and goes on when all cores are there. A worker that
        conducts has its own share to do first; a controller has none."""
        assert self.forked is not None
        delay = self.now - self.forked
        start, alone = self.forked, self.target.has_controller
        self.now = start + (max(span.cycles, delay) if alone else span.ending(delay))
        if self.target.cores == 1 and not alone:  # nobody computes while it conducts
            self.conduct_cycles += delay
            start += delay
        stop = min(self.now, start + span.cycles) if alone else self.now
        self.forked = None
        self.computing.append((start, stop))
        self.compute_cycles += stop - start
        self.conduct_cycles += self.now - stop
        return start, self.now


def merged(intervals: list[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for start, stop in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], stop))
        else:
            result.append((start, stop))
    return result


def overlap_cycles(a: list[Interval], b: list[Interval]) -> float:
    """How long both are; neither overlaps itself."""
    total = 0.0
    i = k = 0
    while i < len(a) and k < len(b):
        total += max(0.0, min(a[i][1], b[k][1]) - max(a[i][0], b[k][0]))
        if a[i][1] < b[k][1]:
            i += 1
        else:
            k += 1
    return total
