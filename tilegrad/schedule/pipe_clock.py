"""Two nests of a block at once, played tile by tile: what a pipe between them is expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilegrad.analysis.footprint import box_shape, load_count
from tilegrad.costs.clock import EngineClock, SharedMemory
from tilegrad.ir.nest import Access, Nest
from tilegrad.ir.schedule import Tiling
from tilegrad.targets.base import Target


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the two: cycles of a tile, bytes that it brings and takes away, on average, and what it needs at first."""

    cycles: float
    first_bytes: float
    in_bytes: float
    out_bytes: float
    is_double: bool

    @classmethod
    def of(cls, nest: Nest, tiling: Tiling, sizes: dict[str, int], cycles: float, count: int) -> Stage:
        """`count` tiles. What does not move is brought once."""
        first = moving = leaving = 0.0
        for one in nest.present:
            box_bytes = prod(box_shape(one, sizes)) * one.element_bytes
            per_tile = load_count(one, tiling.loops) / max(tiling.tile_count, 1)
            if one.access is Access.WRITE:
                leaving += box_bytes * per_tile
            else:
                first += box_bytes
                moving += box_bytes * (per_tile if tiling.tile_count > 1 and count > 1 else 0.0)
        return cls(cycles, first, moving, leaving, tiling.is_double)


def play(target: Target, stages: Sequence[Stage], blocks: int, count: int, depth: int) -> float:
    """Cycles of a launch whose longest share is `count` boxes, while all blocks do the same."""
    engine = EngineClock(target.engine(target.home, target.compute))
    memory = target.memory(target.home)
    if memory.bytes_per_cycle is not None:
        engine.shared = SharedMemory(memory.bytes_per_cycle, blocks)
    signal, latency = float(target.signal_cycles), engine.engine.inward.setup_cycles
    producer, consumer = stages
    begins = signal + latency  # the table
    made = engine.take(begins, True, producer.first_bytes, 1)[1]
    used = begins
    ready: list[float] = []
    free: list[float] = []
    ended = [made, 0.0]
    for i in range(count):
        # The producer: a tile, then its box into a slot.
        start = max(made, ended[0])
        if i + 1 < count and producer.in_bytes:
            at = start if producer.is_double else start + producer.cycles
            made = engine.take(at, True, producer.in_bytes, 1)[1]
        ended[0] = start + producer.cycles
        pushed = max(ended[0], free[i - depth] + signal if i >= depth else 0.0)
        ended[0] = pushed
        ready.append(engine.take(pushed, False, producer.out_bytes, 1)[1] + signal)
        # The consumer: its box, then a tile, then what leaves.
        brought = consumer.in_bytes if i else consumer.first_bytes
        came = engine.take(max(ready[i], used), True, brought, 1)[1]
        free.append(came)
        start = max(came, ended[1])
        used = start if consumer.is_double else start + consumer.cycles
        ended[1] = start + consumer.cycles
        last = engine.take(ended[1], False, consumer.out_bytes, 1)[1]
    return last + signal


def alone(target: Target, stage: Stage, blocks: int, lanes: int, count: int) -> float:
    """Cycles of a launch of one of them, over all lanes of so many blocks, of which one has `count` tiles."""
    engine = EngineClock(target.engine(target.home, target.compute))
    bytes_per_cycle = blocks / engine.engine.inward.cycles_per_byte
    limit = target.memory(target.home).bytes_per_cycle
    engine.shared = SharedMemory(min(bytes_per_cycle, limit or bytes_per_cycle), blocks * lanes)
    begins = float(target.signal_cycles) + engine.engine.inward.setup_cycles
    made = ended = left = engine.take(begins, True, stage.first_bytes, 1)[1]
    for i in range(count):
        start = max(made, ended)
        ended = start + stage.cycles
        if i + 1 < count:
            made = engine.take(start if stage.is_double else ended, True, stage.in_bytes, 1)[1]
        left = engine.take(ended, False, stage.out_bytes, 1)[1]
    return left + target.signal_cycles
