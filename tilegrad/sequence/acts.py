"""What the conductor does at each event of a listing, as its costs are known (costs/conduct.py)."""

from __future__ import annotations

from collections.abc import Iterator

from tilegrad.analysis.tables import simple_steps
from tilegrad.costs.conduct import Act
from tilegrad.errors import InternalError
from tilegrad.ir.listing import (
    Await,
    Barrier,
    Begin,
    End,
    Enter,
    EntryListing,
    Event,
    Fetch,
    Load,
    Move,
    Queue,
    Signal,
    Store,
    Wait,
)

_ALWAYS = {
    Fetch: Act.FETCH, Store: Act.STORE, Move: Act.MOVE, End: Act.END,
    Signal: Act.WAIT_STORE, Await: Act.WAIT_STORE, Barrier: Act.WAIT_STORE,
}  # fmt: skip
_WAITS = {Fetch: Act.WAIT_TABLE, Load: Act.WAIT_LOAD, Store: Act.WAIT_STORE, Move: Act.WAIT_MOVE}


def acts_of(listing: EntryListing, entry: str = "an entry") -> Iterator[tuple[Event, Act]]:
    """In the order of the events."""
    waited: dict[tuple[Queue, int], Act] = {}
    steps = tile = 0  # `tile`: the one that was requested last
    has_begun = False  # a block, or the entry
    latest: Event | None = None
    turn, block = 0, -1  # the nest, and whose block
    for event in listing.events:
        if not isinstance(event, Enter | Barrier) and listing.nests and listing.nests[turn].blocks:
            has_begun, block = has_begun and event.queue.block == block, event.queue.block
        if isinstance(event, Fetch | Load | Store | Move):
            waited[event.queue, event.transfer] = _WAITS[type(event)]
        if isinstance(event, Enter):
            nest, turn, block = listing.nests[event.nest], event.nest, -1
            steps, tile = 0 if nest.table is None else simple_steps(nest.table), 0
            has_begun = nest.blocks == 0
            is_joined = nest.place is not None and nest.place.suite_index > 0
            yield event, Act.ENTER_WHOLE if nest.tiling is None else Act.ENTER_JOINED if is_joined else Act.ENTER
        elif isinstance(event, Begin):
            is_first = event.tile == 0 or not has_begun
            has_begun = True
            is_whole = listing.nests[event.nest].tiling is None
            yield event, Act.BEGIN_WHOLE if is_whole else Act.BEGIN_FIRST if is_first else Act.BEGIN
        elif isinstance(event, Load):
            if event.tile == 0 or not has_begun or event.nest > turn:
                is_joined = isinstance(latest, Load) and latest.nest != event.nest
                yield event, Act.JOINED_LOAD if is_joined else Act.FIRST_LOAD
            elif event.tile == tile:
                yield event, Act.NEXT_LOAD
            else:
                tile = event.tile
                yield event, Act.SIMPLE_LOAD if tile % (steps + 1) else Act.OTHER_LOAD
        elif isinstance(event, Wait):
            if (event.queue, event.transfer) not in waited:
                raise InternalError(f"{entry} waits for transfer {event.transfer}, which never started")
            yield event, waited[event.queue, event.transfer]
        else:
            has_begun = has_begun or isinstance(event, Barrier)
            yield event, _ALWAYS[type(event)]
        latest = event
