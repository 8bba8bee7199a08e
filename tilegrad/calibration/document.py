"""Keeps the tables of docs/cost-model.md what the commands print: they stand between markers there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad.costs.conduct import Act, PairCost
from tilegrad.costs.measured import Measured

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cost-model.md"


def table_text(table: Mapping[str, Any]) -> str:
    """As JSON with one line a list: small, and readable as a difference."""
    text = json.dumps(table, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def conduct_lines(measured: Measured) -> list[str]:
    """What the conductor takes from act to act."""
    conduct = measured.conduct
    pairs = sorted(conduct.pairs.items(), key=lambda pair: (list(Act).index(pair[0][0]), list(Act).index(pair[0][1])))
    lines = [
        f"{len(pairs)} pairs of acts, measured on `{measured.source}`. Around them a call of an entry takes:",
        f"{', '.join(f'{entry} {cycles:.0f} cycles' for entry, cycles in sorted(conduct.calls.items()))}.",
        f"Transfers lose {_ways(conduct.crowded)} of their time for each access to L1 in a cycle, and",
        f"{_ways(conduct.opposed)} beside one that goes the other way.",
        "",
        "| from | to, with cycles (+ if its code was displaced + beside cores + behind a transfer) |",
        "|---|---|",
    ]
    for before in dict.fromkeys(one for (one, _), _ in pairs):
        then = ", ".join(f"{act.value} {_added(cost)}" for (one, act), cost in pairs if one is before)
        lines.append(f"| {before.value} | {then} |")
    return lines


def _ways(lost: tuple[float, float]) -> str:
    return f"{100 * lost[0]:.1f} % (inward) and {100 * lost[1]:.1f} % (outward)"


def _added(cost: PairCost) -> str:
    alone, *more = (f"{cycles:.0f}" for cycles in cost)
    return alone if set(more) == {"0"} else f"{alone} (+ {' + '.join(more)})"


def kernel_lines(measured: Measured) -> list[str]:
    """What was measured of kernel calls beside their counts."""
    lines = ["| operands in | kernels | factor | call | cold |", "|---|---:|---:|---:|---:|"]
    for level, other in sorted(measured.others.items()):
        own = [scale for (_, at), scale in measured.kernels.items() if at == level]
        spans = []
        for part, shape in (("factor", ".2f"), ("call", ".0f"), ("cold", ".0f")):
            values, middle = [getattr(one, part) for one in own], getattr(other, part)
            spans.append(f"{min(values):{shape}} to {max(values):{shape}}, median {middle:{shape}}")
        lines.append(f"| {level} | {len(own)} | {' | '.join(spans)} |")
    return lines


def percents(name: str, figures: Sequence[float], count: int) -> str:
    """A line of a table."""
    return f"| {name} | {count} | {' | '.join(f'{100 * value:.1f} %' for value in figures)} |"


def update(blocks: Mapping[str, Sequence[str]]) -> None:
    """Rewrites the blocks, where the document is there (it is not part of an installed package)."""
    if not DOCUMENT.exists():
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        _, after = rest.split("\n<!-- end -->", 1)
        text = "\n".join((f"{before}<!-- {name} -->", *lines, f"<!-- end -->{after}"))
    DOCUMENT.write_text(text, encoding="utf-8")
