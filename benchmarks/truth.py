"""Estimated cycles beside those measured on the chip's cycle model: the tables that documents show.

`python -m benchmarks.truth` writes them into the documents, between their marks; a test compares. The measurements are
in `benchmarks/data` (its README says where they come from) and are not made here: they take the chip's cycle model.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
MODELS = FOLDER / "data" / "siracusa_truth_models.csv"
MODES = FOLDER / "data" / "siracusa_truth_modes.csv"
SOURCE = (
    "Measured on the open-source cycle model of Siracusa, figures of 2026-11-16: bare-metal images, variant `as_is` "
    "(as generated), the second training step, batch 1, SGD fused; every image gave the simulator's bits "
    "([benchmarks/data]({up}benchmarks/data/README.md))."
)
SHORT, WHOLE = "truth", "truth-modes"
DOCUMENTS = {"README.md": (SHORT,), "docs/cost-model.md": (SHORT, WHOLE), "benchmarks/CLUSTER.md": (SHORT, WHOLE)}

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def more(measured: int, estimated: int) -> str:
    """How much more than estimated, in percent."""
    share = 100 * (measured / estimated - 1)
    return f"{share:+.1f} %" if abs(share) < 10 else f"{share:+.0f} %"


def model_table() -> Iterator[str]:
    pairs = [f"{figure}, {word}" for figure in ("step cycles", "MAC/cycle") for word in ("estimated", "measured")]
    yield f"| model | {' | '.join((*pairs[:2], 'more', *pairs[2:]))} |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in read(MODELS):
        if row["variant"] == "as_is":
            measured, estimated = int(row["step_cycles_measured"]), int(row["step_cycles_estimated"])
            macs = int(row["macs"])
            yield (
                f"| `{row['model']}` | {estimated:,} | {measured:,} | {more(measured, estimated)} "
                f"| {macs / estimated:.2f} | {macs / measured:.2f} |"
            )


def mode_table() -> Iterator[str]:
    yield "| model | recipe | buffering | L1 | step cycles, estimated | step cycles, measured | more |"
    yield "|---|---|---|---|---:|---:|---:|"
    for row in read(MODES):
        measured, estimated = int(row["step_cycles_measured"]), int(row["step_cycles_estimated"])
        recipe = row["recipe"].replace("--accum 2", "2 mini-batches per update")
        l1 = {"128K": "128 KB", "default": "240 KB"}[row["l1"]]
        yield (
            f"| `{row['model']}` | {recipe} | {row['mode']} | {l1} | {estimated:,} | {measured:,} "
            f"| {more(measured, estimated)} |"
        )


def gain(model: str) -> float:
    """By how much double buffering is faster than single, as measured; negative where it is slower."""
    cycles = {
        row["mode"]: int(row["step_cycles_measured"])
        for row in read(MODES)
        if row["model"] == model and row["l1"] == "128K" and row["mode"] in ("single", "double")
    }
    return cycles["single"] / cycles["double"] - 1


def section(name: str, document: str) -> str:
    """What stands between two marks of a document."""
    up = "" if "/" not in document else "../"
    if name == WHOLE:
        return "\n".join(mode_table())
    title = f"L1 of 128 KB, buffering auto. {SOURCE.format(up=up)}"
    return "\n".join((*_filled(title), "", *model_table()))


def _filled(text: str, width: int = 120) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}:begin (python -m benchmarks.truth writes this) -->", f"<!-- {name}:end -->"


def filled(text: str, document: str) -> str:
    """A document with its tables brought up to date."""
    for name in DOCUMENTS[document]:
        begin, end = marks(name)
        pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{document} has no marks for {name}")
        before, after = pattern.split(text, maxsplit=1)
        text = f"{before}{begin}\n{section(name, document)}\n{end}{after}"
    return text


def main() -> None:
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(filled(path.read_text(encoding="utf-8"), document), encoding="utf-8")
        print(f"brought {document} up to date")


if __name__ == "__main__":
    main()
