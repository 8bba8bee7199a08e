"""Keeps the tables of docs/cost-model.md what the commands print: they stand between markers there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cost-model.md"


def conduct_lines(conduct: Mapping[str, Any]) -> list[str]:
    """What the tile runtime costs its core."""
    between, meanwhile = conduct["between"], conduct["meanwhile"]
    errors = f"{between['error_mean_percent']} % and {meanwhile['error_mean_percent']} %"
    lines = [
        f"{conduct['samples']} stretches of nests, instructions predicted within {errors} on average:",
        "",
        "| per | instructions between kernels | cycles | instructions meanwhile | cycles |",
        "|---|---|---|---|---|",
    ]
    for i, name in enumerate(conduct["trips"]):
        halves = [f"{one['classes']['i_total'][i]:.0f} | {one['cycles'][i]:.0f}" for one in (between, meanwhile)]
        lines.append(f"| {name} | {halves[0]} | {halves[1]} |")
    return lines


def replace_block(text: str, name: str, lines: Sequence[str]) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + "\n".join(lines) + match[2], text)


def update(blocks: Mapping[str, Sequence[str]]) -> None:
    """Rewrites the blocks, where the document is there (it is not part of an installed package)."""
    if not DOCUMENT.exists():
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        text = replace_block(text, name, lines)
    DOCUMENT.write_text(text, encoding="utf-8")
