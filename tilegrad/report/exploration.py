"""The table of an exploration: for people, for spreadsheets and for data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.report.format import bytes_text, count_text, plural, uncounted_text
from tilegrad.report.output import heading, table

CSV_FILE, PARQUET_FILE = "points.csv", "points.parquet"
BYTES = ("memory", "RAM", "L1", "L2", "L3", "traffic")
SHOWN = ("memory", "L1", "L2", "L3", "RAM", "cycles", "traffic", "loss", "accuracy")
CYCLES = ("cycles", "update_cycles", "step_cycles")
SPARE = ("traffic", "L3", "RAM", "L1", "L2")
MOST_ROWS = 40


def figure_names(document: Mapping[str, Any]) -> list[str]:
    """Every figure that some point has, in the order that they were first seen."""
    return list(dict.fromkeys(name for row in document["rows"] for name in row["figures"]))


def flat_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One flat record a point: its axes, how it went, its figures."""
    names, axes = figure_names(document), list(document["axes"])
    return [
        {
            **{name: row["point"][name] for name in axes},
            "status": row["status"],
            "pareto": row["pareto"],
            **{f"{name}_value" if name in axes else name: row["figures"].get(name) for name in names},
            "uncounted": ", ".join(row.get("uncounted", ())),
            "reason": row["reason"],
            "key": row["key"],
        }
        for row in document["rows"]
    ]


def csv_bytes(document: Mapping[str, Any]) -> bytes:
    rows = flat_rows(document)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet_bytes(document: Mapping[str, Any]) -> bytes | None:
    """None where there is no pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat_rows(document)), made)
    return made.getvalue()


def figure_text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in BYTES:
        return bytes_text(value)
    if name == "accuracy":
        return f"{value:.2%}"
    return f"{value:.5g}" if isinstance(value, float) else count_text(value)


def cell_text(row: Mapping[str, Any], name: str) -> str:
    """A figure of a point; cycles that rest on kernels that nobody counted are marked."""
    value = row["figures"].get(name)
    is_guess = name in CYCLES and value is not None and bool(row.get("uncounted"))
    return figure_text(name, value) + (" uncounted" if is_guess else "")


def cycles_are(document: Mapping[str, Any]) -> str:
    """What cycles are, in a few words: kernels that nobody counted are named."""
    guessed = ", ".join(document.get("uncounted", ()))
    return f"{document['cycles_are']}, uncounted: {guessed}" if guessed else str(document["cycles_are"])


def exploration_report(document: Mapping[str, Any], evaluated: int, folder: Path | None) -> Iterator[RenderableType]:
    """Those worth having first, then how the others went."""
    rows = document["rows"]
    yield heading(f"{document['model']}: {plural(len(rows), 'point')}, {evaluated} of them evaluated now")
    best = [row for row in rows if row["pareto"]]
    objectives = ", ".join(document["objectives"]) or "nothing"
    yield Text(f"compared by {objectives}; cycles are {document['cycles_are']}, for each sample")
    if document["uncounted"]:
        yield Text(uncounted_text(document["uncounted"]))
    yield Text()
    axes = list(document["axes"])
    names = [name for name in SHOWN if name in figure_names(document) and name not in axes]
    made = table(
        *axes, *names, right=tuple(names), spare=tuple(name for name in SPARE if name in names),
        title=f"{plural(len(best), 'point')} on the Pareto front",
    )  # fmt: skip
    for row in sorted(best, key=lambda one: one["figures"].get("memory", 0))[:MOST_ROWS]:
        cells = [cell_text(row, name) for name in names]
        made.add_row(*(str(row["point"][name]) for name in axes), *cells)
    yield made
    if len(best) > MOST_ROWS:
        yield Text(f"{len(best) - MOST_ROWS} more: -o DIR keeps all")
    reasons = [str(row["reason"]) for row in rows if row["status"] != "ok"]
    if reasons:
        yield Text()
        yield Text(f"{plural(len(reasons), 'point')} without figures:")
        for reason in list(dict.fromkeys(reasons))[:8]:
            yield Text(f"  {reasons.count(reason)} × {reason}")
    if folder is not None:
        yield Text()
        parts = [CSV_FILE, *([PARQUET_FILE] if (folder / PARQUET_FILE).exists() else []), "exploration.json"]
        yield Text(f"{folder}: {', '.join(parts)}, pareto.html")
        if PARQUET_FILE not in parts:
            yield Text("Parquet needs pyarrow: pip install 'tilegrad[explore]'")
