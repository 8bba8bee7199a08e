"""Lowering for a hierarchy: a program as one array of words (runtime/cluster/tg_tile.h), and functions that walk it.

A table describes a kind of nest, and equal ones are emitted once. A call says where a nest's operands live and where it
works in scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilegrad.analysis.tables import CALL_WORDS, table_of
from tilegrad.codegen.c import (
    Call,
    Comment,
    Declare,
    Item,
    Line,
    Statement,
    Verbatim,
)
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.lowering import Lowering, filled
from tilegrad.ir.listing import ListedNest, Listing, Move, Wait
from tilegrad.ir.nest import Access
from tilegrad.ir.schedule import Launch, Tiling
from tilegrad.ops.kernels import KernelSignature
from tilegrad.sequence.calls import NestCall, entry_calls

IN_STATE, IN_SCRATCH, ABSENT = 0x80000000, 0x40000000, 0xFFFFFFFF
DRAIN, LEAVE, NEXT_LATE, AT_ONCE, SETTLE = 1, 2, 4, 8, 16
FIRST_SHIFT = 16  # TG_FIRST_SHIFT
MOVE_IN, MOVE_WAIT = 1, 2
WORDS_WIDTH = 114
CALL = """#define CALL(name, ...) \\
    static void call_##name(void *const *at, const void *args, int core_id, int core_count) \\
    { \\
        tg_##name(__VA_ARGS__, args, core_id, core_count); \\
    }"""
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
    is_at_once: bool = False
    moves: int = 0

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
            pieces[0] = f"/* {comment} */ {pieces[0]}"
        self.lines += [f"    {line}" for line in f"{filled(pieces, WORDS_WIDTH, ',')},".split("\n")]
        return at

    def item(self, name: str) -> Item:
        return Verbatim("\n".join([f"static const uint32_t {name}[] = {{", *(self.lines or ["    0,"]), "};"]))


class ClusterLowering(Lowering):
    """Every nest runs through the tile runtime; tensors of L3 are staged around the launches that use them."""

    parameter = "tg_tiles *t"
    argument = "t"

    def __init__(self, listing: Listing, kernels: KernelSet) -> None:
        plan = listing.plan
        super().__init__(plan, kernels)
        target = plan.schedule.target
        self.longest_bytes = target.engine(target.home, target.compute).longest_bytes
        self.words = _Words()
        self.tables: dict[tuple[int, ...], int] = {}
        self.kernel_calls: dict[str, Line] = {}
        self.inferred = {launch.node.name for launch in plan.schedule.entries["infer"].launches}
        self.calls: dict[str, list[_Call]] = {entry: [] for entry in plan.entries}
        self.encoded = {entry: entry_calls(own) for entry, own in listing.entries.items()}
        self.listed: dict[str, dict[tuple[int, int], tuple[ListedNest, NestCall]]] = {
            entry: {
                (nest.launch, nest.number): (nest, call)
                for nest, call in zip(own.nests, self.encoded[entry].nests, strict=True)
            }
            for entry, own in listing.entries.items()
        }

    def has_one_place(self, launch: Launch) -> bool:
        """A function of the forward pass serves infer and step; where its operands are is in their calls."""
        return launch.node.name not in self.inferred

    def nest(self, entry: str, number: int, k: int) -> tuple[Statement, ...]:
        launch = self.launch(entry, number)
        listed, own = self.listed[entry][number, k]
        nest, tiling = listed.nest, listed.tiling
        signature = self.signature(launch, nest)
        words = listed.table or table_of(launch.node.op, nest, tiling, self.longest_bytes)
        table = self._table(signature, words, tiling)
        homes = tuple(
            own.taken[o.name] + IN_SCRATCH if o.name in own.taken else self._home(entry, number, o.value)
            for o in nest.operands
        )
        self.calls[entry].append(_call(table, len(words), listed, own, homes))
        run = RUN_WHOLE if tiling is None else RUN
        return (Comment(self.describe(entry, number, k)), Call(run, ("t", "1", "__func__")))

    def note(self, entry: str, number: int, k: int, operand: str) -> str:
        _, own = self.listed[entry][number, k]
        return " left in L1" if operand in own.taken else ""

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
            self.kernel_calls[name] = Line(f"CALL({signature.name}, {pointers})")
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
        names = tuple(self.kernel_calls) or ("0",)
        return [
            Comment("How kernels are called from an array of addresses."),
            Verbatim(CALL),
            *self.kernel_calls.values(),
            Line(),
            Declare("static tg_kernel_call *const", "kernels[]", items=names),
            Line(),
            Comment("Tables of the kinds of nests, then each entry's calls (tg_tile.h)."),
            self.words.item("words"),
            Declare("static const tg_program", "program", items=("kernels", "words", "sizeof words")),
            *entries,
        ]

    def _entry(self, entry: str, calls: Sequence[_Call]) -> Item:
        words: list[int] = []
        for i, call in enumerate(calls):
            following = calls[i + 1] if i + 1 < len(calls) else None
            link, flags = (0, 0, 0, 0), call.flags
            if following is not None:
                flags |= NEXT_LATE * following.is_late | AT_ONCE * following.is_at_once
                link = (following.words, following.table, following.table_words, following.scratch)
            words += [*link, call.slots, *call.masks, flags, call.moves, *call.homes]
        position = self.words.add(words, f"calls of {entry}") if words else 0
        first = [position, 0, 0, 0, 0]
        if calls:
            is_tiled = self.plan.schedule.is_tiled
            first = [position, calls[0].words * is_tiled, calls[0].table, calls[0].table_words, calls[0].scratch]
        encoded = self.encoded[entry]
        moves = [move for own in encoded.nests for move in own.moves] + list(encoded.last_moves)
        at = self.words.add([word for move in moves for word in _move(move)], f"moves of {entry}") if moves else 0
        numbers = [*first, at, len(encoded.last_moves)]
        return Declare("static const tg_entry", f"{entry}_entry", items=(f'"{entry}"', *map(str, numbers)))

    def at_start(self, entry: str) -> tuple[Statement, ...]:
        return (Declare("tg_tiles", "tiles, *t", "&tiles"), Call("tg_start", ("t", "m", "&program", f"&{entry}_entry")))

    def at_end(self, entry: str) -> tuple[Statement, ...]:
        return (Call("tg_stop", ("t", f"&{entry}_entry")),)


def _move(event: Move | Wait) -> list[int]:
    """The words of what L3 does."""
    if isinstance(event, Wait):
        return [4 * event.transfer + MOVE_WAIT]
    return [4 * event.transfer + MOVE_IN * event.inward, event.l2_offset, event.l3_offset, event.size_bytes]


def _call(table: int, table_words: int, listed: ListedNest, own: NestCall, homes: tuple[int, ...]) -> _Call:
    if listed.place is None:
        return _Call(table, table_words, 0, 0, (0, 0, 0), 0, homes, moves=len(own.moves))
    early = late = results = 0
    for i, operand in enumerate(listed.nest.operands):
        if operand.value is not None:
            results |= (operand.access is Access.WRITE) << i
            early |= (operand.name in own.early) << i
            late |= (operand.name in own.late) << i
    flags = DRAIN * own.drains | LEAVE * own.leaves | SETTLE * own.settles
    masks = (_from_first(early), _from_first(late), _from_first(results))
    where = (listed.place.table_offset, listed.place.slots_offset)
    return _Call(table, table_words, *where, masks, flags, homes, own.is_fetched_late, own.at_once, len(own.moves))


def _from_first(mask: int) -> int:
    """Bits from the first one on, and above them which that is."""
    first = (mask & -mask).bit_length() - 1 if mask else 0
    return mask >> first | first << FIRST_SHIFT


def _tiling_text(tiling: Tiling | None) -> str:
    if tiling is None:
        return "computed where the operands live"
    loops = ", ".join(f"{loop.axis} {loop.tile} of {loop.extent}" for loop in tiling.loops) or "one tile"
    mode = "double" if tiling.is_double else "single"
    return f"tiles: {loops}; {tiling.tile_count} in all, {mode} buffered, {tiling.scratch_bytes} bytes of L1"
