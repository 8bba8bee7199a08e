"""Proof that a listing is right, by code that knows nothing of how it was made.

Each entry is replayed on memories that say which value's bytes lie where. What a kernel reads must have been brought
and waited for, what it writes leaves behind its last contribution and before anybody looks for it, nothing that is
under way or still needed may be disturbed, and state must be right at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tilegrad.analysis.layout import CALL
from tilegrad.ir.listing import (
    SCRATCH,
    Await,
    Barrier,
    Begin,
    End,
    Enter,
    Event,
    Fetch,
    Listing,
    Load,
    Move,
    Part,
    Place,
    Queue,
    Signal,
    Store,
    Wait,
    describe,
)
from tilegrad.ir.nest import Access, Operand
from tilegrad.ir.plan import Address
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.sequence.contents import NOTHING, UNDER_WAY, Readers, Result, View
from tilegrad.sequence.launches import LaunchReplay
from tilegrad.sequence.needs import Needs, dense_bytes, placed, summed_axes
from tilegrad.sequence.parts import wrong_parts
from tilegrad.sequence.pipe_replay import elements
from tilegrad.sequence.values import OUTSIDE, STATE, ListingError
from tilegrad.targets.base import L1, L2, L3

MOST_TRANSFERS = 8
"""That may be under way at once between L2 and scratchpad (TG_DMA_REQUESTS in runtime/cluster/tg_cluster.h)."""


def replay(listing: Listing) -> Listing:
    """Raises a ListingError that names the node and the event."""
    needs = Needs()
    if listing.entries:
        _check_sizes(listing)
    for entry in listing.entries:
        _Replay(listing, entry, needs).run()
    return listing


def _check_sizes(listing: Listing) -> None:
    plan = listing.plan
    for memory, use in plan.memory.items():
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise ListingError(f"plan: {memory} holds {use.capacity_bytes} bytes, the plan uses {use.used_bytes}")
    if plan.memory[L2].used_bytes < plan.state_bytes + plan.arena_bytes:
        raise ListingError(f"plan: {L2} is said to use less than the state and the arena")
    images = {STATE: plan.image_bytes, OUTSIDE: plan.l3_image_bytes}
    for tensor in plan.schedule.program.state:
        address = plan.state_addresses[tensor.name]
        if tensor.initial is not None and address.offset + tensor.type.size_bytes > images.get(address.region, 0):
            raise ListingError(f"plan: the initial values of '{tensor.name}' are not in the image")


@dataclass
class _Transfer:
    """Under way: what it reads, and what is there when it is waited for."""

    event: Event
    sources: list[Readers] = field(default_factory=list)
    arrivals: list[tuple[View, View | int]] = field(default_factory=list)


_Found = tuple[Operand, Place, View, Readers]


class _Replay(LaunchReplay):
    def __init__(self, listing: Listing, entry: str, needs: Needs) -> None:
        super().__init__(listing, entry)
        self.needs = needs
        target = self.plan.schedule.target
        self.longest_bytes = target.engine(target.home, target.compute).longest_bytes
        self.most_moves = 0 if target.far_engine is None else target.far_engine.queue_depth
        self.under_way: dict[tuple[Queue, int], list[_Transfer]] = {}
        self.finished: set[tuple[Queue, int]] = set()
        self.computed: list[set[tuple[tuple[int, int], ...]]] = [set() for _ in self.nests]  # tiles of each nest

    def run(self) -> None:
        handlers: dict[type, Callable[..., None]] = {
            Enter: self.enter, Fetch: self.fetch, Load: self.load, Store: self.store, Wait: self.wait,
            Begin: self.begin, End: self.end, Move: self.move, Barrier: self.barrier,
            Signal: self.signal, Await: self.awaits,
        }  # fmt: skip
        wrong = wrong_parts(self.schedule, self.needs)
        if wrong is not None:
            number = next(i for i, listed in enumerate(self.nests) if listed.launch == wrong[0])
            raise self.error(wrong[1], number)
        self.start_entry()
        for event in self.events:
            self.event = event
            self.turn_to(event)
            handlers[type(event)](event)
        self.event = None
        self.end_entry()

    # What the caller leaves there, and finds.

    def start_entry(self) -> None:
        graph, plan = self.schedule.graph, self.plan
        given = [(one.name, plan.state_addresses[one.name], one.type) for one in plan.schedule.program.state]
        given += [(value, plan.input_address(self.entry, value), graph.types[value]) for value in graph.inputs]
        for value, address, of in given:
            self.home(address, of.size_bytes, f"'{value}'")[...] = self.whole(value, of.size_bytes)
        for value, address, of in given:
            self.expect_whole(value, address, of.size_bytes, f"'{value}' overlaps other state or another input")

    def end_entry(self) -> None:
        for transfers in self.under_way.values():
            raise self.error(f"never waited for: {describe(transfers[0].event)}")
        if self.running is not None:
            raise self.error(f"never ended: {describe(self.running)}")
        if self.launched >= 0:
            raise self.error("its blocks never meet at a barrier", self.launched)
        for number, (listed, tiles) in enumerate(zip(self.nests, self.computed, strict=True)):
            volume = sum(prod(stop - start for start, stop in tile) for tile in tiles)
            if volume != prod(axis.extent for axis in listed.nest.axes):
                raise self.error("the tiles are not the whole nest", number)
        graph = self.schedule.graph
        for value in graph.outputs:
            address, size_bytes = self.plan.output_address(self.entry, value), graph.types[value].size_bytes
            self.expect_whole(value, address, size_bytes, f"the caller finds '{value}' overwritten")
        becomes = {state: value for value, state in graph.writes}
        for one in self.plan.schedule.program.state:
            address, value = self.plan.state_addresses[one.name], becomes.get(one.name, one.name)
            wrong = f"state '{one.name}' does not hold '{value}' at the end"
            self.expect_whole(value, address, one.type.size_bytes, wrong)

    def expect_whole(self, value: str, address: Address, size_bytes: int, wrong: str) -> None:
        if (self.home(address, size_bytes, f"'{value}'") != self.whole(value, size_bytes)).any():
            raise self.error(wrong)

    # Transfers.

    def scratch(self, offset: int, size_bytes: int, what: str) -> tuple[View, Readers]:
        found = self.memories[SCRATCH].span(offset, size_bytes)
        if found is None:
            raise self.error(f"{what} lies beyond {L1}")
        return found

    def claim_scratch(self, offset: int, size_bytes: int, what: str) -> View:
        """Bytes of scratchpad that something is about to be written to. A result there cannot leave any more."""
        content, readers = self.scratch(offset, size_bytes, what)
        self.expect_no_ring(offset, size_bytes, what)
        self.expect_writable(content, readers, what)
        results = self.memories[SCRATCH].results
        for at in [at for at, one in results.items() if at < offset + size_bytes and offset < at + one.size_bytes]:
            del results[at]
        content[...] = UNDER_WAY
        return content

    def open(self, event: Fetch | Load | Store | Move) -> _Transfer:
        key = (event.queue, event.transfer)
        if key in self.finished:
            raise self.error(f"transfer {event.transfer} is used twice")
        before = self.under_way.setdefault(key, [])
        if before and type(before[0].event) is not type(event):
            raise self.error(f"transfer {event.transfer} goes two ways")
        before.append(_Transfer(event))
        self.expect_room_in_queue(event)
        return before[-1]

    def expect_room_in_queue(self, event: Fetch | Load | Store | Move) -> None:
        """Of the cluster's engine, or of the one between L3 and L2, which takes no more moves than its queue."""
        if isinstance(event, Move):
            moves = sum(isinstance(own[0].event, Move) for own in self.under_way.values())
            if moves > self.most_moves:
                raise self.error(f"more than {self.most_moves} moves between {L3} and {L2} are under way")
        elif sum(queue == event.queue for queue, _ in self.under_way) > MOST_TRANSFERS:
            raise self.error(f"more than {MOST_TRANSFERS} transfers are under way")

    def expect_short(self, event: Fetch | Load | Store) -> None:
        for size_bytes in (part.size_bytes for part in event.parts if part.size_bytes > self.longest_bytes):
            raise self.error(f"a transfer of {size_bytes} bytes, the engine takes {self.longest_bytes}", event.nest)

    def fetch(self, event: Fetch) -> None:
        transfer = self.open(event)
        self.expect_short(event)
        for part in event.parts:
            self.claim_scratch(part.near_offset, part.size_bytes, "a table")
        size_bytes = sum(part.size_bytes for part in event.parts)
        for number in range(event.nest, event.nest + event.count):
            listed = self.nests[number]
            assert listed.table is not None and listed.place is not None
            words_bytes = 4 * (CALL.words + len(listed.nest.operands) + len(listed.table))
            if not words_bytes <= min(size_bytes, listed.place.table_bytes):
                raise self.error("the table is not as long as its place", number)
            view, _ = self.scratch(listed.place.table_offset, words_bytes, "a table")
            if (view != UNDER_WAY).any():
                raise self.error("the table does not come to its place", number)
            transfer.arrivals.append((view, self.table(number, words_bytes)))
            self.bring_ahead(event, listed.place.table_offset, words_bytes)
            size_bytes -= words_bytes
        if size_bytes:
            raise self.error("more than tables is brought", event.nest)

    def expect_table(self, nest: int) -> None:
        """The conductor reads a nest's table whenever it works for it."""
        place, table = self.nests[nest].place, self.nests[nest].table
        assert place is not None and table is not None
        content, _ = self.scratch(place.table_offset, 4 * len(table), "the table")
        if (content != self.table(nest, 4 * len(table))).any():
            raise self.error(f"the table of nest {nest} is not there", nest)

    def table(self, nest: int, size_bytes: int) -> View:
        return self.whole(f"the table of nest {nest}", size_bytes)

    def operand(self, event: Load | Store, access: Access) -> Operand:
        if not 0 <= event.nest < len(self.nests):
            raise self.error(f"there is no nest {event.nest}")
        nest = self.nests[event.nest].nest
        found = next((operand for operand in nest.present if operand.name == event.operand), None)
        if found is None:
            raise self.error(f"there is no operand '{event.operand}'", event.nest)
        if found.access is not access:
            raise self.error(f"'{event.operand}' goes the wrong way", event.nest)
        if event.pipe is not None:
            self.expect_slot(event, found)
        else:
            self.expect_short(event)
            wrong = self.needs.wrong_transfer(nest, found, event)
            if wrong is not None:
                raise self.error(wrong, event.nest)
            self.expect_at_home(event.nest, found, event.box, event.region, event.far)
        self.expect_table(event.nest)
        return found

    def far_views(self, event: Load | Store) -> list[tuple[View, Readers]]:
        memory = self.memories.get(event.region)
        found = [None if memory is None else memory.part(event.far, part) for part in event.parts]
        views = [pair for pair in found if pair is not None]
        if len(views) != len(found):
            raise self.error(f"'{event.operand}' lies beyond its region", event.nest)
        return views

    def load(self, event: Load) -> None:
        operand, what = self.operand(event, Access.READ), f"'{event.operand}'"
        far = self.far_views(event)
        self.claim(event)
        transfer, wanted = self.open(event), self.contents(event.nest, operand, event.box)
        if event.pipe is None:
            for part, (content, readers) in zip(event.parts, far, strict=True):
                self.expect_contents(content, self.in_part(wanted, part), what)
                readers += 1
                transfer.sources.append(readers)
        else:
            self.pop(event, elements(operand, event.box))
        size_bytes = dense_bytes(operand, event.box)
        transfer.arrivals.append((self.claim_scratch(event.near, size_bytes, what), wanted))
        self.bring_ahead(event, event.near, size_bytes)

    def in_part(self, contents: View, part: Part) -> View:
        """What a part moves of a box."""
        return contents[part.near_offset // self.unit : (part.near_offset + part.size_bytes) // self.unit]

    def store(self, event: Store) -> None:
        operand, what = self.operand(event, Access.WRITE), f"'{event.operand}'"
        far = self.far_views(event)
        self.claim(event)
        transfer, wanted = self.open(event), self.contents(event.nest, operand, event.box)
        near, readers = self.scratch(event.near, dense_bytes(operand, event.box), what)
        result = self.memories[SCRATCH].results.pop(event.near, None)
        if result is None or (result.nest, result.operand, result.box) != (event.nest, event.operand, event.box):
            raise self.error(f"the result {what} is not there when it leaves", event.nest)
        if (near == NOTHING).any():
            raise self.error(f"the result {what} leaves before its last reduction tile", event.nest)
        readers += 1
        transfer.sources.append(readers)
        if event.pipe is not None:
            self.push(event, elements(operand, event.box))
        for part, (content, far_readers) in zip(event.parts, far, strict=True):
            self.expect_writable(content, far_readers, what)
            content[...] = UNDER_WAY
            arriving = self.in_part(wanted, part).reshape(content.shape) if event.pipe is None else NOTHING
            transfer.arrivals.append((content, arriving))

    def move(self, event: Move) -> None:
        transfer, what = self.open(event), f"'{event.tensor}'"
        near, far = self.sides(event, what)
        (source, source_readers), (target, target_readers) = (far, near) if event.inward else (near, far)
        if (source == UNDER_WAY).any():
            raise self.error(f"{what} moves before it has arrived")
        self.expect_writable(target, target_readers, what)
        transfer.arrivals.append((target, source.copy()))
        target[...] = UNDER_WAY
        source_readers += 1
        transfer.sources.append(source_readers)

    def wait(self, event: Wait) -> None:
        key = (event.queue, event.transfer)
        transfers = self.under_way.pop(key, None)
        if transfers is None:
            raise self.error(f"waits for transfer {event.transfer}, which is not under way", event.nest)
        self.finished.add(key)
        for transfer in transfers:
            self.settled(transfer.event)
            for readers in transfer.sources:
                readers -= 1
            for view, content in transfer.arrivals:
                view[...] = content

    # Kernel calls, on tiles in scratchpad, or where operands live.

    def enter(self, event: Enter) -> None:
        if event.nest != self.turn + 1:
            raise self.error(f"nest {event.nest} follows nest {self.turn}")
        self.turn = event.nest
        self.begin_launch(event)
        nest = self.nests[event.nest].nest
        for operand in nest.present:
            assert operand.value is not None
            wanted = self.schedule.types[operand.value]
            if (prod(operand.shape), operand.dtype) != (wanted.size, wanted.dtype):
                raise self.error(f"operand '{operand.name}': the view is not the tensor '{operand.value}'")

    def begin(self, event: Begin) -> None:
        if self.running is not None:
            raise self.error(f"begins before the end of: {describe(self.running)}")
        if event.nest != self.turn:
            raise self.error(f"nest {event.nest} computes in the turn of nest {self.turn}")
        self.running = event
        listed = self.nests[event.nest]
        wrong = self.needs.wrong_call(listed.nest, event)
        if wrong is not None:
            raise self.error(wrong)
        tile = tuple((event.ranges[axis.name].start, event.ranges[axis.name].stop) for axis in listed.nest.axes)
        if tile in self.computed[event.nest]:
            raise self.error("computes what another tile did")
        self.computed[event.nest].add(tile)
        if listed.tiling is not None:
            self.expect_table(event.nest)
        reads: list[_Found] = []
        for operand, place in placed(listed.nest, event):
            if place.pipe is not None:
                self.begin_in_ring(event, listed.nest, operand, place)
            elif operand.access is Access.WRITE:
                self.expect_room(event, operand, place, reads)
            elif operand.continues is None:
                reads.append((operand, place, *self.expect_operand(event, operand, place)))
            else:
                self.expect_begun(event, operand, place)
        for _, _, _, readers in reads:
            readers += 1

    def found(self, event: Begin, operand: Operand, place: Place) -> tuple[View, Readers]:
        """What a kernel has in the place of an operand: in scratchpad, or where it lives."""
        if self.nests[event.nest].tiling is not None:
            alignment = self.alignment[L1] if operand.access is Access.WRITE else operand.element_bytes
            if place.region != SCRATCH or place.offset % alignment:
                raise self.error(f"'{operand.name}' is at {place.region}+{place.offset}, where no kernel finds it")
            return self.scratch(place.offset, dense_bytes(operand, place.box), f"'{operand.name}'")
        self.expect_at_home(event.nest, operand, place.box, place.region, place.offset)
        found = self.at_home(event.nest, operand, place.box)
        if found is None or place.region == OUTSIDE:
            raise self.error(f"'{operand.name}' is at {place.region}+{place.offset}, where no core finds it")
        return found

    def expect_begun(self, event: Begin, operand: Operand, place: Place) -> None:
        """A sum that a panel before began is where its result is computed, before the first tile adds to it."""
        nest = self.nests[event.nest].nest
        result = nest.operand(operand.continues or "")
        if place != event.places[nest.operands.index(result)]:
            raise self.error(f"the sum that was begun is not where '{result.name}' is computed")
        if not any(event.ranges[axis.name].start for axis in summed_axes(nest, result)):
            self.expect_operand(event, operand, place)

    def expect_operand(self, event: Begin, operand: Operand, place: Place) -> tuple[View, Readers]:
        content, readers = self.found(event, operand, place)
        if (content == UNDER_WAY).any():
            raise self.error(f"'{operand.name}' has not arrived")
        self.expect_contents(content, self.contents(event.nest, operand, place.box), f"'{operand.name}'")
        return content, readers

    def expect_apart(self, nest: int, own: _Found, reads: Sequence[_Found]) -> None:
        """A result is not where something is read, unless the operator may work in place."""
        result, place, content, _ = own
        node = self.schedule.launches[self.nests[nest].launch].node
        for source, source_place, source_content, _ in reads:
            if np.may_share_memory(content, source_content):
                pairs = registry.get(node.op).in_place(NodeView(node, self.schedule.graph.types))
                values = [
                    (y, x) for o, y in enumerate(node.outputs) for i, x in enumerate(node.inputs) if (o, i) in pairs
                ]
                if (result.value, source.value) not in values or place.offset != source_place.offset:
                    raise self.error(f"'{result.name}' overlaps '{source.name}', which may not be in place")

    def expect_room(self, event: Begin, operand: Operand, place: Place, reads: Sequence[_Found]) -> None:
        """A new sum needs room, a continued one must be found as it was left."""
        content, readers = self.found(event, operand, place)
        self.expect_apart(event.nest, (operand, place, content, readers), reads)
        first = tuple(event.ranges[axis.name].start for axis in summed_axes(self.nests[event.nest].nest, operand))
        if any(first):
            found = self.memories[SCRATCH].results.pop(place.offset, None)
            if found is None or (found.nest, found.operand, found.box) != (event.nest, operand.name, place.box):
                raise self.error(f"'{operand.name}' does not find the sum to continue")
            if not found.reduced_to < first:
                raise self.error(f"the reduction's tiles of '{operand.name}' are out of order")
        if place.region == SCRATCH:
            self.claim_scratch(place.offset, dense_bytes(operand, place.box), f"'{operand.name}'")
        else:
            self.expect_writable(content, readers, f"'{operand.name}'")
            content[...] = UNDER_WAY

    def end(self, event: End) -> None:
        begun = self.running
        if begun is None or (begun.nest, begun.tile) != (event.nest, event.tile):
            raise self.error("ends, but it did not begin")
        self.running = None
        nest = self.nests[event.nest].nest
        for operand, place in placed(nest, begun):
            if place.pipe is not None:
                self.end_in_ring(begun, nest, operand, place)
            elif operand.access is Access.WRITE:
                self.made(begun, operand, place)
            elif operand.continues is None:
                _, readers = self.found(begun, operand, place)
                readers -= 1

    def made(self, begun: Begin, operand: Operand, place: Place) -> None:
        """A result is there, as far as its sums go. If it is in scratchpad, whoever looks for it at its home finds it
        there when it has left, and not what an earlier nest made of the same value."""
        sums = summed_axes(self.nests[begun.nest].nest, operand)
        is_complete = all(begun.ranges[axis.name].stop == axis.extent for axis in sums)
        content, _ = self.found(begun, operand, place)
        made = self.contents(begun.nest, operand, place.box)
        content[...] = made.reshape(content.shape) if is_complete else NOTHING
        if place.region == SCRATCH:
            own = (begun.nest, operand.name, place.box, dense_bytes(operand, place.box))
            result = Result(*own, tuple(begun.ranges[axis.name].stop - 1 for axis in sums))
            self.memories[SCRATCH].results[place.offset] = result
            home = self.at_home(begun.nest, operand, place.box)
            if home is not None:
                home[0][home[0] == made.reshape(home[0].shape)] = NOTHING
