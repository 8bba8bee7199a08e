"""RAM against MACs: what training takes as less and less is kept. `--docs` writes the table into docs/fit.md."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import tilegrad as tg
from tilegrad.errors import DoesNotFit
from tilegrad.fit import fitted
from tilegrad.targets import base as targets

MODELS = ("dscnn", "resnet8", "mobilenetv1", "cct")
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2)
"""Of the arena of the program that keeps everything."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "fit.md"


def rows(name: str) -> Iterator[tuple[int, int, float, int]]:
    """Arena asked for and reached, in bytes; more MACs, as a share; operators that are computed again."""
    chip = targets.get("mcu").without_limits()
    compiled = tg.compile(name, target=chip)
    state_bytes, arena_bytes = compiled.plan.state_bytes, compiled.plan.arena_bytes
    for share in SHARES:
        asked = int(arena_bytes * share)
        try:
            _, fit = fitted(compiled.program, chip, state_bytes + asked)
        except DoesNotFit:
            return
        yield asked, fit.after_bytes - state_bytes, fit.more_macs, fit.repeated


def table() -> str:
    lines = [
        "Measured as planned for `mcu` at batch 1 with SGD (`python -m benchmarks.fit`): the arena, which includes the",
        "input, in KiB, and the MACs of a step that are added, down to where this finds nothing smaller.",
        "",
        "| model | arena | more MACs | computed again |",
        "|---|---:|---:|---:|",
    ]
    for name in MODELS:
        for k, (_, reached, more, repeated) in enumerate(rows(name)):
            label = f"`{name}`" if k == 0 else ""
            lines.append(f"| {label} | {reached / 1024:,.0f} | {more:.1%} | {repeated} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/fit.md")
    found = table()
    if parser.parse_args().docs:
        text = DOCUMENT.read_text(encoding="utf-8")
        pattern = r"(<!-- fit:begin[^\n]*-->\n).*?(<!-- fit:end -->)"
        DOCUMENT.write_text(re.sub(pattern, lambda m: m[1] + found + m[2], text, flags=re.DOTALL), encoding="utf-8")
    else:
        print(found, end="")


if __name__ == "__main__":
    main()
