"""A comparison for other people's pages: Markdown or CSV, and what changed since an earlier one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad.errors import UserError

FORMATS = ("table", "markdown", "csv")
Document = Mapping[str, Any]


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UserError(f"--format cannot be '{name}'", stage="options", expected=" or ".join(FORMATS), got=name)


def read_comparison(path: Path, model: str | None = None) -> Document:
    """What `compare --json` wrote earlier; of another model it means nothing."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", stage="compare") from error
    except ValueError as error:
        raise UserError(f"'{path}' is not JSON: {error}", stage="compare") from error
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise UserError(f"'{path}' is not a comparison", stage="compare", expected="what compare --json FILE writes")
    if model is not None and found.get("model") != model:
        got = str(found.get("model"))
        raise UserError(f"'{path}' is of another model", stage="compare", expected=model, got=got)
    return found


def figures(row: Mapping[str, Any], accumulate: int) -> dict[str, int | float]:
    """The numbers of a row by name; none of a mode that did not fit."""
    if "cycles" not in row:
        return {}
    cycles = accumulate * row["cycles"]["step"] + row["cycles"]["update"]
    found = {"cycles": cycles, "MAC/cycle": row["macs_per_cycle"], "tiles": row["tiles"]}
    found |= {f"{name} bytes": use["used"] for name, use in row["memory"].items()}
    return found | {f"{hop} bytes": size for hop, size in row["dma_bytes"].items()}


def changes(document: Document, before: Document) -> dict[str, dict[str, float]]:
    """By mode and figure, in per cent; figures that one of them lacks, or that were 0, are left out."""
    old = {row["mode"]: figures(row, before["accum"]) for row in before["rows"]}
    found: dict[str, dict[str, float]] = {}
    for row in document["rows"]:
        own, was = figures(row, document["accum"]), old.get(row["mode"], {})
        found[row["mode"]] = {name: 100.0 * (own[name] / was[name] - 1) for name in own if was.get(name)}
    return found


def change_lines(document: Document, before: Document, path: Path) -> Iterator[str]:
    for mode, own in changes(document, before).items():
        told = ", ".join(f"{name} {percent:+.1f} %" for name, percent in own.items() if abs(percent) >= 0.05)
        yield f"{mode} since {path}: {told or ('the same' if own else 'nothing to compare with')}"


def formatted(document: Document, before: Document | None, style: str) -> str:
    """One row a mode. Numbers are whole in CSV, with separators in Markdown. Kernels that nobody counted are named."""
    changed = {} if before is None else changes(document, before)
    names = list(dict.fromkeys(name for row in document["rows"] for name in figures(row, document["accum"])))
    guessed = ", ".join(document.get("uncounted", ()))
    beside = [*(["cycles change"] if before is not None else []), *(["uncounted"] if guessed else [])]
    heads = ["mode", *names, *beside, "verified"]
    rows = []
    for row in document["rows"]:
        own = figures(row, document["accum"])
        cells = [row["mode"], *(_number(own.get(name), style) for name in names)]
        if before is not None:
            percent = changed[row["mode"]].get("cycles")
            cells.append("" if percent is None else f"{percent:+.1f} %")
        if guessed:
            cells.append(guessed if own else "")
        rows.append([*cells, str(row["verified"]).lower() if own else row.get("reason") or ""])
    return _csv(heads, rows) if style == "csv" else _markdown(heads, rows)


def _number(value: int | float | None, style: str) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}" if style == "markdown" else repr(value)
    return f"{value:,}" if style == "markdown" else str(value)


def _csv(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return made.getvalue()


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:-1]), "---"]
    lines = [heads, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
