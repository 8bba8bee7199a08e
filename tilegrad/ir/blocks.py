"""Blocks: a nest that is launched over several clusters, and which of its tiles each of them takes.

Work is split over tiles along parallel axes. A block takes units: tiles that differ only along inner loops, so that a
sum stays with one block, and so does every element of a result. The formula is here and in `runtime/cluster/tg_tile.c`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.targets.base import MOST_BLOCKS

_TOKEN = re.compile(r"\s*(min|n|\d+|[(),/])")


@dataclass(frozen=True, slots=True)
class Width:
    """How many blocks a launch has: `limit`, or of a number n that is set at run time `n / divisor`, `limit` at most.

    Expressions of n are all of this form: of quotients and least numbers, the quotient can be taken first.
    """

    limit: int
    divisor: int = 0

    def at(self, n: int) -> int:
        return min(n // self.divisor, self.limit) if self.divisor else self.limit

    def __str__(self) -> str:
        if not self.divisor:
            return str(self.limit)
        quotient = "n" if self.divisor == 1 else f"n/{self.divisor}"
        return quotient if self.limit >= MOST_BLOCKS // self.divisor else f"min({quotient}, {self.limit})"


def parse_width(text: str) -> Width | None:
    """`4`, `n`, `n/2`, `min(n, 3)`, and what these make together; None for anything else."""
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append(found.group(1))
        at = found.end()
    parsed = _term(tokens, 0)
    return parsed[0] if parsed is not None and parsed[1] == len(tokens) else None


def _term(tokens: Sequence[str], at: int) -> tuple[Width, int] | None:
    found = _factor(tokens, at)
    while found is not None and tokens[found[1] : found[1] + 1] == ["/"]:
        width, at = found
        by = tokens[at + 1] if at + 1 < len(tokens) else ""
        if not by.isdigit() or not int(by):
            return None
        found = Width(width.limit // int(by), width.divisor * int(by)), at + 2
    return found


def _factor(tokens: Sequence[str], at: int) -> tuple[Width, int] | None:
    word = tokens[at] if at < len(tokens) else ""
    if word.isdigit():
        return Width(int(word)), at + 1
    if word == "n":
        return Width(MOST_BLOCKS, 1), at + 1
    if word != "min" or tokens[at + 1 : at + 2] != ["("]:
        return None
    first = _term(tokens, at + 2)
    if first is None or tokens[first[1] : first[1] + 1] != [","]:
        return None
    second = _term(tokens, first[1] + 1)
    if second is None or tokens[second[1] : second[1] + 1] != [")"]:
        return None
    return _least(first[0], second[0]), second[1] + 1


def _least(a: Width, b: Width) -> Width:
    return Width(min(a.limit, b.limit), max(a.divisor, b.divisor))


def share(units: int, block: int, blocks: int) -> tuple[int, int]:
    """The first unit that a block takes, and the one behind its last."""
    return block * units // blocks, (block + 1) * units // blocks
