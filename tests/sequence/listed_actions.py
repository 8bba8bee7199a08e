"""What a listing says, in the words in which decoded words say what the runtime does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.sequence.decode import Action, Machine
from tests.sequence.emitted_words import U32, DecodeError, Program, kernels_of
from tilegrad.analysis.tables import float_word, nest_fields
from tilegrad.ir.listing import (
    RING,
    SCRATCH,
    Await,
    Barrier,
    Begin,
    End,
    Enter,
    Fetch,
    Listing,
    Load,
    Move,
    Place,
    Queue,
    Signal,
    Store,
    Wait,
)
from tilegrad.ir.nest import kernel_argument, row_major_strides

_Queued = Fetch | Load | Store | Move | Wait | Begin | End | Signal | Await


def listed_actions(listing: Listing, entry: str) -> Iterator[Action]:
    """What blocks of a launch do is said to be theirs; what the entry's conductor does is not."""
    own = listing.entries[entry]
    moves = {(e.queue, e.transfer) for e in own.events if isinstance(e, Move)}
    is_launched = False
    for event in own.events:
        if isinstance(event, Enter):
            is_launched = own.nests[event.nest].blocks > 0
            yield ("enter", event.nest)
        elif isinstance(event, Barrier):
            is_launched = False
            yield ("barrier", event.nest, event.blocks)
        else:
            action = _listed_action(listing, entry, event, moves)
            yield ("block", event.queue.block, action) if is_launched or event.queue.block else action


def _listed_action(listing: Listing, entry: str, event: _Queued, moves: set[tuple[Queue, int]]) -> Action:
    if isinstance(event, Wait):
        return ("wait l3" if (event.queue, event.transfer) in moves else "wait", event.transfer)
    if isinstance(event, End):
        return ("end", event.nest, event.tile)
    if isinstance(event, Move):
        rows = event.rows, event.l3_stride
        return ("move", event.transfer, event.l2_offset, event.l3_offset, event.size_bytes, int(event.inward), *rows)
    if isinstance(event, Fetch):
        return ("fetch", event.transfer, event.nest, tuple((p.near_offset, p.size_bytes) for p in event.parts))
    if isinstance(event, Begin):
        return _listed_begin(listing, entry, event)
    if isinstance(event, Signal | Await):
        kind = "signal" if isinstance(event, Signal) else "await"
        return (kind, event.nest, event.pipe, event.ring, int(event.ready), event.count)
    return _listed_box(listing, entry, event)


def _listed_box(listing: Listing, entry: str, event: Load | Store) -> Action:
    names = [operand.name for operand in listing.entries[entry].nests[event.nest].nest.operands]
    parts = tuple(
        (event.near + p.near_offset, event.region, event.far + p.far_offset, p.row_bytes, p.rows, p.far_stride)
        for p in event.parts
    )
    kind = "load" if event.inward else "store"
    piped = () if event.pipe is None else (event.pipe, event.ring, event.count)
    return (kind, event.transfer, event.nest, event.tile, names.index(event.operand), parts, *piped)


def _listed_begin(listing: Listing, entry: str, event: Begin) -> Action:
    listed = listing.entries[entry].nests[event.nest]
    nest, tiling = listed.nest, listed.tiling
    places = tuple(None if place is None else _listed_place(listing, entry, place) for place in event.places)
    op = listing.launch_of(entry, event.nest).node.op
    args = _arguments(listing, op, event, entry)
    loops = () if tiling is None else tiling.loops[::-1]
    ranges = tuple((event.ranges[loop.axis].start, event.ranges[loop.axis].size) for loop in loops)
    return ("begin", event.nest, event.tile, kernels_of(op, nest), ranges, places, args)


def _listed_place(listing: Listing, entry: str, place: Place) -> Action:
    """A ring is in the scratchpad of the lane that makes what passes, one of those that run at once."""
    if place.pipe is None:
        return (place.region, place.offset)
    pipe = listing.plan.schedule.entries[entry].pipes[place.pipe]
    producer = [one for one in listing.entries[entry].nests if one.launch == pipe.producer][-1]
    lane = (place.count * pipe.lanes + place.ring) % len(producer.lanes)
    return (place.region, place.offset, producer.member + lane, place.pipe, place.ring, place.count)


def _arguments(listing: Listing, op: str, event: Begin, entry: str) -> tuple[int, ...]:
    """What the kernel is told of the tile: sizes, positions and strides of its boxes."""
    nest = listing.entries[entry].nests[event.nest].nest
    strides = {}
    for operand, place in zip(nest.operands, event.places, strict=True):
        if isinstance(place, Place):
            is_box = place.region in (SCRATCH, RING)
            strides[operand.name] = row_major_strides(tuple(r.size for r in place.box) if is_box else operand.shape)
    found = []
    for c_type, name in nest_fields(op, nest):
        value = kernel_argument(name, nest, event.ranges, strides)
        assert value is not None
        found.append((float_word(float(value)) if c_type == "float" else int(value)) % U32)
    return tuple(found)


def difference(
    machine: Callable[..., Machine],
    program: Program,
    listing: Listing,
    entry: str,
    *blocks: int,
    wanted: Sequence[Action] | None = None,
) -> str | None:
    """The first one between what a program's words say, to such a machine, and what is listed (or `wanted`). `blocks`
    is what tg_set_blocks was told."""
    target = listing.plan.schedule.target
    reading = machine(program, entry, target.engine(target.home, target.compute).longest_bytes, *blocks)
    return first_difference(reading.actions(), wanted or list(listed_actions(listing, entry)))


def first_difference(found: Iterator[Action], wanted: Sequence[Action]) -> str | None:
    """None where they are the same, event by event."""
    count = 0
    try:
        for count, action in enumerate(found, 1):
            if count > len(wanted):
                return f"event {count}: {action}, nothing is listed"
            expected = wanted[count - 1]
            if action != expected:
                return f"event {count}: {action}, listed is {expected}"
    except DecodeError as error:
        return f"event {count + 1}: {error}"
    return None if count == len(wanted) else f"{count} events, {len(wanted)} are listed"
