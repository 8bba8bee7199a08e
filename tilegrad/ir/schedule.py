"""A schedule: a program's operators as launches of nests on a target, whole or in tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.program import Program
from tilegrad.ir.types import TensorType
from tilegrad.targets.base import Target


@dataclass(frozen=True, slots=True)
class Loop:
    """An axis cut into tiles; the last one may be smaller."""

    axis: str
    extent: int
    tile: int

    @property
    def count(self) -> int:
        return -(-self.extent // self.tile)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an operand's boxes lie in scratchpad: one slot, or two that take turns."""

    offset_bytes: int
    slot_bytes: int
    count: int


@dataclass(frozen=True)
class TileEstimate:
    """What a tiling is expected to cost, in cycles; `reason` says why it was chosen.

    `steady_cycles` are those without its first loads and last stores, which neighbours may hide.
    """

    cycles: float
    compute_cycles: float
    dma_cycles: float
    dma_bytes: int
    reason: str
    steady_cycles: float = 0.0


@dataclass(frozen=True)
class Tiling:
    """`loops` outermost first; reduction loops are innermost, in the nest's order. `slots` by operand name."""

    loops: tuple[Loop, ...]
    slots: Mapping[str, Slot]
    is_double: bool
    scratch_bytes: int
    estimate: TileEstimate

    @property
    def tile_count(self) -> int:
        return prod(loop.count for loop in self.loops)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Hashable: how the nest is cut and where its boxes lie, whatever that is estimated to cost."""
        return self.loops, tuple(self.slots.items()), self.is_double


@dataclass(frozen=True)
class Launch:
    """One operator. Its nests run in order with a barrier after each.

    `tilings` has one entry per nest, None for a nest that is one call on whole operands where they live.
    """

    node: Node
    nests: tuple[Nest, ...]
    tilings: tuple[Tiling | None, ...] = ()


@dataclass(frozen=True, repr=False)
class EntrySchedule:
    """`types` are those of all its values: the graph's, and operators' temporaries."""

    graph: Graph
    launches: tuple[Launch, ...]
    types: Mapping[str, TensorType]

    def __repr__(self) -> str:
        return f"<EntrySchedule '{self.graph.name}': {len(self.launches):,} launches>"


@dataclass(frozen=True, repr=False)
class Schedule:
    """`overlaps`: a nest's first transfers may start, and its last ones end, while its neighbours compute."""

    program: Program
    target: Target
    entries: Mapping[str, EntrySchedule]
    overlaps: bool = False

    def __repr__(self) -> str:
        way = "tiled" if self.is_tiled else "untiled"
        entries = ", ".join(f"{name} {len(entry.launches):,} launches" for name, entry in self.entries.items())
        return f"<Schedule of '{self.program.name}' for {self.target.name}, {way}: {entries}>"

    def macs(self, entry: str) -> int:
        return sum(nest.macs for launch in self.entries[entry].launches for nest in launch.nests)

    @property
    def is_tiled(self) -> bool:
        return any(
            tiling is not None
            for entry in self.entries.values()
            for launch in entry.launches
            for tiling in launch.tilings
        )
