"""The records that the tile runtime reads, as its own header declares them: the one place where they are written.

Everything here is read from runtime/cluster/tg_tile.h: names, order and size of fields, and the constants they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilegrad.errors import InternalError
from tilegrad.ops.kernels import RUNTIME_FOLDER, parse_kernel_file

HEADER = RUNTIME_FOLDER / "cluster" / "tg_tile.h"
WORD_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """A struct of words. Values go in and out by name."""

    name: str
    fields: tuple[str, ...]

    @property
    def words(self) -> int:
        return len(self.fields)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Of each field, in words from the start."""
        return {name: i for i, name in enumerate(self.fields)}

    def encode(self, **values: int) -> list[int]:
        """Every field has to be given, and no other."""
        if values.keys() != self.places.keys():
            raise InternalError(f"{self.name} has the fields {self.fields}, not {tuple(values)}")
        return [values[name] for name in self.fields]

    def decode(self, words: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.fields, words, strict=True))


def _constants() -> dict[str, int]:
    """Enumerators and numbers that are defined."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = {name: int(value, 0) for name, value in re.findall(r"#define (TG_\w+) (0x[0-9a-f]+|\d+)u?\n", text)}
    for body in re.findall(r"enum \{([^}]*)\}", text):
        following = 0
        for member in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (part.strip() for part in member.partition("="))
            found[name] = following = int(value, 0) if value else following
            following += 1
    return found


_FIELDS = {struct.name: tuple(name for _, name in struct.fields) for struct in parse_kernel_file(HEADER).own_structs}
NEST, OPERAND, LOOP, DIM, FIELD, CALL = (
    Layout(name, _FIELDS[name]) for name in ("tg_nest", "tg_operand", "tg_loop", "tg_dim", "tg_field", "tg_call")
)
CONSTANTS: Mapping[str, int] = _constants()
MAX_OPERANDS, MAX_RESULTS = CONSTANTS["TG_MAX_OPERANDS"], CONSTANTS["TG_MAX_RESULTS"]
