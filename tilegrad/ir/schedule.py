"""A schedule: a program's operators as launches of nests on a target, whole or in tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Generic

from tilegrad.ir.blocks import Width
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest, Range, Tile, row_major_strides
from tilegrad.ir.pipes import Pipe, groups
from tilegrad.ir.program import Program
from tilegrad.ir.types import DType, Number, TensorType
from tilegrad.targets.base import Target


@dataclass(frozen=True, slots=True)
class AnyLoop(Generic[Number]):
    """An axis cut into tiles; the last one may be smaller."""

    axis: str
    extent: int
    tile: Number

    @property
    def count(self) -> Number:
        return -(-self.extent // self.tile)


@dataclass(frozen=True, slots=True)
class Loop(AnyLoop[int]):
    """Into tiles of one size; the search for a good one has columns of them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an operand's boxes lie in scratchpad: one slot, or two that take turns; those of a ring in L1, where a pipe
    has one, and none where that is another nest's."""

    offset_bytes: int
    slot_bytes: int
    count: int


@dataclass(frozen=True)
class TileEstimate:
    """What a tiling is expected to cost, in cycles; `reason` says why it was chosen.

    `steady_cycles` are those without its first loads and last stores, which neighbours may hide. `asks_ahead`: they are
    fewer where a tile is requested before the one before it begins.
    """

    cycles: float
    compute_cycles: float
    dma_cycles: float
    dma_bytes: int
    reason: str
    steady_cycles: float = 0.0
    asks_ahead: bool = False


@dataclass(frozen=True)
class Tiling:
    """`loops` outermost first; reduction loops are innermost, in the nest's order. `slots` by operand name.

    Of a double-buffered nest, the next tile is requested while a tile computes. Where transfers take longer than cores,
    one that `asks_ahead` requests the tile behind the next as soon as a slot is free: the engine never rests.
    """

    loops: tuple[Loop, ...]
    slots: Mapping[str, Slot]
    is_double: bool
    scratch_bytes: int
    estimate: TileEstimate
    asks_ahead: bool = False

    @property
    def tile_count(self) -> int:
        return prod(loop.count for loop in self.loops)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Hashable: how the nest is cut and where its boxes lie, whatever that is estimated to cost."""
        return self.loops, tuple(self.slots.items()), self.is_double, self.asks_ahead


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a part of a tensor lies: rows of `row_bytes`, the first `offset` bytes behind the tensor's beginning.

    `levels` are (count, stride in bytes), innermost first: how rows repeat.
    """

    offset: int
    row_bytes: int
    levels: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        return prod(count for count, _ in self.levels)

    @property
    def size_bytes(self) -> int:
        return self.row_bytes * self.count

    @property
    def stop(self) -> int:
        return self.offset + self.row_bytes + sum((count - 1) * stride for count, stride in self.levels)

    def meets(self, other: Rows) -> bool:
        """Whether some byte may be of both. Rows of one kind that only begin elsewhere are seen to pass each other."""
        if self.stop <= other.offset or other.stop <= self.offset:
            return False
        if not self.levels or not other.levels or self.levels[0][1] != other.levels[0][1]:
            return True
        stride = self.levels[0][1]
        if any(step % stride for _, step in (*self.levels, *other.levels)):
            return True
        ahead = (other.offset - self.offset) % stride
        return ahead < self.row_bytes or ahead + other.row_bytes > stride


@dataclass(frozen=True)
class Panel:
    """A box of a value that is in L2 without the rest of it: dense there, rows of the whole where it lives."""

    value: str
    shape: tuple[int, ...]  # of the view of the value that the nest has
    box: tuple[Range, ...]
    dtype: DType

    @cached_property
    def rows(self) -> Rows:
        """With what lies side by side as one row."""
        strides, size = row_major_strides(self.shape), self.dtype.size_bytes
        offset = size * sum(r.start * stride for r, stride in zip(self.box, strides, strict=True))
        row_bytes, levels = size, list[tuple[int, int]]()
        for r, stride in reversed(list(zip(self.box, strides, strict=True))):
            if not levels and stride * size == row_bytes:
                row_bytes *= r.size
            elif levels and stride * size == levels[-1][0] * levels[-1][1]:
                levels[-1] = (levels[-1][0] * r.size, levels[-1][1])
            elif r.size != 1:
                levels.append((r.size, stride * size))
        return Rows(offset, row_bytes, tuple(levels))


@dataclass(frozen=True)
class NestPart:
    """Which part of which of its operator's nests a nest is: `ranges` of that one's axes.

    Panels of several operators may take turns, so that what one makes of a tensor the next one reads before it leaves
    L2: `turn` is the number of that chain, and of the turn.
    """

    nest: int
    ranges: Tile
    turn: tuple[int, int] | None = None


@dataclass(frozen=True)
class Launch:
    """One operator, or a part of it. Its nests run in order with a barrier after each.

    `tilings` has one entry per nest, None for a nest that is one call on whole operands where they live. An operator
    whose operands are not in L2 at once is several launches, with one nest each: `part` says what of it.
    `widths`, where there are any, say of each nest over how many blocks it is launched; None: over none, the conductor
    of the entry runs it. `lanes`, where there are any, say of each nest how many lanes of a block take parts of it.
    """

    node: Node
    nests: tuple[Nest, ...]
    tilings: tuple[Tiling | None, ...] = ()
    part: NestPart | None = None
    widths: tuple[Width | None, ...] = ()
    lanes: tuple[int, ...] = ()

    def lane_count(self, nest: int) -> int:
        return self.lanes[nest] if self.lanes else 1

    def width(self, nest: int) -> Width | None:
        return self.widths[nest] if self.widths else None


@dataclass(frozen=True, repr=False)
class EntrySchedule:
    """`types` are those of all its values: the graph's, operators' temporaries, and `panels` of some of them. Nests
    that `pipes` join run at once."""

    graph: Graph
    launches: tuple[Launch, ...]
    types: Mapping[str, TensorType]
    panels: Mapping[str, Panel] = field(default_factory=dict)
    pipes: tuple[Pipe, ...] = ()

    @cached_property
    def apart(self) -> frozenset[str]:
        """Values whose bytes are not given to others: what passes through pipes, and what nests read that run beside
        others."""
        read: set[str] = set()
        for first, last in groups(self.pipes):
            nests = [nest for launch in self.launches[first : last + 1] for nest in launch.nests]
            read |= {operand.value for nest in nests for operand in nest.reads if operand.value is not None}
        return frozenset(read)

    @cached_property
    def is_tiled(self) -> bool:
        """Whether it computes in scratchpad, and not where its operands live."""
        return any(tiling is not None for launch in self.launches for tiling in launch.tilings)

    @cached_property
    def node_launches(self) -> tuple[tuple[int, int], ...]:
        """The first and the last launch of each node of the graph."""
        return tuple((own[0], own[-1]) for own in self.launches_of_nodes)

    @cached_property
    def launches_of_nodes(self) -> tuple[tuple[int, ...], ...]:
        """Of each node of the graph."""
        found: dict[str, list[int]] = {node.name: [] for node in self.graph.nodes}
        for number, launch in enumerate(self.launches):
            found[launch.node.name].append(number)
        return tuple(map(tuple, found.values()))

    def __repr__(self) -> str:
        return f"<EntrySchedule '{self.graph.name}': {len(self.launches):,} launches>"


@dataclass(frozen=True, repr=False, eq=False)
class Schedule:
    """`overlaps`: a nest's first transfers may start, and its last ones end, while its neighbours compute.
    `overlaps_l3`: so may transfers between L2 and L3, of which `queued_moves` are counted on to be under way at once
    where the engine's queue takes as many: what is needed soon comes behind all of them. `blocks` is the number n of
    widths that are known at run time only: what it is at first, and at most; 0 where there are none. `width` is the one
    that was asked for, if any was.
    """

    program: Program
    target: Target
    entries: Mapping[str, EntrySchedule]
    overlaps: bool = False
    overlaps_l3: bool = True
    blocks: int = 0
    width: Width | None = None
    queued_moves: int = 16

    def __repr__(self) -> str:
        way = "tiled" if self.is_tiled else "untiled"
        entries = ", ".join(f"{name} {len(entry.launches):,} launches" for name, entry in self.entries.items())
        return f"<Schedule of '{self.program.name}' for {self.target.name}, {way}: {entries}>"

    @property
    def carries(self) -> bool:
        """Whether blocks ask for operands of the next launch before they meet, into the one scratchpad each has."""
        return self.overlaps and self.target.clusters > 1 and not self.target.compute_engines

    @property
    def has_epilogues(self) -> bool:
        launches = (launch for entry in self.entries.values() for launch in entry.launches)
        return any(nest.epilogues for launch in launches for nest in launch.nests)

    def macs(self, entry: str) -> int:
        return sum(nest.macs for launch in self.entries[entry].launches for nest in launch.nests)

    @property
    def is_tiled(self) -> bool:
        return any(entry.is_tiled for entry in self.entries.values())
