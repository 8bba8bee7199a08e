"""Keeps the tables of docs/cost-model.md what the commands print: they stand between markers there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cost-model.md"


def conduct_lines(conduct: Mapping[str, Any]) -> list[str]:
    """What the tile runtime costs its core."""
    lines = [
        f"{conduct['samples']} nests, instructions predicted within {conduct['error_mean_percent']} % on average:",
        "",
        "| per | instructions | loads of constant tables | cycles |",
        "|---|---|---|---|",
    ]
    classes = conduct["classes"]
    for i, name in enumerate(conduct["trips"]):
        lines.append(
            f"| {name} | {classes['i_total'][i]:.0f} | {classes['data_loads'][i]:.1f} | {conduct['cycles'][i]:.0f} |"
        )
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
