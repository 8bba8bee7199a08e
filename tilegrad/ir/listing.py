"""A listing: what each entry does on a target with a scratchpad, event by event, in the order of the conductor.

It is decided once (`tilegrad/sequence`), and everything that follows reads it: the replay proves it, the clock gives it
time, codegen encodes it, and the simulator's trace is compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilegrad.ir.nest import Nest, Range, Tile
from tilegrad.ir.pipes import Pipe
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.ir.schedule import Launch, Tiling
from tilegrad.pictured import Pictured

Box = tuple[Range, ...]

SCRATCH = "L1"
"""The region of scratchpad addresses. Those of L2 are "state" and "arena", that of L3 is "l3"."""
RING = "ring"
"""The region of rings of pipes in L1: an address in the scratchpad of the lane that makes what passes."""
WORDS = "words"
"""The program's constant tables."""
CORES = "cores"


@dataclass(frozen=True, slots=True)
class Queue:
    """Who does it: the cores of a block or one of its DMA engines, by its hop ("L2-L1")."""

    block: int
    engine: str


@dataclass(frozen=True, slots=True)
class Part:
    """One command to an engine: rows that are dense in scratchpad and `far_stride` apart outside."""

    near_offset: int
    far_offset: int
    row_bytes: int
    rows: int
    far_stride: int

    @property
    def size_bytes(self) -> int:
        return self.row_bytes * self.rows

    @property
    def far_stop(self) -> int:
        return self.far_offset + (self.rows - 1) * self.far_stride + self.row_bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """A nest's call and table come to scratchpad, with those of the nests that come together with it. Offsets of parts
    are absolute there."""

    queue: Queue
    transfer: int
    nest: int
    parts: tuple[Part, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """A box of an operand comes to scratchpad. Offsets of its parts are from `near` and from `far` in `region`.

    Boxes with one transfer id are one transfer: they are waited for together.
    """

    queue: Queue
    transfer: int
    nest: int
    tile: int
    operand: str
    box: Box
    near: int
    region: str
    far: int
    parts: tuple[Part, ...]

    inward = True
    # A box that comes out of a ring of its block: which pipe and ring, and the how manieth of that it is.
    pipe: int | None = None
    ring: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A box of a result leaves scratchpad, or goes into a pipe; the fields are those of `Load`."""

    queue: Queue
    transfer: int
    nest: int
    tile: int
    operand: str
    box: Box
    near: int
    region: str
    far: int
    parts: tuple[Part, ...]

    inward = False
    pipe: int | None = None
    ring: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor, or rows of one, on the way between L3 and L2; rows are dense in L2, `l3_stride` bytes apart in L3."""

    queue: Queue
    transfer: int
    tensor: str
    l2_offset: int
    l3_offset: int
    size_bytes: int
    inward: bool
    rows: int = 1
    l3_stride: int = 0

    @property
    def row_bytes(self) -> int:
        return self.size_bytes // self.rows


@dataclass(frozen=True, slots=True)
class Wait:
    """The conductor goes on when the transfer is done. `nest` is whose turn it is."""

    queue: Queue
    transfer: int
    nest: int


@dataclass(frozen=True, slots=True)
class Enter:
    """It is a nest's turn."""

    nest: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kernel finds an operand, and which box of it; in a ring, as `Load` and `Store` have it."""

    region: str
    offset: int
    box: Box
    pipe: int | None = None
    ring: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Cores begin a kernel call on a tile. `places` are those of the nest's operands, None for an absent one."""

    queue: Queue
    nest: int
    tile: int
    ranges: Tile
    places: tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The kernel call is done: what stands between `Begin` and `End` happens meanwhile."""

    queue: Queue
    nest: int
    tile: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """The conductor goes on when all blocks of a launch have done what stands between its `Enter` and this. Events of
    one block are in its own order; those of several happen in any."""

    nest: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Signal:
    """The count of a block's ring goes up to `count`: of boxes that are ready, or of slots that are free again."""

    queue: Queue
    nest: int
    pipe: int
    ring: int
    ready: bool
    count: int


@dataclass(frozen=True, slots=True)
class Await:
    """The conductor goes on when the count of a block's ring is `count` or more."""

    queue: Queue
    nest: int
    pipe: int
    ring: int
    ready: bool
    count: int


Transfer = Fetch | Load | Store | Move
Event = Transfer | Wait | Enter | Begin | End | Barrier | Signal | Await


@dataclass(frozen=True)
class ListedNest:
    """A nest in the order of its entry. `place` and `table` are None where it computes where its operands live.
    `blocks` are those that it is launched over, each lane of a block for one, 0 where the entry's conductor runs it.
    Nests that pipes join are launched together, on `members` lanes of every block, side by side in number: this one is
    number `member` of them, and the next ones where it takes several. `lanes` are those that it takes, each an engine's
    name and which of its lanes; none where cores compute. Blocks bring its table, and its operands `ahead`, before
    those of the launch before have met; None where they bring nothing before that. They ask for that beside their last
    tile, or else when that is done."""

    launch: int
    number: int
    nest: Nest
    tiling: Tiling | None
    place: NestPlace | None
    table: tuple[int, ...] | None
    blocks: int = 0
    member: int = 0
    members: int = 1
    lanes: tuple[tuple[str, int], ...] = ()
    ahead: tuple[str, ...] | None = None
    is_beside: bool = False

    @property
    def is_joined(self) -> bool:
        return self.members > max(len(self.lanes), 1)

    @property
    def joins(self) -> bool:
        """Whether it runs beside the next one, and has no barrier of its own."""
        return self.is_joined and self.member + len(self.lanes) < self.members

    def block_of(self, worker: int) -> tuple[int, int]:
        """Of a block that it is launched over: which of the chip's, and which lane of it."""
        return divmod(worker, self.members)

    @property
    def tile_count(self) -> int:
        return 1 if self.tiling is None else self.tiling.tile_count


@dataclass(frozen=True)
class EntryListing:
    nests: tuple[ListedNest, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Listing(Pictured):
    """Of every entry of a plan."""

    plan: Plan
    entries: Mapping[str, EntryListing]

    def launch_of(self, entry: str, nest: int) -> Launch:
        return self.plan.schedule.entries[entry].launches[self.entries[entry].nests[nest].launch]


def launch_before(nests: Sequence[ListedNest], i: int) -> int | None:
    """Of a nest that is launched, which one is launched before it."""
    return next((k for k in reversed(range(i)) if nests[k].blocks), None) if nests[i].blocks else None


def ring_offset(pipe: Pipe, nests: Sequence[ListedNest]) -> int:
    """Where rings in L1 begin: they are the slots of what the producer makes."""
    listed = [one for one in nests if one.launch == pipe.producer][-1]
    assert listed.place is not None and listed.tiling is not None
    name = next(one.name for one in listed.nest.results if one.value == pipe.value)
    return listed.place.slots_offset + listed.tiling.slots[name].offset_bytes


def box_size(box: Box) -> int:
    return prod(r.size for r in box)


def describe(event: Event) -> str:
    """One line, for messages and dumps."""
    if isinstance(event, Enter):
        return f"enter nest {event.nest}"
    if isinstance(event, Barrier):
        return f"barrier of the {event.blocks} blocks of nest {event.nest}"
    if isinstance(event, Signal | Await):
        word, what = "tells" if isinstance(event, Signal) else "awaits", "ready" if event.ready else "free"
        return f"nest {event.nest} {word} {event.count} {what} of ring {event.ring} of pipe {event.pipe}"
    if isinstance(event, Begin):
        return f"begin nest {event.nest} tile {event.tile}"
    if isinstance(event, End):
        return f"end nest {event.nest} tile {event.tile}"
    if isinstance(event, Wait):
        return f"wait for transfer {event.transfer} on {event.queue.engine} in nest {event.nest}"
    if isinstance(event, Fetch):
        whose = f"nest {event.nest}" if event.count == 1 else f"nests {event.nest} to {event.nest + event.count - 1}"
        return f"fetch table of {whose} as transfer {event.transfer}"
    if isinstance(event, Move):
        way = "L3 -> L2" if event.inward else "L2 -> L3"
        return f"move '{event.tensor}' {way} {event.size_bytes} bytes as transfer {event.transfer}"
    word, way = ("load", "<-") if event.inward else ("store", "->")
    box = ", ".join(f"{r.start}:{r.stop}" for r in event.box)
    what = f"{word} '{event.operand}'[{box}] of nest {event.nest} tile {event.tile}"
    return f"{what}: L1+{event.near} {way} {event.region}+{event.far} as transfer {event.transfer}"
