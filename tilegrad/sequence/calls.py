"""What a listing says of each nest's call: the encoding that the tile runtime works on.

The runtime knows a few ways in which nests follow each other (runtime/cluster/tg_tile.h). Which of them an entry takes
is read off the order of its events; the tests decode what is emitted back into events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilegrad.ir.listing import Begin, End, Enter, EntryListing, Event, Fetch, Load, Move, Queue, Store, Wait, box_size
from tilegrad.sequence.handover import suites_of


@dataclass
class NestCall:
    """Of one nest, by operand name: requested before the nest before ended (`early`) or when its turn came (`late`),
    or read at an offset where the nest before left it (`taken`).

    `drains`: it waits for results of the nest before when its turn comes. `leaves`: its own may be on their way when it
    ends. `is_fetched_late`: its table comes when the nest before has ended. `at_once`: it begins when that one ends,
    whose results leave then. `settles`: it waits for results while its last tile computes. `moves`: what L3 does before
    it. `results` are those that leave. Blocks of a launch have all of a nest to themselves: what they read is `early`
    where they may ask for it before those of the launch before have met, and the others say nothing.
    """

    early: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    taken: Mapping[str, int] = field(default_factory=dict)
    drains: bool = False
    leaves: bool = True
    is_fetched_late: bool = False
    at_once: bool = False
    settles: bool = False
    moves: list[Move | Wait] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EntryCalls:
    nests: tuple[NestCall, ...]
    last_moves: tuple[Move | Wait, ...]


def entry_calls(listing: EntryListing) -> EntryCalls:
    reading = _Reading(listing)
    for event in listing.events:
        reading.read(event)
    return EntryCalls(tuple(reading.calls), tuple(reading.moves))


class _Reading:
    """Whose turn it is, how far it has come, and what was started for it."""

    def __init__(self, listing: EntryListing) -> None:
        self.nests = listing.nests
        self.calls = [NestCall() for _ in listing.nests]
        self.first_of = {i: suite[0] for suite in suites_of(listing.nests) for i in suite}
        self.stores: set[tuple[Queue, int]] = set()
        self.l3: set[Queue] = set()
        self.moves: list[Move | Wait] = []
        self.turn = -1
        self.tile = -1  # the latest one that began
        self.is_computing = False
        self.is_at_once = False  # nothing has happened since the latest kernel call ended
        self.last_store: tuple[Queue, int] | None = None  # of the results of the last tile, until something else begins
        self.handlers: dict[type, Callable[..., None]] = {
            Enter: self.enter, Fetch: self.fetch, Load: self.load, Begin: self.begin, End: self.end, Store: self.store,
            Move: self.move, Wait: self.wait,
        }  # fmt: skip

    def read(self, event: Event) -> None:
        is_launched = self.turn >= 0 and self.nests[self.turn].blocks > 0
        handler = self.handlers.get(type(event))
        if handler is not None and not (is_launched and self._is_of_blocks(event)):
            handler(event)

    def _is_of_blocks(self, event: Event) -> bool:
        if isinstance(event, Wait):
            return event.queue not in self.l3
        if isinstance(event, Fetch):
            return self.nests[event.nest].blocks > 0
        return not isinstance(event, Enter | Move)

    def enter(self, event: Enter) -> None:
        self.calls[event.nest].moves, self.moves = self.moves, []
        self.turn, self.tile, self.last_store = event.nest, -1, None
        if self.nests[event.nest].blocks:
            listed, moves = self.nests[event.nest], self.calls[event.nest].moves
            early = [operand.name for operand in listed.nest.reads if operand.name in (listed.ahead or ())]
            late = [operand.name for operand in listed.nest.reads if operand.name not in early]
            results = [operand.name for operand in listed.nest.results]
            own = NestCall(early, late, leaves=False, is_fetched_late=True, moves=moves, results=results)
            self.calls[event.nest], self.is_at_once = own, False

    def begin(self, event: Begin) -> None:
        self.tile, self.is_computing = event.tile, True
        if event.tile == 0:
            self.calls[event.nest].at_once = self.is_at_once
        self.is_at_once = False
        listed = self.nests[event.nest]
        if event.tile or listed.place is None or listed.tiling is None:
            return
        own = {name: listed.place.slots_offset + slot.offset_bytes for name, slot in listed.tiling.slots.items()}
        pairs = zip(listed.nest.operands, event.places, strict=True)
        found = {operand.name: place.offset for operand, place in pairs if place is not None and box_size(place.box)}
        self.calls[event.nest].taken = {name: at for name, at in found.items() if at != own[name]}

    def end(self, event: End) -> None:
        self.is_computing, self.is_at_once = False, True

    def fetch(self, event: Fetch) -> None:
        self.calls[event.nest].is_fetched_late = self.turn >= 0 and not self.is_computing
        self.is_at_once = False

    def load(self, event: Load) -> None:
        self.is_at_once = False
        if event.tile == 0 and self.first_of[event.nest] > self.turn:
            self.calls[event.nest].early.append(event.operand)
        elif event.tile == 0 and (self.tile < 0 or event.nest > self.turn):
            self.calls[event.nest].late.append(event.operand)

    def store(self, event: Store) -> None:
        self.stores.add((event.queue, event.transfer))
        if event.operand not in self.calls[event.nest].results:
            self.calls[event.nest].results.append(event.operand)
        self.is_at_once = False
        if event.nest == self.turn and self._is_over():
            self.last_store = event.queue, event.transfer

    def _is_over(self) -> bool:
        return not self.is_computing and self.tile == self.nests[self.turn].tile_count - 1

    def is_followed(self) -> bool:
        """By a nest that has come together with the current one."""
        return self.first_of.get(self.turn + 1, self.turn + 1) <= self.turn

    def move(self, event: Move | Wait) -> None:
        self.moves.append(event)
        self.l3.add(event.queue)
        self.last_store, self.is_at_once = None, False

    def wait(self, event: Wait) -> None:
        key = (event.queue, event.transfer)
        if event.queue in self.l3:
            self.move(event)
        elif key in self.stores and self.turn >= 0:
            call = self.calls[self.turn]
            if self.tile < 0:
                call.drains, self.is_at_once = True, False
            elif self.is_computing != self.is_followed():
                call.settles = True
            elif key == self.last_store:
                call.leaves = False
