"""Reads a program's constant words as the tile runtime does, and says what it would do.

What follows mirrors tg_tile.c function by function, on lists of words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from math import prod

from tests.sequence.emitted_words import (
    U32,
    DecodeError,
    Nest,
    Program,
    Record,
    constants,
    has_calls,
    move_words,
    words_in,
)

Action = tuple[object, ...]
"""(kind, ...): an event in plain numbers, as words can say it."""

Address = tuple[object, ...] | None
"""Where an operand is; None where it is absent."""

FIRST_TILE, NEXT_TILE, RESULTS = range(3)


def following_of(call: Record) -> tuple[int, int, int, int]:
    """The nest behind it: words of its call, its table, words of that, and where both come to."""
    return call.next_words, call.next_table, call.next_table_words, call.next_scratch


@dataclass
class _Leaving:
    tile: int
    operand: int
    parts: list[tuple[object, ...]]


class Machine:
    """One entry while it runs. `actions` are what it does."""

    def __init__(self, program: Program, entry: str, longest_bytes: int) -> None:
        self.program = program
        self.entry_name, self.entry = entry, program.entries[entry]
        self.longest = longest_bytes
        self.position = self.entry["position"]
        self.move = self.entry["moves"]
        self.requests: Iterator[int] = count()
        self.loading: int | None = None
        self.storing: int | None = None
        self.fetching: int | None = None
        self.done: list[Action] = []
        self.at: list[list[Address]] = [[], []]
        self.turn = 0
        self.steps = self.moved_loops = self.tile = self.first_tile = 0
        self.leaving: list[_Leaving] = []
        self.before: Nest | None = None
        self.is_running = False
        self.ahead: dict[int, int | None] = {}
        self.further = 0
        self.current: Nest | None = None
        self.c = constants()

    def actions(self) -> Iterator[Action]:
        """As they come: whoever compares may stop at the first difference."""
        try:
            for _ in self._run():
                yield from self.done
                self.done.clear()
            yield from self.done
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise DecodeError(str(error)) from error

    def _run(self) -> Iterator[None]:
        entry = self.entry
        if has_calls(self.program, entry) and not entry["call_words"]:
            yield from self._run_whole()
        elif has_calls(self.program, entry):
            self.start(0, entry["call_words"], entry["table"], entry["table_words"], entry["scratch"])
            while not self.is_over():
                yield
                yield from self.run_next()
        self.make_moves(self.entry["last_moves"])
        self.settle("storing")

    def start(self, number: int, call_words: int, table: int, table_words: int, scratch: int) -> None:
        self.fetch(number, call_words, table, table_words, scratch)
        self.current = self.fetched(call_words, table, table_words, number)
        self.set_addresses(self.current)

    def is_over(self) -> bool:
        return self.current is None

    def run_next(self) -> Iterator[None]:
        assert self.current is not None
        return self.run_nest(self.current)

    # Requests.

    def settle(self, name: str) -> None:
        request = getattr(self, name)
        if request is not None:
            self.done.append(("wait", request))
        setattr(self, name, None)

    def open(self) -> int:
        return next(self.requests)

    def far(self, home: int, offset: int) -> tuple[str, int]:
        if home & self.c["TG_IN_STATE"]:
            return "state", (home & ~self.c["TG_IN_STATE"]) + offset
        return "arena", home + offset

    def pieces(self, near: int, far: int, row_bytes: int, rows: int, stride: int) -> Iterator[tuple[int, ...]]:
        most = self.longest // row_bytes
        if most == 0:
            for row in range(rows):
                done = 0
                while done < row_bytes:
                    left = row_bytes - done
                    piece = left if left < self.longest else self.longest & ~7
                    yield near + row * row_bytes + done, far + row * stride + done, piece, 1, 0
                    done += piece
            return
        while rows > 0:
            piece = min(rows, most)
            yield near, far, row_bytes, piece, stride
            near, far, rows = near + piece * row_bytes, far + piece * stride, rows - piece

    def box_parts(self, nest: Nest, i: int) -> list[tuple[object, ...]]:
        """Of the box that an operand's words say; none where it is empty."""
        o = nest.operand(i)
        region, far = self.far(nest.home(i), o.far)
        near = nest.call.slots + o.scratch
        if o.levels == 0:
            return [(near, region, far, o.row_bytes, o.rows, o.stride)]
        if o.row_bytes == 0 or o.rows == 0:
            return []
        count = nest.words[o.levels]
        if count > 8 or o.rows > 100_000 or o.row_bytes > 1 << 24:
            raise DecodeError("a box without end")
        levels = [tuple(nest.words[o.levels + 1 + 2 * k :][:2]) for k in range(count)]
        inner = o.row_bytes * o.rows
        if prod(n for n, _ in levels) > 100_000:
            raise DecodeError("a box without end")
        parts: list[tuple[object, ...]] = []
        for index in product(*(range(n) for n, _ in reversed(levels))):
            away = far + sum(k * stride for k, (_, stride) in zip(index, reversed(levels), strict=True))
            one = self.pieces(near, away, o.row_bytes, o.rows, o.stride)
            if inner <= self.longest:
                one = iter([(near, away, o.row_bytes, o.rows, o.stride)])
            parts += [(at, region, *rest) for at, *rest in one]
            near += inner
        return parts

    def add_boxes(self, nest: Nest, mask: int, what: int, tile: int, request: int | None) -> int | None:
        i, mask = divmod(mask, 1 << self.c["TG_FIRST_SHIFT"])
        while mask:
            if mask & 1:
                o = nest.operand(i)
                if what != RESULTS and self.is_left(nest.home(i)):
                    if what == FIRST_TILE:
                        raise DecodeError("what lies in scratchpad is requested")
                    mask, i = mask >> 1, i + 1
                    continue
                if what == NEXT_TILE:
                    o.scratch = o.turn - o.scratch
                request = self.add_box(nest, i, tile, request)
                if what == RESULTS:
                    o.scratch = o.turn - o.scratch
            mask, i = mask >> 1, i + 1
        return request

    def add_box(self, nest: Nest, i: int, tile: int, request: int | None) -> int | None:
        parts = self.box_parts(nest, i)
        if parts:
            request = self.open() if request is None else request
            kind = "store" if nest.operand(i).access else "load"
            self.done.append((kind, request, nest.number, tile, i, tuple(parts)))
        return request

    # Calls and tables.

    def fetch(self, number: int, call_words: int, table: int, table_words: int, scratch: int) -> None:
        self.fetching = self.open()
        parts = [*self.words(scratch, call_words)]
        parts += self.words(scratch + 4 * call_words, table_words) if table_words else []
        self.done.append(("fetch", self.fetching, number, tuple(parts)))
        self.position += call_words

    def words(self, near: int, count: int) -> Iterator[tuple[int, int]]:
        if count * 4 <= self.longest:
            yield near, count * 4
        else:
            yield from ((at, size) for at, _, size, _, _ in self.pieces(near, 0, count * 4, 1, 0))

    def fetched(self, call_words: int, table: int, table_words: int, number: int) -> Nest:
        self.settle("fetching")
        start, words = self.position - call_words, self.program.words
        if not table_words:
            return self.together(number, start, table, self.position)
        return self.with_arguments(
            Nest(number, list(words[start : self.position]), list(words[table : table + table_words]), table)
        )

    def with_arguments(self, nest: Nest) -> Nest:
        nest.words += [0] * nest.nest.arg_count if nest.nest.arg_count < 1000 else []
        return nest

    def together(self, number: int, at: int, table: int, end: int) -> Nest:
        """A nest and those that have come with it."""
        words = self.program.words
        call_words = list(words[at:table])
        call = Record("tg_call", call_words, 0)
        has_more = bool(call.flags & self.c["TG_MORE"])
        stop = at + call.next_words if has_more else end
        if not at < table < stop <= end:
            raise DecodeError("nests that come together do not lie side by side")
        found = self.with_arguments(Nest(number, call_words, list(words[table:stop]), table))
        if has_more:
            found.further = self.together(number + 1, stop, at + call.next_table, end)
            found.further.joins = True
        return found

    def load_further(self, nest: Nest, is_early: bool) -> None:
        further, number = nest.further, 0
        while further is not None:
            mask, which = further.call.early if is_early else further.call.late, self.ahead_for(further, number)
            self.ahead[which] = self.add_boxes(further, mask, FIRST_TILE, 0, self.ahead.get(which))
            further, number = further.further, number + 1

    def ahead_for(self, nest: Nest, number: int) -> int:
        return self.c["TG_AHEAD_LAST"] if nest.further is None else min(number, self.c["TG_AHEAD_OTHERS"])

    def make_moves(self, count: int) -> None:
        words, c = self.program.words, self.c
        for _ in range(count):
            first = words[self.move]
            if first & c["TG_MOVE_WAIT"]:
                self.done.append(("wait l3", first >> c["TG_MOVE_SHIFT"]))
            else:
                own = words[self.move + 1 : self.move + move_words(first)]
                rows = own[3:] if first & c["TG_MOVE_ROWS"] else (1, 0)
                size = own[2] * rows[0]
                self.done.append(("move", first >> c["TG_MOVE_SHIFT"], *own[:2], size, first & c["TG_MOVE_IN"], *rows))
            self.move += move_words(first)

    # Tiles.

    def move_dims(self, nest: Nest, loop: Record, at: int, count: int) -> None:
        for i in range(count):
            dim = nest.dim(at, i)
            start, size = loop.start, loop.size
            if dim.divisor:
                reach = dim.coefficient * (size - 1)
                low = dim.coefficient * start + dim.low + min(reach, 0)
                high = dim.coefficient * start + dim.high + max(reach, 0)
                if dim.divisor > 1:
                    low = (low + dim.divisor - 1) // dim.divisor if low > 0 else 0
                    high = -1 if high < 0 else high // dim.divisor
                start = max(low, 0)
                size = max((high + 1 if high < dim.extent else dim.extent) - start, 0)
            operand = Record("tg_operand", nest.words, dim.operand)
            operand.far = operand.far + (start - dim.start) * dim.far_stride
            dim.start = start
            if dim.shape:
                dim.size = size
                nest.words[dim.shape] = dim.factor * size % U32

    def step(self, nest: Nest, loop: Record, dim: Record) -> None:
        operand = Record("tg_operand", nest.words, dim.operand)
        operand.far = operand.far + dim.far_step
        dim.start = loop.start
        if dim.shape:
            dim.size = loop.size
            nest.words[dim.shape] = dim.factor * loop.size % U32

    def advance(self, nest: Nest) -> tuple[int, int, int]:
        loops = reads = results = 0
        while True:
            if loops >= nest.nest.loop_count:
                raise DecodeError("a tile behind the last")
            loop = nest.loop(loops)
            loop.start = loop.start + loop.tile
            left = loop.extent - loop.start
            if left <= 0:
                loop.start, left = 0, loop.tile
            loop.size = min(left, loop.tile)
            loops, reads, results = loops + 1, reads | loop.reads, results | loop.results
            self.move_dims(nest, loop, loop.dims, loop.read_count)
            if loop.start > 0:
                return loops, reads, results

    def are_at_end(self, nest: Nest, mask: int, is_first: bool) -> int:
        for i in range(nest.nest.loop_count):
            loop = nest.loop(i)
            if mask >> i & 1 and (loop.start != 0 if is_first else loop.start + loop.size != loop.extent):
                return 0
        return 1

    def fill_fields(self, nest: Nest, loop: Record) -> None:
        c, words, args = self.c, nest.words, nest.nest.args
        value = before = 0
        for i in range(loop.field_count):
            field = Record("tg_field", words, loop.fields + i * words_in("tg_field"))
            of, by, kind = words[field.of], field.by, field.kind
            if kind == c["TG_TIMES"]:
                value *= of
            else:
                before = words[args + field.word] if kind == c["TG_ADD"] else 0
                if kind == c["TG_COPY"]:
                    value = of
                elif kind == c["TG_ORIGIN"]:
                    dim = Record("tg_dim", words, field.of)
                    value = dim.coefficient * loop.start + by - dim.divisor * dim.start
                elif kind == c["TG_SET"]:
                    value = by
                elif kind in (c["TG_SCALE"], c["TG_ADD"]):
                    value = by * of
                else:
                    value = self.are_at_end(nest, by, kind == c["TG_FIRST"])
            words[args + field.word] = (before + value) % U32

    def turn_args(self, nest: Nest, loops: int) -> None:
        head = nest.nest
        start = head.args
        head.args = head.args_turn - head.args
        if self.steps == 1:
            nest.words[head.args : head.args + head.arg_count] = nest.words[start : start + head.arg_count]
        for i in range(loops):
            self.fill_fields(nest, nest.loop(i))

    def is_left(self, home: int) -> bool:
        return bool(home & self.c["TG_IN_SCRATCH"])

    def address(self, nest: Nest, i: int) -> Address:
        home = nest.home(i)
        if home == self.c["TG_ABSENT"]:
            return None
        if self.is_left(home):
            return "L1", (home & ~self.c["TG_IN_SCRATCH"]) + nest.operand(i).far
        return "L1", nest.call.slots + nest.operand(i).scratch

    def set_addresses(self, nest: Nest) -> None:
        self.at[self.turn] = [self.address(nest, i) for i in range(nest.nest.operand_count)]

    def turn_step(self, loops: int) -> int:
        both = max(loops, self.moved_loops)
        self.moved_loops = loops
        self.steps += 1
        self.turn ^= 1
        return both

    def keep_result(self, nest: Nest, i: int) -> None:
        o = nest.operand(i)
        region, far = self.far(nest.home(i), o.far)
        part = (nest.call.slots + o.scratch, region, far, o.row_bytes, o.rows, o.stride)
        if not o.access:
            raise DecodeError("what is read leaves")
        self.leaving.append(_Leaving(self.tile, i, [part]))
        o.scratch = o.turn - o.scratch

    def store_kept(self, nest: Nest) -> None:
        if self.leaving:
            self.storing = self.open()
        for one in self.leaving:
            self.done.append(("store", self.storing, nest.number, one.tile, one.operand, tuple(one.parts)))
        self.leaving = []

    def turn_all(self, nest: Nest, loops: int) -> None:
        for i in range(loops):
            loop = nest.loop(i)
            at = loop.dims + loop.read_count * words_in("tg_dim")
            self.move_dims(nest, loop, at, loop.write_count)
        both = self.turn_step(loops)
        self.set_addresses(nest)
        if nest.nest.arg_count:
            self.turn_args(nest, both)

    def prepare_simply(self, nest: Nest, loop: Record) -> None:
        before = list(self.at[self.turn])
        both = self.turn_step(1)
        loop.size = min(loop.extent - loop.start, loop.tile)
        if self.steps == 1 or len(self.at[self.turn]) != len(before):
            self.at[self.turn] = list(before)
        at = self.at[self.turn]
        slots = nest.call.slots
        for i in range(loop.read_count + loop.write_count):
            dim = nest.dim(loop.dims, i)
            operand = Record("tg_operand", nest.words, dim.operand)
            if i < loop.read_count:
                self.step(nest, loop, dim)
                if nest.home(dim.index) & self.c["TG_IN_SCRATCH"]:
                    at[dim.index] = self.address(nest, dim.index)
                    continue
                operand.scratch = operand.turn - operand.scratch
                if self.loading is None:
                    self.loading = self.open()
                region, far = self.far(nest.home(dim.index), operand.far)
                part = (slots + operand.scratch, region, far, operand.row_bytes, operand.rows, operand.stride)
                self.done.append(("load", self.loading, nest.number, self.tile + 1, dim.index, (part,)))
            else:
                self.keep_result(nest, dim.index)
                self.step(nest, loop, dim)
            at[dim.index] = ("L1", slots + operand.scratch)
        if both > 1 or self.steps == 1:
            self.set_addresses(nest)
        if nest.nest.arg_count:
            self.turn_args(nest, both)

    def prepare_next(self, nest: Nest) -> tuple[int, int, int]:
        head, innermost = nest.nest, nest.loop(0)
        if head.is_double:
            self.store_kept(nest)
        if innermost.is_simple and innermost.start + innermost.tile < innermost.extent:
            innermost.start = innermost.start + innermost.tile
            self.prepare_simply(nest, innermost)
            return 0, 0, 0
        loops, reads, results = self.advance(nest)
        if head.is_double:
            self.loading = self.add_boxes(nest, reads, NEXT_TILE, self.tile + 1, None)
        if not head.is_large:
            for i in range(head.operand_count):
                if results >> i & 1:
                    self.keep_result(nest, i)
            self.turn_all(nest, loops)
        return loops, reads, results

    def finish_step(self, nest: Nest, moved: tuple[int, int, int]) -> None:
        loops, reads, results = moved
        self.settle("storing")
        if nest.nest.is_large:
            self.storing = self.add_boxes(nest, results, RESULTS, self.tile, None)
            self.turn_all(nest, loops)
        if nest.nest.is_double:
            return
        self.store_kept(nest)
        self.settle("storing")
        self.loading = self.add_boxes(nest, reads, NEXT_TILE, self.tile + 1, None)

    def prepare_nest(self, nest: Nest) -> Nest | None:
        self.store_kept(nest)
        if self.fetching is None:
            return None
        call_words, table, table_words, _ = following_of(nest.call)
        following = self.fetched(call_words, table, table_words, nest.number + 1)
        if nest.call.flags & self.c["TG_SETTLE"]:
            self.settle("storing")
        self.loading = self.add_boxes(following, following.call.early, FIRST_TILE, 0, self.loading)
        self.load_further(following, is_early=True)
        self.turn ^= 1
        self.set_addresses(following)
        return following

    def begun(self, nest: Nest) -> tuple[object, ...]:
        ranges = tuple((nest.loop(i).start, nest.loop(i).size) for i in range(nest.nest.loop_count))
        kernel, args = self.arguments(nest)
        return ("begin", nest.number, self.tile, kernel, ranges, tuple(self.at[self.turn]), args)

    def arguments(self, nest: Nest) -> tuple[str, tuple[int, ...]]:
        kernel, at = self.program.kernels_of(nest.nest.kernel), nest.nest.args
        if kernel not in self.program.argument_counts:
            raise DecodeError(f"nobody asked for {kernel}")
        return kernel, tuple(nest.words[at : at + self.program.argument_counts[kernel]])

    def run_nest(self, nest: Nest) -> Iterator[None]:
        call, flags, c = nest.call, nest.call.flags, self.c
        if not self.is_running:
            self.make_moves(call.moves)
            self.done.append(("enter", nest.number))
            if flags & c["TG_DRAIN"]:
                self.settle("storing")
            if flags & c["TG_LATE"]:
                self.loading = self.add_boxes(nest, call.late, FIRST_TILE, 0, self.loading)
        elif call.moves:
            raise DecodeError("moves of a nest that begins at once are never made")
        if not nest.joins:
            self.expect_none_forgotten(nest)
        self.begin_nest(nest)
        if nest.further is not None:
            self.go_on(nest, nest.further)
            return
        following: Nest | None = None
        for found in self.run_tiles(nest):
            following = found
            yield
        if not flags & c["TG_LEAVE"]:
            self.settle("storing")
        self.current = following
        if following is None and call.next_words:
            self.start(nest.number + 1, *following_of(nest.call))

    def expect_none_forgotten(self, nest: Nest) -> None:
        """What is late is requested where the first of those that come together says so; its own, if it has a turn."""
        is_told = bool(nest.call.flags & self.c["TG_LATE"])
        late = [] if is_told and not self.is_running else [nest.call.late]
        further = nest.further
        while further is not None:
            late += [] if is_told else [further.call.late]
            further = further.further
        if any(late):
            raise DecodeError("operands that are late are never requested")

    def begin_nest(self, nest: Nest) -> None:
        before, last_tile, self.tile = self.before, self.tile, self.first_tile
        begun = self.begun(nest)
        if self.is_running:
            assert before is not None
            self.done.append(("end", before.number, last_tile))
            if before.call.flags & self.c["TG_SETTLE"] or before.further is None:
                self.settle("storing")
            self.done.append(("enter", nest.number))
        self.settle("loading")
        self.done.append(begun)
        if self.is_running and before is not None and before.call.results:
            self.storing = self.add_boxes(before, before.call.results, RESULTS, before.nest.tiles - 1, self.storing)
        if nest.call.flags & self.c["TG_LATE"] and nest.further is not None:
            self.settle("storing")
            self.load_further(nest, is_early=False)

    def go_on(self, nest: Nest, further: Nest) -> None:
        self.is_running, self.before, self.current = True, nest, further
        self.loading = self.ahead.pop(self.ahead_for(further, self.further), None)
        self.further = 0 if further.further is None else self.further + 1
        self.turn ^= 1
        self.set_addresses(further)

    def run_tiles(self, nest: Nest) -> Iterator[Nest | None]:
        head, call, c = nest.nest, nest.call, self.c
        if call.next_words and not call.flags & c["TG_NEXT_LATE"]:
            self.fetch(nest.number + 1, *following_of(nest.call))
        self.steps = self.moved_loops = 0
        while self.tile < head.tiles - 1:
            is_ahead = head.is_double == c["TG_AHEAD"]
            moved = (0, 0, 0) if is_ahead and self.tile else self.prepare_next(nest)
            self.done.append(("end", nest.number, self.tile))
            if head.is_large or not head.is_double:
                self.finish_step(nest, moved)
            else:
                self.settle("storing")
            self.tile += 1
            begun = self.begun(nest)
            coming, self.loading = self.loading, None
            if is_ahead and self.tile < head.tiles - 1:
                self.prepare_next(nest)
            coming, self.loading = self.loading, coming
            self.settle("loading")
            self.loading = coming
            self.done.append(begun)
            yield None
        following = self.prepare_nest(nest)
        self.before, self.is_running = nest, bool(call.flags & c["TG_AT_ONCE"])
        if not self.is_running:
            self.done.append(("end", nest.number, self.tile))
            self.settle("storing")
            self.storing = self.add_boxes(nest, call.results, RESULTS, self.tile, None)
        yield following

    def _run_whole(self) -> Iterator[None]:
        words, table, number = list(self.program.words), self.entry["table"], 0
        while True:
            call = Record("tg_call", words, self.position)
            count = Record("tg_nest", words, table).operand_count
            homes = words[self.position : self.position + words_in("tg_call") + count]
            nest = Nest(number, homes, words[table:], table)
            self.make_moves(call.moves)
            self.done.append(("enter", number))
            places = []
            for i in range(count):
                absent = nest.home(i) == self.c["TG_ABSENT"]
                places.append(None if absent else self.far(nest.home(i), nest.operand(i).far))
            kernel, args = self.arguments(nest)
            self.done += [("begin", number, 0, kernel, (), tuple(places), args), ("end", number, 0)]
            yield
            self.position += words_in("tg_call") + count
            table, number = call.next_table, number + 1
            if not call.next_words:
                return
