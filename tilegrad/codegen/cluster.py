"""Lowering for a hierarchy: a program as one constant object (runtime/cluster/tg_tile.h), and functions that walk it.

A table describes a kind of nest, and equal ones are emitted once. A call says where a nest's operands live and where it
works in scratchpad. Both are members of one struct, so that they find each other by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from typing import TypeAlias

from tilegrad.analysis.decode import Table, decode_table
from tilegrad.analysis.footprint import inner_loops
from tilegrad.analysis.layout import CALL, CONSTANTS, WORD_BYTES
from tilegrad.analysis.tables import table_of
from tilegrad.codegen import c
from tilegrad.codegen.chains import Chains
from tilegrad.codegen.interface import c_string
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.lowering import Body, First, Lowering, Run
from tilegrad.codegen.table_text import in_braces, table_pieces, table_type
from tilegrad.codegen.tensor_names import packed_enumerators
from tilegrad.ir.blocks import Width
from tilegrad.ir.listing import ListedNest, Listing, Move, Wait, ring_offset
from tilegrad.ir.nest import Nest
from tilegrad.ir.plan import Address
from tilegrad.ir.schedule import Launch, Tiling
from tilegrad.ops.kernels import KernelSignature
from tilegrad.sequence.calls import NestCall, entry_calls
from tilegrad.sequence.handover import suites_of
from tilegrad.targets.base import L2

MOST_NAMED_WORDS = {False: 8_000, True: 5_000}
"""Of a program for one cluster, and for several, each of whose launches has a call and nearly each a table."""
_OPERANDS = re.compile(r", (?!\d+ MACs)")
_SHAPED = re.compile(r"\S+\[[\d,]*\]")
COMMENT_WIDTH = c.LINE_WIDTH - len("/*  */")


@dataclass(frozen=True)
class _Table:
    name: str
    table: Table
    signature: KernelSignature
    tiling: Tiling | None
    words: int

    @property
    def c_type(self) -> str:
        return table_type(self.table, self.signature)


@dataclass(frozen=True)
class _Call:
    """One nest of an entry: its table, and what is its own.

    Nests that come together have their tables behind their calls; all but the first `join` the one before.
    """

    name: str
    short_name: str
    table: _Table
    is_together: bool
    listed: ListedNest
    own: NestCall
    homes: tuple[str, ...]
    width: str | None  # where it is launched over blocks

    @property
    def scratch(self) -> int:
        return 0 if self.listed.place is None else self.listed.place.table_offset

    @property
    def joins(self) -> bool:
        return self.listed.place is not None and self.listed.place.suite_index > 0

    def bits(self, names: Collection[str]) -> int:
        """Operands as bits."""
        operands = enumerate(self.listed.nest.operands)
        return sum(1 << i for i, operand in operands if operand.value is not None and operand.name in names)


_Member: TypeAlias = tuple[str, str, list[str]]
"""Type, name, pieces of the value."""


class ClusterLowering(Lowering):
    """Every nest runs through the tile runtime; tensors of L3 are staged around the launches that use them."""

    def __init__(self, listing: Listing, kernels: KernelSet) -> None:
        plan = listing.plan
        super().__init__(plan, kernels)
        self.listing = listing
        self.chains = Chains(kernels.signatures)
        target = plan.schedule.target
        self.has_clusters = target.clusters > 1
        self.longest_bytes = target.engine(target.home, target.compute).longest_bytes
        self.tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self.inferred = {launch.node.name for launch in plan.schedule.entries["infer"].launches}
        self.calls: dict[str, list[_Call]] = {entry: [] for entry in plan.entries}
        self.pipes = [(entry, pipe) for entry, own in plan.schedule.entries.items() for pipe in own.pipes]
        self.encoded = {entry: entry_calls(own) for entry, own in listing.entries.items()}
        self.listed = {
            (entry, nest.launch, nest.number): (nest, call)
            for entry, own in listing.entries.items()
            for nest, call in zip(own.nests, self.encoded[entry].nests, strict=True)
        }
        self.together = {
            entry: {i for suite in suites_of(own.nests) if len(suite) > 1 for i in suite}
            for entry, own in listing.entries.items()
        }

    # ---- functions

    def has_one_place(self, launch: Launch) -> bool:
        """A function of the forward pass serves infer and step; where its operands are is in their calls."""
        return launch.node.name not in self.inferred

    def nest(self, entry: str, number: int, k: int) -> Run:
        launch = self.launch(entry, number)
        listed, own = self.listed[entry, number, k]
        nest, tiling = listed.nest, listed.tiling
        words = listed.table or table_of(launch.node.op, nest, tiling, self.longest_bytes)
        homes = tuple(
            f"L1({own.taken[operand.name]})"
            if operand.name in own.taken
            else self._pipe(entry, listed, operand.value) or self._home(entry, number, operand.value, skipped)
            for operand, skipped in zip(nest.operands, nest.skipped_bytes, strict=True)
        )
        width = self._width(launch.width(k), launch.lane_count(k), listed)
        if listed.place is None:  # all that is said of it
            own = NestCall(leaves=False, moves=own.moves)
        short_name = f"{entry}_{len(self.calls[entry])}"
        is_together = len(self.calls[entry]) in self.together[entry]
        signature = self._with_epilogues(self.signature(launch, nest), nest)
        table = self._table(signature, words, tiling, f"{short_name}_table" if is_together else None)
        name = f"{short_name}_{c.identifier(launch.node.op)}"
        self.calls[entry].append(_Call(name, short_name, table, is_together, listed, own, homes, width))
        # What is said of a nest's first panel is true of all.
        is_later = launch.part is not None and any(r.start for r in launch.part.ranges.values())
        return Run(None if is_later else self.describe(entry, number, k), "RUN_WHOLE" if tiling is None else "RUN")

    def _with_epilogues(self, first: KernelSignature, nest: Nest) -> KernelSignature:
        """What a table says of its kernel, with those that go on with its tiles: the arguments of all."""
        names, found = [operand.name for operand in nest.operands], first
        for k, epilogue in enumerate(nest.epilogues):
            own = self.kernels.signatures[epilogue.nest.kernel]
            at = tuple(names.index(name) for name in epilogue.operands)
            found = self.chains.joined(found, own, k, at)
        return found

    def _pipe(self, entry: str, listed: ListedNest, value: str | None) -> str | None:
        """What passes through a pipe lives there."""
        for i, (of, pipe) in enumerate(self.pipes):
            if of == entry and value == pipe.value and listed.launch in (pipe.producer, pipe.consumer):
                return f"PIPE({i})"
        return None

    def _pipes(self) -> list[c.Item]:
        """Their table, where there are any."""
        rows = []
        for entry, pipe in self.pipes:
            launches, nests = self.plan.schedule.entries[entry].launches, self.listing.entries[entry].nests
            text = c_string(" -> ".join(launches[i].node.name for i in (pipe.producer, pipe.consumer)))
            home, stride = self.plan.address(entry, pipe.value, pipe.producer).offset, pipe.workspace.stride_bytes
            member = 0
            if pipe.is_near:
                home, stride = ring_offset(pipe, nests), pipe.ring_bytes
                member = 1 + [one.member for one in nests if one.launch == pipe.producer][-1]
            sizes = f"{home}, {pipe.slot_bytes}, {pipe.depth}, {pipe.blocks}, {stride}"
            lanes = f"{pipe.lanes}, {member}, {pipe.near_lanes}"
            rows.append(f'{{"{text}", {pipe.number}, {sizes}, {lanes}}}')
        if not rows:
            return []
        what = "Pipes: operators, number, workspace, slot bytes, slots, slices, bytes of each, lanes, in L1."
        return [c.Comment(what), "static const tg_pipe pipes[] = {", self._paragraph(rows), "};"]

    def _width(self, width: Width | None, lanes: int, listed: ListedNest) -> str | None:
        """Over how many blocks a nest is launched: as was asked for all, or what is best for this one."""
        if width is None or listed.tiling is None:
            return None
        inner = inner_loops(listed.nest, listed.tiling.loops)
        own = f"BLOCKS({inner})" if width == self.plan.schedule.width else f"OVER({inner}, {width.limit}, 0)"
        return own if lanes == 1 else f"{own} | LANES({lanes})"

    def note(self, entry: str, number: int, k: int, operand: str) -> str:
        _, own = self.listed[entry, number, k]
        return " left in L1" if operand in own.taken else ""

    def function(self, name: str, title: str, body: Body, firsts: Sequence[First]) -> c.Function:
        """One statement runs all its nests. It names its first call, unless it serves two entries: then they do."""
        text = _explained(title, [run.comment for run in body if run.comment] or ["more panels"])
        macro, count = body[0].macro, str(len(body))
        if len(firsts) == 1:
            run = c.Call(macro, (self._member(firsts[0]), count))
            return c.Function("static void", name, ("tg_tiles *t",), (run,), text)
        run = c.Call(f"{macro}_FROM", ("first", count))
        return c.Function("static void", name, ("tg_tiles *t", "const tg_call *first"), (run,), text)

    def call(self, name: str, first: First, is_shared: bool) -> c.Call:
        return c.Call(name, ("t", f"&words.{self._member(first)}.call") if is_shared else ("t",))

    def _member(self, first: First) -> str:
        entry, position = first
        return self._name(self.calls[entry][position])

    def _name(self, call: _Call) -> str:
        return call.short_name if self.is_brief else call.name

    def after_inputs(self, entry: str) -> tuple[c.Statement, ...]:
        return ()

    def at_start(self, entry: str) -> tuple[c.Statement, ...]:
        return ("tg_tiles tiles, *t = &tiles;", c.Call("tg_start", ("t", "m", "&program", f"&{entry}_entry")))

    def at_end(self, entry: str) -> tuple[c.Statement, ...]:
        return (f"tg_status status = tg_stop(t, &{entry}_entry);",)

    result = "status"

    # ---- tables and calls

    def _table(
        self, signature: KernelSignature, words: tuple[int, ...], tiling: Tiling | None, own_name: str | None
    ) -> _Table:
        """One of a call's own, or one that nests of its kind share."""
        key = (signature.name, words)
        if own_name is None and key in self.tables:
            return self.tables[key]
        name = own_name or f"{signature.name}_{sum(kernel == signature.name for kernel, _ in self.tables)}"
        table = _Table(name, decode_table(words, len(signature.arguments.fields)), signature, tiling, len(words))
        if own_name is None:
            self.tables[key] = table
        return table

    def _home(self, entry: str, number: int, value: str | None, skipped_bytes: int) -> str:
        if value is None:
            return "TG_ABSENT"
        address = self.plan.address(entry, value, number)
        if value in self.plan.schedule.entries[entry].panels:
            return str(address.offset + skipped_bytes)
        name = self.names.of(value, address)
        home = f"S({name})" if address.region == "state" else f"A_{name}"
        return f"{home} + {skipped_bytes}" if skipped_bytes else home

    def items(self) -> list[c.Item]:
        used = [self.chains.first_of(call.table.signature) for calls in self.calls.values() for call in calls]
        signatures = {signature.name: signature for signature in used}
        calls = [
            f"TG_KERNEL_CALL({name}, {', '.join(f'at[{i}]' for i in range(len(signature.pointers)))})"
            for name, signature in signatures.items()
        ]
        numbers = [f"K_{name} = {number}" for number, name in enumerate(signatures)]
        calls += self.chains.calls()
        kernels = [f"call_{name}" for name in (*signatures, *self.chains.made)] or ["NULL"]
        members = self._members()
        pipes, parts = self._pipes(), ("kernels", "&words", "sizeof words")
        return [
            "",
            c.Comment("How kernels are called from an array of addresses, and their numbers in tables."),
            *calls,
            *packed_enumerators(numbers),
            "",
            c.Comment("What is constant is laid out as paragraphs."),
            c.Comment("clang-format off"),
            *self.chains.numbers(len(signatures)),
            *self.chains.types(),
            *c.fill(c.with_commas(kernels, "};"), c.LINE_WIDTH, "static tg_kernel_call *const kernels[] = {", c.INDENT),
            c.Comment(
                "All that the tile runtime reads: tables of the kinds of nests, then each entry's calls and moves."
            ),
            *("typedef struct {", *self._declarations(members), "} words_t;"),
            *("static const words_t words = {", *self._initializers(members), "};"),
            c.Comment("clang-format on"),
            f"TG_STATIC_ASSERT(sizeof(words_t) == {WORD_BYTES * self._word_count()}, words_are_as_planned);",
            *pipes,
            c.constant("tg_program program", (*parts, "pipes") if pipes else parts),
            *(self._entry(entry) for entry in self.calls),
        ]

    def _members(self) -> list[_Member]:
        """Of the words, in their order."""
        members = [(one.c_type, one.name, self._table_pieces(one)) for one in self.tables.values()]
        for entry, calls in self.calls.items():
            for i, call in enumerate(calls):
                pieces = self._call_pieces(call, calls[i + 1 :])
                members.append((f"TG_CALL({len(call.homes)})", self._name(call), pieces))
                if call.is_together:
                    members.append((call.table.c_type, call.table.name, self._table_pieces(call.table)))
            moves = self._all_moves(entry)
            if moves:
                first, *rest = in_braces([self._move_text(move) for move in moves])
                count = sum(map(_move_words, moves))
                members.append(("uint32_t", f"{entry}_moves[{count}]", [f".{entry}_moves = {first}", *rest]))
        return members

    def _declarations(self, members: Sequence[_Member]) -> list[str]:
        if not members:
            return ["    uint32_t nothing;"]
        declared = []
        for c_type, of_type in groupby(members, key=lambda member: member[0]):
            first, *names = [name for _, name, _ in of_type]
            declared.append(self._paragraph([f"{c_type} {first}", *names]).removesuffix(",") + ";")
        return c.fill(map(str.strip, declared), self.width, c.INDENT, c.INDENT) if self.is_brief else declared

    def _initializers(self, members: Sequence[_Member]) -> list[str]:
        every = [pieces for _, _, pieces in members]
        if self.is_brief and self.has_clusters:  # many tables, mostly short
            every = [[piece for pieces in every for piece in pieces]]
        return [self._paragraph(pieces) for pieces in every] or ["    0"]

    @cached_property
    def is_brief(self) -> bool:
        """A large program's tables are rows of numbers, as the fields are declared: names would be most of the C. Asked
        once every nest is there."""
        return self._word_count() > MOST_NAMED_WORDS[self.has_clusters]

    @property
    def width(self) -> int:
        return 4 * c.LINE_WIDTH if self.is_brief else c.LINE_WIDTH

    def _paragraph(self, pieces: Sequence[str]) -> str:
        """Pieces and commas as lines; those after the first are indented once more."""
        return "\n".join(c.fill(c.with_commas(pieces), self.width, c.INDENT, 2 * c.INDENT))

    def _table_pieces(self, one: _Table) -> list[str]:
        first, *rest = table_pieces(one.name, one.table, one.signature, self.is_brief)
        return [f"/* {_tiling_text(one.tiling)} */ {first}", *rest]

    def _call_pieces(self, call: _Call, behind: Sequence[_Call] = ()) -> list[str]:
        own, parts = call.own, []
        following = behind[0] if behind else None
        if following is not None:
            name = self._name(following)
            if following.joins:
                parts.append(f"MORE({self._name(call)}, {name}, {following.table.name})")
            elif following.is_together:
                last = _together(following, behind[1:])[-1]
                parts.append(f"NEXT_TOGETHER({name}, {following.table.name}, {last.table.name}, {following.scratch})")
            else:
                parts.append(f"NEXT({name}, {following.table.name}, {following.scratch})")
        if call.listed.place is not None and call.listed.place.slots_offset:
            parts.append(f".slots = {call.listed.place.slots_offset}")
        for field, names in (("early", own.early), ("late", own.late), ("results", own.results)):
            if call.bits(names):
                parts.append(f".{field} = {_from_first(call.bits(names))}")
        flags = {
            "TG_DRAIN": own.drains,
            "TG_CARRIED": call.listed.ahead is not None,
            "TG_BESIDE": call.listed.is_beside,
            "TG_LEAVE": own.leaves,
            "TG_NEXT_LATE": following is not None and following.own.is_fetched_late,
            "TG_AT_ONCE": following is not None and following.own.at_once,
            "TG_SETTLE": own.settles,
            "TG_NEXT_LAUNCH": following is not None and following.width is not None,
            "TG_MORE": following is not None and following.joins,
            "TG_JOINS": call.listed.place is not None and call.listed.joins,
            "TG_LATE": not call.joins and any(one.bits(one.own.late) for one in _together(call, behind)),
            call.width or "": call.width is not None,
        }
        named = [flag for flag, is_set in flags.items() if is_set]
        parts += [f".flags = {' | '.join(named)}"] if named else []
        parts += [f".moves = {len(own.moves)}"] if own.moves else []
        first, *rest = in_braces([*in_braces(parts or [".moves = 0"]), *in_braces(call.homes)])
        return [f".{self._name(call)} = {first}", *rest]

    def _word_count(self) -> int:
        total = sum(one.words for one in self.tables.values())
        for entry, calls in self.calls.items():
            total += sum(CALL.words + len(call.homes) for call in calls)
            total += sum(call.table.words for call in calls if call.is_together)
            total += sum(map(_move_words, self._all_moves(entry)))
        return max(total, 1)

    def _entry(self, entry: str) -> c.Item:
        calls = self.calls[entry]
        fields = {"name": f'"{entry}"', "position": "TG_NO_CALL"}
        if calls:
            first = calls[0]
            fields |= {"position": f"PLACE({self._name(first)})", "table": f"PLACE({first.table.name})"}
            if first.is_together:
                fields["call_words"] = f"SPAN({self._name(first)}, {_together(first, calls[1:])[-1].table.name})"
            elif self.plan.schedule.entries[entry].is_tiled:
                fields |= {"call_words": f"WORDS({self._name(first)})", "table_words": f"WORDS({first.table.name})"}
            if first.scratch:
                fields["scratch"] = str(first.scratch)
        if self._all_moves(entry):
            fields |= {"moves": f"PLACE({entry}_moves)", "last_moves": str(len(self.encoded[entry].last_moves))}
        return c.constant(f"tg_entry {entry}_entry", [f".{name} = {value}" for name, value in fields.items()])

    # ---- moves between L2 and L3

    def _all_moves(self, entry: str) -> list[Move | Wait]:
        encoded = self.encoded[entry]
        return [*(move for own in encoded.nests for move in own.moves), *encoded.last_moves]

    def _move_text(self, event: Move | Wait) -> str:
        if isinstance(event, Wait):
            return f"AWAIT({event.transfer})"
        macro = "BRING" if event.inward else "PUT_AWAY"
        if event.rows > 1:
            where = f"{event.transfer}, {event.l2_offset}, {event.l3_offset}"
            return f"{macro}_ROWS({where}, {event.row_bytes}, {event.rows}, {event.l3_stride})"
        is_part = "#" in event.tensor
        place = Address(L2, "arena", event.l2_offset)
        name = str(event.l2_offset) if is_part else f"A_{self.names.of(event.tensor, place)}"
        return f"{macro}({event.transfer}, {name}, {event.l3_offset}, {event.size_bytes})"


def _move_words(event: Move | Wait) -> int:
    if isinstance(event, Wait):
        return 1
    return CONSTANTS["TG_ROWS_WORDS" if event.rows > 1 else "TG_MOVE_WORDS"]


def _together(first: _Call, behind: Sequence[_Call]) -> list[_Call]:
    """Calls that come together with one."""
    return [first, *takewhile(lambda call: call.joins, behind)]


def _from_first(mask: int) -> str:
    """Bits from the first operand on that has one, and which that is."""
    first = (mask & -mask).bit_length() - 1
    return f"BITS({first}, {mask >> first:#x})"


def _explained(title: str, texts: Sequence[str]) -> str:
    """A title and what is said of each nest, as full lines; the first of them begins behind the title. The shape of a
    tensor is said where it is named first."""
    seen: set[str] = set()
    nests = [[_once(piece, seen) for piece in _OPERANDS.split(text.replace("\n", " "))] for text in texts]
    if len(f"{title}: {nests[0][0]}") <= COMMENT_WIDTH and not title.endswith("."):
        nests[0][0] = f"{title}: {nests[0][0]}"
    else:
        nests.insert(0, [title])
    return "\n".join(c.filled(pieces, COMMENT_WIDTH) for pieces in nests)


def _once(piece: str, seen: set[str]) -> str:
    for tensor in _SHAPED.findall(piece):
        if tensor in seen:
            piece = piece.replace(tensor, tensor[: tensor.rindex("[")], 1)
        seen.add(tensor)
    return piece


def _tiling_text(tiling: Tiling | None) -> str:
    if tiling is None:
        return "computed where the operands live"
    loops = ", ".join(f"{loop.axis} {loop.tile} of {loop.extent}" for loop in tiling.loops) or "one tile"
    mode = "double" if tiling.is_double else "single"
    return f"{loops}; {tiling.tile_count} in all, {mode} buffered, {tiling.scratch_bytes} bytes of L1"
