"""A program's constant words, as the generated C has them, and the records that they are.

The layout of records is read from runtime/cluster/tg_tile.h, the words from the generated C by way of a compiler: how
they are written there does not matter.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from tilegrad.analysis.tables import nest_fields
from tilegrad.build.toolchain import host_toolchain
from tilegrad.ir import nest as ir
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.pipeline import Compiled

U32 = 1 << 32


class DecodeError(Exception):
    """Words that no runtime could follow."""


# The layout.


@cache
def header() -> str:
    text = (RUNTIME_FOLDER / "cluster" / "tg_tile.h").read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@cache
def layout(name: str) -> tuple[tuple[str, bool], ...]:
    """Fields of a record, each one word: name, and whether it is signed."""
    found = re.search(r"typedef struct \{([^{}]*)\} " + name + ";", header())
    assert found is not None, name
    fields = []
    for declaration in filter(None, (part.strip() for part in found[1].split(";"))):
        c_type, names = declaration.split(None, 1)
        assert c_type in ("int32_t", "uint32_t"), f"{declaration} of {name} is no word"
        fields += [(field.strip(), c_type == "int32_t") for field in names.split(",")]
    return tuple(fields)


@cache
def constants() -> dict[str, int]:
    """Enumerators, and what is defined as a plain number."""
    found = {}
    for body in re.findall(r"enum \{(.*?)\}", header(), flags=re.DOTALL):
        following = 0
        for one in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = one.partition("=")
            following = int(value) if value else following
            found[name.strip()] = following
            following += 1
    for name, value in re.findall(r"#define (TG_\w+) (0x[0-9a-f]+)u", header()):
        found[name] = int(value, 16)
    return found


def words_in(name: str) -> int:
    return len(layout(name))


class Record:
    """A record at a place in a list of words."""

    __slots__ = ("_at", "_fields", "_words")

    def __init__(self, name: str, words: list[int], at: int) -> None:
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_fields", _places(name))
        if not 0 <= at <= len(words) - words_in(name):
            raise DecodeError(f"a {name} at {at} of {len(words)} words")

    def __getattr__(self, field: str) -> int:
        place, is_signed = self._fields[field]
        word: int = self._words[self._at + place]
        return word - U32 if is_signed and word >= U32 // 2 else word

    def __setattr__(self, field: str, value: int) -> None:
        self._words[self._at + self._fields[field][0]] = value % U32


@cache
def _places(name: str) -> dict[str, tuple[int, bool]]:
    return {field: (place, is_signed) for place, (field, is_signed) in enumerate(layout(name))}


@dataclass
class Nest:
    """A call and its table, in scratchpad, and the nest that has come together with it."""

    number: int
    call_words: list[int]
    words: list[int]
    table: int
    further: Nest | None = None
    joins: bool = False

    @property
    def call(self) -> Record:
        return Record("tg_call", self.call_words, 0)

    @property
    def nest(self) -> Record:
        return Record("tg_nest", self.words, 0)

    def home(self, i: int) -> int:
        return self.call_words[words_in("tg_call") + i]

    def operand(self, i: int) -> Record:
        return Record("tg_operand", self.words, words_in("tg_nest") + i * words_in("tg_operand"))

    def loop(self, i: int) -> Record:
        at = words_in("tg_nest") + self.nest.operand_count * words_in("tg_operand")
        return Record("tg_loop", self.words, at + i * words_in("tg_loop"))

    def dim(self, at: int, i: int) -> Record:
        return Record("tg_dim", self.words, at + i * words_in("tg_dim"))


# The words.


@dataclass(frozen=True)
class Pipe:
    """A tg_pipe, but for its name."""

    number: int
    workspace: int
    slot_bytes: int
    depth: int
    slices: int
    slice_bytes: int
    lanes: int
    near: int
    near_lanes: int


@dataclass(frozen=True)
class Program:
    """What the generated C says: all words, each entry's fields, the names of kernels by number, and what model.h
    defines of blocks, and pipes. Kernels' C files say how many argument words each takes."""

    words: tuple[int, ...]
    entries: dict[str, dict[str, int]]
    kernels: tuple[str, ...]
    argument_counts: dict[str, int]
    defined: dict[str, int]
    pipes: tuple[Pipe, ...]

    def kernels_of(self, number: int) -> str:
        """What a nest's word for its kernel says: which it is, and what goes on with its tiles."""
        size = constants()["TG_KERNELS"]
        others = (number // size, number // size**2)
        numbers = [number % size, *(other % size - 1 for other in others if other % size)]
        if not all(0 <= one < len(self.kernels) for one in numbers):
            raise DecodeError(f"there is no kernel {number}")
        return " ".join(self.kernels[one] for one in numbers)


def kernels_of(op: str, nest: ir.Nest) -> str:
    """The same of a listed nest: of each epilogue, where its arguments and its pointers are."""
    names, parts = [operand.name for operand in nest.operands], [nest.kernel]
    for k, one in enumerate(nest.epilogues):
        words = len(nest_fields(op, replace(nest, epilogues=nest.epilogues[:k])))
        pointers = ", ".join(f"at[{names.index(name)}]" for name in one.operands)
        parts.append(f"then {one.nest.kernel}, {words}, {pointers}")
    return " ".join(parts)


_CALL = re.compile(r"^TG_(?P<kind>KERNEL|EPILOGUE)_CALL\((?P<name>\w+), (?P<rest>.*)\)$", re.MULTILINE)


def flipped(program: Program, at: int, bits: int) -> Program:
    """With some bits of a word turned."""
    return replace(program, words=(*program.words[:at], program.words[at] ^ bits, *program.words[at + 1 :]))


ENTRY_FIELDS = ("position", "call_words", "table", "table_words", "scratch", "moves", "last_moves")
DEFINITIONS = ("TG_CLUSTERS", "TG_BLOCKS_DIVISOR", "TG_CARRIES", "TG_PIPES")
"""Where a program has them; of what has no value, that it is there."""


def _calls(compiled: Compiled) -> dict[str, str]:
    """How kernels are called: what a call is named, and what it does."""
    text = next(file for name, file in compiled.project.files.items() if name.endswith("model.c")).decode()
    return {m["name"]: m["name"] if m["kind"] == "KERNEL" else f"then {m['rest']}" for m in _CALL.finditer(text)}


def _printing(compiled: Compiled) -> str:
    """C that prints what is constant in model.c: words, kernels, definitions and pipes, a line each, then entries."""
    kernels = _calls(compiled)
    known = "\n".join(f'        if (kernels[i] == call_{name}) printf("{name} ");' for name in kernels)
    defined = "\n".join(f'#ifdef {name}\n    printf("{name} %d ", {name} + 0);\n#endif' for name in DEFINITIONS)
    of_pipe = ", ".join(f"program.pipes[i].{field.name}" for field in fields(Pipe))
    numbers = "%u " * len(ENTRY_FIELDS)
    prints = "\n".join(
        f'    printf("{entry} {numbers}\\n", {", ".join(f"{entry}_entry.{field}" for field in ENTRY_FIELDS)});'
        for entry in compiled.listing.entries
    )
    return f"""
#include "model.c"
#include <stdio.h>
int main(void)
{{
    const unsigned char *bytes = (const unsigned char *)program.words;
    for (unsigned i = 0; i < program.bytes; i += 4) {{
        uint32_t word;
        __builtin_memcpy(&word, bytes + i, 4);
        printf("%u ", (unsigned)word);
    }}
    puts("");
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++) {{
{known}
    }}
    puts("");
{defined}
    puts("");
#ifdef TG_PIPES
    for (unsigned i = 0; i < sizeof pipes / sizeof *pipes; i++)
        printf("{"%u " * len(fields(Pipe))}", {of_pipe});
#endif
    puts("");
{prints}
    return 0;
}}
"""


def emitted(compiled: Compiled, folder: Path) -> Program:
    """From model.c, compiled into a program that prints its constants."""
    for name, content in compiled.project.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    source = next(path for path in folder.rglob("model.c")).parent / "dump.c"
    source.write_text(_printing(compiled), encoding="utf-8")
    include = sorted({str(path.parent) for path in folder.rglob("*.h")})
    flags = ["-std=gnu11", "-O0", "-w", "-no-pie", "-static", "-Wl,--unresolved-symbols=ignore-all"]
    command = [host_toolchain().compiler, *flags, *(f"-I{path}" for path in include), str(source), "-o", "dump"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    lines = subprocess.run([str(folder / "dump")], check=True, capture_output=True, text=True).stdout.splitlines()
    words, kernels, definitions, piped = (line.split() for line in lines[:4])
    defined = dict(zip(definitions[::2], map(int, definitions[1::2]), strict=True))
    size = len(fields(Pipe))
    pipes = tuple(Pipe(*map(int, piped[at : at + size])) for at in range(0, len(piped), size))
    entries = {}
    for line in lines[4:]:
        name, *numbers = line.split()
        entries[name] = dict(zip(ENTRY_FIELDS, map(int, numbers), strict=True))
    counts = {}
    for entry, own in compiled.listing.entries.items():
        for number, one in enumerate(own.nests):
            op = compiled.listing.launch_of(entry, number).node.op
            counts[kernels_of(op, one.nest)] = len(nest_fields(op, one.nest))
    calls = _calls(compiled)
    return Program(tuple(map(int, words)), entries, tuple(calls[one] for one in kernels), counts, defined, pipes)


def has_calls(program: Program, entry: dict[str, int]) -> bool:
    none = constants().get("TG_NO_CALL")
    return entry["position"] != none if none is not None else entry["table_words"] > 0


def named_words(program: Program, entry: str) -> dict[int, str]:
    """Which field of which record each word of an entry in tiles is."""
    found: dict[int, str] = {}
    start, words = program.entries[entry], list(program.words)
    at, table, move = start["position"], start["table"], start["moves"]
    moves, end = start["last_moves"], at + start["call_words"]
    while True:
        call, nest = Record("tg_call", words, at), Record("tg_nest", words, table)
        found |= {at + i: f"tg_call.{name}" for i, (name, _) in enumerate(layout("tg_call"))}
        homes = at + words_in("tg_call")
        found |= {homes + i: "home" for i in range(nest.operand_count)}
        found |= _named_table(program, words, table)
        moves += call.moves
        if not call.next_words:
            break
        if call.flags & constants()["TG_MORE"] and not call.flags >> constants()["TG_LIMIT_SHIFT"]:
            at, table = at + call.next_words, at + call.next_table
        else:
            at, table, end = end, call.next_table, end + call.next_words
    for _ in range(moves):
        size = move_words(words[move])
        found |= {move + i: "move" for i in range(size)}
        move += size
    return found


def move_words(first: int) -> int:
    c = constants()
    if first & c["TG_MOVE_WAIT"]:
        return 1
    return c["TG_ROWS_WORDS"] if first & c["TG_MOVE_ROWS"] else c["TG_MOVE_WORDS"]


def _named_table(program: Program, words: list[int], table: int) -> dict[int, str]:
    nest = Record("tg_nest", words, table)
    at = words_in("tg_nest")
    records = [("tg_nest", 0)]
    records += [("tg_operand", at + i * words_in("tg_operand")) for i in range(nest.operand_count)]
    at += nest.operand_count * words_in("tg_operand")
    loops = [at + i * words_in("tg_loop") for i in range(nest.loop_count)]
    for place in loops:
        loop = Record("tg_loop", words, table + place)
        count = loop.read_count + loop.write_count
        records += [("tg_loop", place), *(("tg_dim", loop.dims + i * words_in("tg_dim")) for i in range(count))]
        records += [("tg_field", loop.fields + i * words_in("tg_field")) for i in range(loop.field_count)]
    count = program.argument_counts[program.kernels_of(nest.kernel)]
    found = {table + nest.args + i: "argument" for i in range(count)}
    for name, place in records:
        found |= {table + place + i: f"{name}.{field}" for i, (field, _) in enumerate(layout(name))}
    return found
