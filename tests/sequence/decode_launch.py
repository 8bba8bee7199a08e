"""What words say of nests that are launched over blocks: the parts of tg_tile.c that only programs with blocks have.

An entry has one conductor. Each block has another, with a scratchpad to itself, that runs a share of one nest's tiles,
and may bring what it will need of the next launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from tests.sequence.decode import FIRST_TILE, Machine, following_of
from tests.sequence.emitted_words import DecodeError, Nest, Program, Record, constants, words_in


@dataclass(frozen=True)
class Launch:
    """A nest that is launched: where its call is, and what blocks bring, as `Machine.fetch` wants it."""

    number: int
    current: int
    call_words: int
    table: int
    table_words: int
    scratch: int

    @property
    def brought(self) -> tuple[int, int, int, int]:
        return self.call_words, self.table, self.table_words, self.scratch


@dataclass
class Carried:
    """What a block has brought of the nest that is launched next: nothing where `position` is None."""

    position: int | None = None
    nest: Nest | None = None
    loading: int | None = None


def call_at(program: Program, position: int) -> Record:
    return Record("tg_call", list(program.words[position : position + words_in("tg_call")]), 0)


def table_at(program: Program, launch: Launch) -> Nest:
    return Nest(launch.number, [], list(program.words[launch.table :]), launch.table)


def width_of(program: Program, flags: int, blocks: int) -> int:
    """`blocks` is what tg_set_blocks was told."""
    c = constants()
    limit = flags >> c["TG_LIMIT_SHIFT"] & c["TG_MOST_WIDTH"]
    divisor = flags >> c["TG_DIVISOR_SHIFT"] & c["TG_MOST_WIDTH"]
    if program.defined.get("TG_BLOCKS_DIVISOR", 0) > 0 and divisor > 0:
        limit = min(limit, blocks // divisor)
    return limit * (1 + (flags >> c["TG_LANES_SHIFT"]))


def tiles_along(loop: Record) -> int:
    return (loop.extent + loop.tile - 1) // loop.tile


def take_share(nest: Nest, flags: int, block: int, blocks: int) -> range:
    c, tiles = constants(), 1
    for i in range(flags >> c["TG_INNER_SHIFT"] & c["TG_MOST_INNER"]):
        tiles *= tiles_along(nest.loop(i))
    units = nest.nest.tiles // tiles
    return range(block * units // blocks * tiles, (block + 1) * units // blocks * tiles)


class Conductor(Machine):
    """Of an entry that may have launches; `blocks` is the number that is set at run time."""

    def __init__(self, program: Program, entry: str, longest_bytes: int, blocks: int = 0) -> None:
        super().__init__(program, entry, longest_bytes)
        self.blocks = blocks
        self.launch: Launch | None = None
        # The entry's first nest says itself whether it is launched, of the others the one before does.
        has_tiles = self.entry["call_words"] > 0
        self.is_launch_next = has_tiles and call_at(program, self.position).flags >> self.c["TG_LIMIT_SHIFT"] > 0
        self.carried = [Carried() for _ in range(program.defined.get("TG_CLUSTERS", 1))]
        self.counts = {0: self.requests}  # of the transfers of each block, the conducting one among them

    def requests_of(self, worker: int) -> Iterator[int]:
        return self.counts.setdefault(worker, count())

    def start(self, number: int, call_words: int, table: int, table_words: int, scratch: int) -> None:
        if self.is_launch_next:
            self.launch = Launch(number, self.position, call_words, table, table_words, scratch)
            self.position += call_words
        else:
            super().start(number, call_words, table, table_words, scratch)

    def run_nest(self, nest: Nest) -> Iterator[None]:
        self.is_launch_next = bool(nest.call.flags & self.c["TG_NEXT_LAUNCH"])
        return super().run_nest(nest)

    def is_over(self) -> bool:
        return self.current is None and self.launch is None

    def run_next(self) -> Iterator[None]:
        return super().run_next() if self.launch is None else self.run_launch(self.launch)

    def run_launch(self, launch: Launch) -> Iterator[None]:
        call = call_at(self.program, launch.current)
        self.make_moves(call.moves)
        self.done.append(("enter", launch.number))
        blocks = width_of(self.program, call.flags, self.blocks)
        for block in range(blocks):
            yield from self.run_block(Block(self, launch, block, blocks))
        self.barrier(launch, call, blocks)

    def run_block(self, block: Block) -> Iterator[None]:
        for _ in block.run():
            self.take_over(block)
            yield
        self.take_over(block)

    def take_over(self, block: Block) -> None:
        self.done += [("block", block.worker, action) for action in block.done]
        block.done.clear()

    def barrier(self, launch: Launch, call: Record, workers: int) -> None:
        self.done.append(("barrier", launch.number, workers))
        self.launch = None
        self.is_launch_next = bool(call.flags & self.c["TG_NEXT_LAUNCH"])
        if call.next_words:
            self.start(launch.number + 1, *following_of(call))


class Block(Machine):
    """What one block does of a launch."""

    def __init__(self, entry: Conductor, launch: Launch, block: int, blocks: int, worker: int | None = None) -> None:
        super().__init__(entry.program, entry.entry_name, entry.longest)
        self.conductor, self.launch, self.block, self.blocks = entry, launch, block, blocks
        self.worker = block if worker is None else worker
        self.requests = entry.requests_of(self.worker)
        self.position = launch.current
        self.carried = entry.carried[block % len(entry.carried)]
        self.behind: Launch | None = None
        self.next_share = range(0)

    def run(self) -> Iterator[None]:
        share = self.share()
        if not share:
            return
        carried = self.carried
        is_there = carried.position == self.launch.current
        if is_there:
            assert carried.nest is not None
            nest, self.loading = carried.nest, carried.loading
            self.position += self.launch.call_words
        else:
            nest = self.bring(share)
        self.begin_share(nest, share)
        fetching, is_beside = self.fetch_ahead(nest)
        for mask in (0 if is_there else nest.call.early, nest.call.late):
            self.loading = self.add_boxes(nest, mask, FIRST_TILE, share.start, self.loading)
        yield from self.compute(nest, None if is_beside else fetching)

    def share(self) -> range:
        flags = call_at(self.program, self.launch.current).flags
        return take_share(table_at(self.program, self.launch), flags, self.block, self.blocks)

    def begin_share(self, nest: Nest, share: range) -> None:
        self.first_tile = share.start
        self.set_addresses(nest)

    def compute(self, nest: Nest, fetching: int | None) -> Iterator[None]:
        """`fetching`: what is awaited when the last tile is over."""
        self.begin_nest(nest)
        for _ in self.run_tiles(nest):
            yield
        if fetching is not None:
            self.fetching = fetching
            self.prepare_nest(nest)
        self.carried.loading = self.loading
        self.settle("storing")

    def bring(self, share: range) -> Nest:
        launch = self.launch
        self.fetch(launch.number, *launch.brought)
        nest = self.fetched(*launch.brought[:3], launch.number)
        self.take_tiles(nest, share)
        return nest

    def take_tiles(self, nest: Nest, share: range) -> None:
        """A table that has come becomes that of the tiles that a block takes."""
        nest.nest.tiles = share.stop
        tile = share.start
        for i in range(nest.nest.loop_count if tile else 0):
            loop = nest.loop(i)
            tile, place = divmod(tile, tiles_along(loop))
            loop.start = place * loop.tile
            loop.size = min(loop.extent - loop.start, loop.tile)
            self.move_dims(nest, loop, loop.dims, loop.read_count + loop.write_count)
        for i in range(nest.nest.loop_count if share.start else 0):
            self.fill_fields(nest, nest.loop(i))

    # What is brought of the next launch.

    def fetch_ahead(self, nest: Nest) -> tuple[int | None, bool]:
        """The request for the next launch's table, if this block brings it, and whether it is for the last tile."""
        call = nest.call
        self.carried.position = None
        if "TG_CARRIES" in self.program.defined:
            self.find_next(call)
        if self.behind is None:
            call.next_words = 0
            return None, False
        call.flags = call.flags | self.c["TG_NEXT_LATE"]
        is_beside = bool(call_at(self.program, self.behind.current).flags & self.c["TG_BESIDE"])
        self.carried.position = self.position = self.behind.current
        self.fetch(self.behind.number, *self.behind.brought)
        fetching = self.fetching
        if not is_beside:
            self.fetching = None
        return fetching, is_beside

    def find_next(self, own: Record) -> None:
        """The conductor runs what lies between: nests that come together are one behind the other there."""
        call, number, position, c = own, self.launch.number, self.position, self.c
        while call.next_words and not call.flags & c["TG_NEXT_LAUNCH"]:
            at, position = position, position + call.next_words
            call, number = call_at(self.program, at), number + 1
            while call.flags & c["TG_MORE"]:
                at += call.next_words
                call, number = call_at(self.program, at), number + 1
        if not call.next_words:
            return
        behind = Launch(number + 1, position, *following_of(call))
        flags = call_at(self.program, position).flags
        clusters = self.program.defined["TG_CLUSTERS"]
        width = 0
        if flags & c["TG_CARRIED"] and self.blocks <= clusters:
            width = width_of(self.program, flags, self.conductor.blocks)
        if self.block < width <= clusters:
            self.next_share = take_share(table_at(self.program, behind), flags, self.block, width)
        self.behind = behind if self.next_share else None

    def prepare_nest(self, nest: Nest) -> Nest | None:
        self.store_kept(nest)
        if self.fetching is None:
            return None
        assert self.behind is not None
        following = self.fetched(*self.behind.brought[:3], self.behind.number)
        if nest.call.flags & self.c["TG_SETTLE"]:
            self.settle("storing")
        if following.further is not None or following.call.flags & self.c["TG_MORE"]:
            raise DecodeError("a nest that is brought ahead comes together with another")
        self.take_tiles(following, self.next_share)
        self.loading = self.add_boxes(following, following.call.early, FIRST_TILE, self.next_share.start, self.loading)
        self.carried.nest = following
        return None
