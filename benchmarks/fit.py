"""RAM against MACs: what training takes as less and less is kept, down to parts of operators.

`--docs` writes the table into docs/fit.md and draws docs/images/fit.svg.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tilegrad as tg
from tilegrad.fit.fitted import nearest
from tilegrad.fit.tape import facts_of
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.targets import base as targets

MODELS = ("dscnn", "resnet8", "mobilenetv1", "cct")
SHARES = (1.0, 0.8, 0.6, 0.5, 0.42, 0.38, 0.3, 0.24, 0.2, 0.0)
"""Of the arena of the program that keeps everything; 0 is as little as is found."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "fit.md"
PICTURE = DOCUMENT.parent / "images" / "fit.svg"


@dataclass(frozen=True)
class Row:
    """`arena_bytes` as planned; `more_macs` as a share of a step's."""

    arena_bytes: int
    more_macs: float
    repeated: int
    parts: int


def rows(name: str) -> Iterator[Row]:
    chip = targets.get("mcu").without_limits()
    compiled = tg.compile(name, target=chip)
    state_bytes, arena_bytes = compiled.plan.state_bytes, compiled.plan.arena_bytes
    split = SplitConvGrad().apply(compiled.program)
    least = arena_bytes + 1
    for share in SHARES:
        _, fit = nearest(compiled.program, split, chip, state_bytes + int(arena_bytes * share))
        if (fit.fits or share == 0.0) and fit.after_bytes - state_bytes < least:
            least = fit.after_bytes - state_bytes
            yield Row(least, fit.more_macs, fit.repeated, fit.parts)


def largest_operands(name: str) -> int:
    """Of one operator, in bytes of the arena: below that are parts."""
    program = tg.compile(name, target=targets.get("mcu").without_limits()).program
    facts = facts_of(SplitConvGrad().apply(program).entries["step"], 8)
    return max(facts.operand_bytes(node) for node in facts.whole)


def table(found: Mapping[str, Sequence[Row]]) -> str:
    lines = [
        "Measured as planned for `mcu` at batch 1 with SGD (`python -m benchmarks.fit`): the arena, which includes the",
        "input, in KiB, the MACs of a step that are added, and how many operators run again or on parts, down to where",
        "nothing smaller is found. *Largest* is what one operator's operands take: below that only parts help.",
        "",
        "| model | largest | arena | more MACs | run again | on parts |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, own in found.items():
        largest = f"{largest_operands(name) / 1024:,.0f}"
        for k, row in enumerate(own):
            label = f"| `{name}` | {largest} |" if k == 0 else "| | |"
            runs = f"{row.repeated} | {row.parts}"
            lines.append(f"{label} {row.arena_bytes / 1024:,.0f} | {row.more_macs:.1%} | {runs} |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Sequence[Row]], path: Path) -> None:
    """MACs over bytes, each model as shares of what keeps everything; points in parts are hollow."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tilegrad"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, own in found.items():
        x, y = [row.arena_bytes / own[0].arena_bytes for row in own], [100 * row.more_macs for row in own]
        (line,) = axes.plot(x, y, label=name)
        for at, more, row in zip(x, y, own, strict=True):
            filling = "white" if row.parts else line.get_color()
            axes.plot(at, more, "o", color=line.get_color(), markerfacecolor=filling)
    axes.set_xlabel("arena, as a share of the one that keeps everything")
    axes.set_ylabel("more MACs in a step (%)")
    axes.set_ylim(bottom=-1)
    axes.grid(alpha=0.3)
    axes.legend(title="hollow: on parts")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write table and picture into docs")
    is_for_docs = parser.parse_args().docs
    found = {name: list(rows(name)) for name in MODELS}
    if not is_for_docs:
        print(table(found), end="")
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    pattern = r"(<!-- fit:begin[^\n]*-->\n).*?(<!-- fit:end -->)"
    written = re.sub(pattern, lambda m: m[1] + table(found) + m[2], text, flags=re.DOTALL)
    DOCUMENT.write_text(written, encoding="utf-8")
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
