"""Nests of a block at once, played tile by tile: what pipes between them are expected to take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilegrad.analysis.footprint import load_count, tile_bytes, tile_sizes
from tilegrad.costs.clock import EngineClock, SharedMemory
from tilegrad.ir.nest import Access, Nest
from tilegrad.ir.pipes import Pipe
from tilegrad.ir.schedule import Tiling
from tilegrad.targets.base import Target


@dataclass(frozen=True, slots=True)
class Stage:
    """One of them: cycles of a tile, bytes that it brings and takes away, on average, and what it needs at first. It
    runs on `places`, lanes of engines, which take its tiles in turn."""

    cycles: float
    first_bytes: float
    in_bytes: float
    out_bytes: float
    is_double: bool
    places: tuple[tuple[str, int], ...] = (("", 0),)

    @classmethod
    def of(cls, nest: Nest, tiling: Tiling, cycles: float, count: int, near: Collection[str] = ()) -> Stage:
        """`count` tiles. What does not move is brought once; what is `near` is there."""
        first = moving = leaving = 0.0
        sizes = tile_sizes(nest, tiling.loops)
        for one in nest.present:
            if one.name in near:
                continue
            box_bytes = tile_bytes(one, sizes)
            per_tile = load_count(one, tiling.loops) / max(tiling.tile_count, 1)
            if one.access is Access.WRITE:
                leaving += box_bytes * per_tile
            else:
                first += box_bytes
                moving += box_bytes * (per_tile if tiling.tile_count > 1 and count > 1 else 0.0)
        return cls(cycles, first, moving, leaving, tiling.is_double)


class _Play:
    """All that share a memory do the same; one is played. Together, they move bytes as fast as `channels` of theirs."""

    def __init__(
        self, target: Target, stages: Sequence[Stage], pipes: Sequence[Pipe], channels: int, sharers: int
    ) -> None:
        engine = target.engine(target.home, target.compute)
        limit = target.memory(target.home).bytes_per_cycle
        most = channels / engine.inward.cycles_per_byte
        shared = SharedMemory(most if limit is None else min(most, limit), sharers)
        # One engine, whose commands come in any order of stages: each has a queue of its own, and they share its bytes.
        self.engines = [[EngineClock(engine, shared=shared) for _ in stage.places] for stage in stages]
        self.signal = float(target.signal_cycles)
        self.begins = self.signal + engine.inward.setup_cycles  # the table
        self.stages = stages
        self.into = [[p for p in pipes if p.consumer == k] for k in range(len(stages))]
        self.out = [[p for p in pipes if p.producer == k] for k in range(len(stages))]
        self.ready: list[list[float]] = [[] for _ in pipes]
        self.free: list[list[float]] = [[] for _ in pipes]
        self.came = [[self.begins] * len(stage.places) for stage in stages]  # what the next tile of a lane needs
        self.ended = [[self.begins] * len(stage.places) for stage in stages]
        self.computing: dict[tuple[str, int], float] = {}
        self.last = self.begins

    def _move(self, engine: EngineClock, now: float, inward: bool, size_bytes: float) -> float:
        return engine.take(now, inward, size_bytes, 1)[1] if size_bytes else now

    def _was_freed(self, pipe: Pipe, number: int) -> float:
        slots = pipe.depth * pipe.lanes
        return self.free[pipe.number][number - slots] + self.signal if number >= slots else 0.0

    def box(self, k: int, number: int, is_last: bool) -> None:
        """A box of one stage, and what it then asks for: what waits for no pipe comes while a tile computes."""
        stage, lane = self.stages[k], number % len(self.stages[k].places)
        engine, far_in = self.engines[k][lane], [p for p in self.into[k] if not p.is_near]
        came = self.came[k][lane]
        if far_in or number < len(stage.places):
            asked = max([came, *(self.ready[p.number][number] for p in far_in)])
            came = self._move(engine, asked, True, stage.first_bytes if number < len(stage.places) else stage.in_bytes)
        for p in far_in:
            self.free[p.number].append(came)
        waits = [self.ready[p.number][number] for p in self.into[k] if p.is_near]
        waits += [self._was_freed(p, number) for p in self.out[k] if p.is_near]
        start = max([came, self.ended[k][lane], self.computing.get(stage.places[lane], 0.0), *waits])
        end = self.computing[stage.places[lane]] = start + stage.cycles
        asks = start if stage.is_double else end
        self.came[k][lane] = asks if far_in or is_last else self._move(engine, asks, True, stage.in_bytes)
        pushed = max([end, *(self._was_freed(p, number) for p in self.out[k] if not p.is_near)])
        self.ended[k][lane] = pushed
        left = self._move(engine, pushed, False, stage.out_bytes)
        for p in self.into[k]:
            if p.is_near:
                self.free[p.number].append(end)
        for p in self.out[k]:
            self.ready[p.number].append((end if p.is_near else left) + self.signal)
        self.last = max(self.last, left)

    def cycles(self, count: int) -> float:
        """Of a launch whose longest share is so many boxes."""
        for number in range(count):
            for k, stage in enumerate(self.stages):
                self.box(k, number, number + len(stage.places) >= count)
        return self.last + self.signal


def play(target: Target, stages: Sequence[Stage], pipes: Sequence[Pipe], blocks: int, count: int) -> float:
    """Cycles of a launch over so many blocks, of which one has `count` boxes."""
    channels = 2 if target.engine(target.home, target.compute).duplex else 1
    return _Play(target, stages, pipes, channels * blocks, blocks).cycles(count)


def alone(target: Target, stage: Stage, blocks: int, lanes: int, count: int) -> float:
    """Cycles of a launch of one of them, over all lanes of so many blocks, of which one has `count` tiles."""
    return _Play(target, [stage], (), blocks, blocks * lanes).cycles(count)
