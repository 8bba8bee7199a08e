"""A nest's table, read back from its words by the layout of the runtime's header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilegrad.analysis.layout import DIM, FIELD, LOOP, NEST, OPERAND, Layout

Record = Mapping[str, int]


@dataclass(frozen=True)
class Table:
    """The records of a table in their order. `args` and `levels` are words."""

    nest: Record
    operands: tuple[Record, ...]
    loops: tuple[Record, ...]
    dims: tuple[Record, ...]
    fields: tuple[Record, ...]
    args: tuple[int, ...]
    levels: tuple[int, ...]

    def place(self, at: int) -> str:
        """What lies at a word, as a member of a C struct: `dims[1].size`."""
        start = NEST.words
        parts: tuple[tuple[str, Layout, int], ...] = (
            ("operands", OPERAND, len(self.operands)),
            ("loops", LOOP, len(self.loops)),
            ("dims", DIM, len(self.dims)),
            ("fields", FIELD, len(self.fields)),
        )
        for name, layout, count in parts:
            if start <= at < start + count * layout.words:
                number, word = divmod(at - start, layout.words)
                return f"{name}[{number}]" + (f".{layout.fields[word]}" if word else "")
            start += count * layout.words
        if at == start:
            return "args"
        return f"levels[{at - start - len(self.args)}]"


def decode_table(words: Sequence[int], arg_words: int) -> Table:
    at = 0

    def take(layout: Layout, count: int) -> tuple[Record, ...]:
        nonlocal at
        first, at = at, at + count * layout.words
        return tuple(layout.decode(words[i : i + layout.words]) for i in range(first, at, layout.words))

    (nest,) = take(NEST, 1)
    operands, loops = take(OPERAND, nest["operand_count"]), take(LOOP, nest["loop_count"])
    dims = take(DIM, sum(loop["read_count"] + loop["write_count"] for loop in loops))
    fields = take(FIELD, sum(loop["field_count"] for loop in loops))
    return Table(nest, operands, loops, dims, fields, tuple(words[at : at + arg_words]), tuple(words[at + arg_words :]))
