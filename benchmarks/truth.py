"""Estimated cycles beside those measured on `iss:siracusa` and on the chip's cycle model: the tables of documents.

`python -m benchmarks.truth` writes them into the documents, between their marks; a test compares. Nothing is measured
here: `python -m benchmarks.clock` measures on `iss:siracusa`, and figures of the chip's cycle model are in
`benchmarks/data` (its README says where they come from).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks import clock

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
MODELS = FOLDER / "data" / "siracusa_truth_models.csv"
MODES = FOLDER / "data" / "siracusa_truth_modes.csv"
RECIPES = {
    "batch 1, SGD fused": "sgd",
    "--accum 2": "sgd, accum 2",
    "--accum 2, momentum": "momentum, accum 2",
    "adam (fused)": "adam",
}
SOURCE = (
    "A training step, batch 1, SGD fused, L1 of 128 KB, buffering auto. *Estimated* and *measured on iss* (the model "
    "of the chip in this package, [docs/iss.md]({up}docs/iss.md)) are of the same images, as they are made now. "
    "*Measured on the chip's cycle model* are images of 2026-11-16, before the ninth core conducted and kernels had "
    "hardware loops: as they were generated, and with the ninth core conducting, changed by hand "
    "([benchmarks/data]({up}benchmarks/data/README.md))."
)
SHORT, WHOLE, MATRIX = "truth", "truth-modes", "clock"
DOCUMENTS = {
    "README.md": (SHORT,),
    "docs/cost-model.md": (SHORT, WHOLE, MATRIX),
    "benchmarks/CLUSTER.md": (SHORT, WHOLE),
}

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _now(model: str, recipe: str, mode: str, l1_kib: int) -> clock.Row | None:
    """What was measured on `iss`, of mini-batches of one sample. Untiled programs do not depend on L1."""
    for row in clock.read():
        is_step = row.entry == "step" and (row.l1_kib == l1_kib or mode == "untiled")
        if (*row.training, row.mode) == (model, recipe, 1, mode) and is_step:
            return row
    return None


def _cells(row: clock.Row | None) -> tuple[str, str, str]:
    if row is None:
        return "-", "-", "-"
    return f"{row.estimated:,}", f"{row.measured:,}", f"{100 * row.error:+.1f} %"


def model_table() -> Iterator[str]:
    heads = (
        "model", "step cycles, estimated", "step cycles, measured on iss", "estimate off (measured)",
        "MAC/cycle, measured on iss", "before: step cycles, measured on the chip's cycle model",
        "ninth core by hand: step cycles, measured on the chip's cycle model",
    )  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    rows = read(MODELS)
    ninth = {row["model"]: int(row["step_cycles_measured"]) for row in rows if row["variant"] == "ninth"}
    for row in rows:
        if row["variant"] == "as_is":
            now = _now(row["model"], "sgd", "auto", 128)
            rate = "-" if now is None else f"{int(row['macs']) / now.measured:.2f}"
            before = int(row["step_cycles_measured"])
            cells = (*_cells(now), rate, f"{before:,}", f"{ninth[row['model']]:,}" if row["model"] in ninth else "-")
            yield f"| `{row['model']}` | {' | '.join(cells)} |"


def mode_table() -> Iterator[str]:
    yield (
        "| model | recipe | buffering | L1 | step cycles, estimated | step cycles, measured on iss "
        "| estimate off (measured) | before: step cycles, measured on the chip's cycle model |"
    )
    yield "|---|---|---|---|---:|---:|---:|---:|"
    for row in read(MODES):
        recipe = row["recipe"].replace("--accum 2", "2 mini-batches per update")
        kib = {"128K": 128, "default": 240}[row["l1"]]
        cells = (*_cells(_now(row["model"], RECIPES[row["recipe"]], row["mode"], kib)),)
        before = f"{int(row['step_cycles_measured']):,}"
        yield f"| `{row['model']}` | {recipe} | {row['mode']} | {kib} KB | {' | '.join((*cells, before))} |"


def gain(model: str) -> float | None:
    """By how much double buffering is faster than single, as measured on iss; negative where it is slower."""
    single, double = (_now(model, "sgd", mode, 128) for mode in ("single", "double"))
    return None if single is None or double is None else single.measured / double.measured - 1


def _gains() -> str:
    known = {model: share for model in ("dscnn", "resnet8") if (share := gain(model)) is not None}
    texts = [f"{100 * share:+.1f} % on {model}" for model, share in known.items()]
    return f"Double buffering over single, measured on iss: {', '.join(texts)}." if texts else ""


def section(name: str, document: str) -> str:
    """What stands between two marks of a document."""
    up = "" if "/" not in document else "../"
    if name == WHOLE:
        return "\n".join(mode_table())
    if name == MATRIX:
        rows = clock.read()
        return "\n".join((*_filled(clock.summary(rows)), "", *clock.table(rows)))
    text = SOURCE.format(up=up)
    return "\n".join((*_filled(text), "", *model_table(), "", _gains())).rstrip()


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
