"""Lowering for a hierarchy: a program as one array of words (runtime/cluster/tg_tile.h), and functions that walk it.

A table describes a kind of nest, and equal ones are emitted once. A call says where a nest's operands live and where it
works in scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilegrad.codegen.c import (
    Assign,
    Call,
    Comment,
    Declare,
    Function,
    Item,
    Line,
    Statement,
    Verbatim,
    comment_text,
)
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.lowering import Lowering, filled
from tilegrad.ir.nest import Access, Nest
from tilegrad.ir.plan import NestPlace, Plan, Staging
from tilegrad.ir.schedule import Tiling
from tilegrad.memory.scratch import TableMaker
from tilegrad.ops.kernels import KernelSignature
from tilegrad.scheduling.tables import CALL_WORDS

IN_STATE, ABSENT = 0x80000000, 0xFFFFFFFF
DRAIN, LEAVE, NEXT_LATE = 1, 2, 4
RUN, RUN_WHOLE = "tg_run_nests", "tg_run_whole"


@dataclass(frozen=True)
class _Call:
    """One nest of an entry: its table, and what is its own."""

    table: int
    table_words: int
    scratch: int
    slots: int
    masks: tuple[int, int, int]  # operands that come early, that come late, and results
    flags: int
    homes: tuple[int, ...]
    is_late: bool = False

    @property
    def words(self) -> int:
        return CALL_WORDS + len(self.homes)


@dataclass
class _Words:
    """The program's words as they grow."""

    lines: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, words: Iterable[int], comment: str | None = None) -> int:
        """Where they are."""
        at = self.count
        pieces = [str(word) if word < 1 << 24 else f"0x{word:08x}" for word in words]
        self.count += len(pieces)
        if comment is not None:
            self.lines.append(f"    /* {comment} */")
        self.lines += [f"    {line}" for line in f"{filled(pieces)},".split("\n")]
        return at

    def item(self, name: str) -> Item:
        return Verbatim("\n".join([f"static const uint32_t {name}[] = {{", *(self.lines or ["    0,"]), "};"]))


class ClusterLowering(Lowering):
    """Every nest runs through the tile runtime; tensors of L3 are staged around the launches that use them."""

    parameter = "tg_tiles *t"
    argument = "t"

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        super().__init__(plan, kernels)
        target = plan.schedule.target
        self.maker = TableMaker(target.engine(target.home, target.compute).longest_bytes)
        self.words = _Words()
        self.tables: dict[tuple[int, ...], int] = {}
        self.kernel_calls: dict[str, Function] = {}
        self.calls: dict[str, list[_Call]] = {entry: [] for entry in plan.entries}
        self.places: dict[str, dict[tuple[int, int], NestPlace]] = {
            entry: {(place.launch, place.nest): place for place in own.places} for entry, own in plan.entries.items()
        }

    def nest(self, entry: str, number: int, k: int) -> tuple[Statement, ...]:
        launch = self.launch(entry, number)
        nest, tiling = launch.nests[k], launch.tilings[k] if launch.tilings else None
        signature = self.signature(launch, nest)
        place = self.places[entry].get((number, k))
        if place is None:
            types = self.types(entry)
            element_bytes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
            words = self.maker.table(launch.node.op, nest, tiling, element_bytes)
        else:
            words = place.table
        table = self._table(signature, words, tiling)
        homes = tuple(self._home(entry, number, operand.value) for operand in nest.operands)
        self.calls[entry].append(_call(table, len(words), place, nest, homes))
        run = RUN_WHOLE if tiling is None else RUN
        return (Comment(self.describe(entry, number, k)), Call(run, ("t", "1", "__func__")))

    def _table(self, signature: KernelSignature, words: Sequence[int], tiling: Tiling | None) -> int:
        kernel = self._kernel(signature)
        key = (kernel, *words[1:])
        if key not in self.tables:
            self.tables[key] = self.words.add(key, f"{signature.name}: {_tiling_text(tiling)}")
        return self.tables[key]

    def _kernel(self, signature: KernelSignature) -> int:
        """The number of the function that calls a kernel from an array of addresses."""
        name = f"call_{signature.name}"
        if name not in self.kernel_calls:
            pointers = ", ".join(f"at[{i}]" for i in range(len(signature.pointers)))
            parameters = ("void *const *at", "const void *args", "int core_id", "int core_count")
            call = f"    tg_{signature.name}({pointers}, args, core_id, core_count);"
            self.kernel_calls[name] = Function("static void", name, parameters, (Line(call),))
        return list(self.kernel_calls).index(name)

    def _home(self, entry: str, number: int, value: str | None) -> int:
        if value is None:
            return ABSENT
        address = self.plan.address(entry, value, number)
        return address.offset + (IN_STATE if address.region == "state" else 0)

    def body(self, statements: Sequence[Statement]) -> list[Statement]:
        """Nests that follow each other are one call, behind what is said of them."""
        result: list[Statement] = []
        comments: list[Statement] = []  # behind the last nest: of the next one, or of something else
        count = 0
        for statement in statements:
            if isinstance(statement, Comment):
                comments.append(statement)
                continue
            if isinstance(statement, Call) and statement.function in (RUN, RUN_WHOLE):
                if count:
                    result.pop()
                count += 1
                result += [*comments, replace(statement, arguments=("t", str(count), "__func__"))]
            else:
                count = 0
                result += [*comments, statement]
            comments = []
        return result

    def items(self) -> list[Item]:
        entries = [self._entry(entry, calls) for entry, calls in self.calls.items()]
        separated: list[Item] = []
        for item in self.kernel_calls.values():
            separated += [Line(), item]
        names = tuple(self.kernel_calls) or ("0",)
        return [
            *separated,
            Line(),
            Declare("static tg_kernel_call *const", "kernels[]", items=names),
            Line(),
            Comment("Tables of the kinds of nests, then each entry's calls (tg_tile.h)."),
            self.words.item("words"),
            Declare("static const tg_program", "program", items=("kernels", "words", "sizeof words")),
            *entries,
        ]

    def _entry(self, entry: str, calls: Sequence[_Call]) -> Item:
        position = self.words.count
        for i, call in enumerate(calls):
            following = calls[i + 1] if i + 1 < len(calls) else None
            link, flags = (0, 0, 0, 0), call.flags
            if following is not None:
                flags |= NEXT_LATE * following.is_late
                link = (following.words, following.table, following.table_words, following.scratch)
            self.words.add(
                (*link, call.slots, *call.masks, flags, *call.homes), f"calls of {entry}" if i == 0 else None
            )
        numbers = [position, 0, 0, 0, 0]
        if calls:
            is_tiled = self.plan.schedule.is_tiled
            numbers = [position, calls[0].words * is_tiled, calls[0].table, calls[0].table_words, calls[0].scratch]
        return Declare("static const tg_entry", f"{entry}_entry", items=(f'"{entry}"', *map(str, numbers)))

    def _staged(self, entry: str) -> tuple[Staging, ...]:
        return self.plan.entries[entry].staging

    def at_start(self, entry: str) -> tuple[Statement, ...]:
        return (Declare("tg_tiles", "tiles, *t", "&tiles"), Call("tg_start", ("t", "m", "&program", f"&{entry}_entry")))

    def at_end(self, entry: str) -> tuple[Statement, ...]:
        end = len(self.plan.schedule.entries[entry].launches)
        return (*self.before(entry, end), Call("tg_stop", ("t", f"&{entry}_entry")))

    def before(self, entry: str, number: int) -> tuple[Statement, ...]:
        """What left must have left, and what is about to leave must go, before anything comes into its place."""
        previous = self._previous(entry, number)
        statements: list[Statement] = []
        moves = list(enumerate(self._staged(entry)))
        due = [(i, move) for i, move in moves if previous < move.wait <= number]
        started = [(i, move) for i, move in moves if previous < move.start <= number]
        statements += [self._wait(i) for i, move in due if move.start <= previous]
        for inward in (False, True):
            for i, move in started:
                if move.inward is inward:
                    statements += self._start(i, move)
            statements += [self._wait(i) for i, move in due if move.inward is inward and move.start > previous]
        return tuple(statements)

    @staticmethod
    def _wait(i: int) -> Statement:
        return Call("tg_l3_wait", (f"t->m->l3_requests[{i}]",))

    def _previous(self, entry: str, number: int) -> int:
        """The launch with nests before this one: statements of launches without any (views) move to the next."""
        launches = self.plan.schedule.entries[entry].launches
        return next((i for i in range(number - 1, -1, -1) if launches[i].nests), -1)

    def _start(self, i: int, move: Staging) -> list[Statement]:
        way = "from L3" if move.inward else "to L3"
        return [
            Comment(f"{comment_text(move.tensor)} {way}, {move.size_bytes} bytes"),
            Assign(
                f"t->m->l3_requests[{i}]",
                f"tg_l3_start(t->arena + {move.l2_offset}, {move.l3_offset}u, {move.size_bytes}, {int(move.inward)})",
            ),
        ]


def _call(table: int, table_words: int, place: NestPlace | None, nest: Nest, homes: tuple[int, ...]) -> _Call:
    if place is None:
        return _Call(table, table_words, 0, 0, (0, 0, 0), 0, homes)
    early = late = results = 0
    for i, operand in enumerate(nest.operands):
        if operand.value is not None:
            results |= (operand.access is Access.WRITE) << i
            early |= (operand.name in place.early) << i
            late |= (operand.access is Access.READ and operand.name not in place.early) << i
    flags = DRAIN * place.drains | LEAVE * place.leaves
    masks = (early, late, results)
    where = (place.table_offset, place.slots_offset)
    return _Call(table, table_words, *where, masks, flags, homes, place.is_fetched_late)


def _tiling_text(tiling: Tiling | None) -> str:
    if tiling is None:
        return "computed where the operands live"
    loops = ", ".join(f"{loop.axis} {loop.tile} of {loop.extent}" for loop in tiling.loops) or "one tile"
    mode = "double" if tiling.is_double else "single"
    return f"tiles: {loops}; {tiling.tile_count} in all, {mode} buffered, {tiling.scratch_bytes} bytes of L1"
