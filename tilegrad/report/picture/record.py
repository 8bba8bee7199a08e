"""A record of a run: all that is drawn of it, as plain JSON that outlives the program that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad import __version__
from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.report import json as exact_json
from tilegrad.report.picture.code import code_json
from tilegrad.report.picture.memory_map import memory_json
from tilegrad.report.picture.model_graph import graph_json
from tilegrad.report.picture.operators import operators_json, roofline_json
from tilegrad.report.picture.timeline import timeline_json
from tilegrad.sequence.timing import EntryTiming
from tilegrad.training.comparison import Row, hidden_share
from tilegrad.training.train import Run

FILE = "record.json"
FORMAT = "tilegrad-record"
VERSION = 1


def mode_name(compiled: Compiled) -> str:
    """What tiles and buffers the schedule has, in a word."""
    if compiled.target.is_flat:
        return "flat"
    return compiled.options.buffering if compiled.plan.schedule.is_tiled else "untiled"


def hops_json(timings: Mapping[str, EntryTiming]) -> dict[str, Any]:
    """Of a step: what each pair of memories moved, how long, and how much of it was hidden."""
    step = timings.get("step")
    if step is None:
        return {}
    return {
        hop: {"bytes": one.size_bytes, "busy_cycles": round(one.busy_cycles), "hidden": hidden_share(step, hop)}
        for hop, one in step.hops.items()
    }


def entries_json(timings: Mapping[str, EntryTiming]) -> dict[str, Any]:
    return {
        entry: {
            "cycles": round(one.cycles),
            "compute_cycles": round(one.compute_cycles),
            "conduct_cycles": round(one.conduct_cycles),
            "dma_wait_cycles": round(one.dma_wait_cycles),
            "l3_wait_cycles": round(one.l3_wait_cycles),
            "before_first_cycles": round(one.cycles - sum(nest.cycles for nest in one.nests)),
            "tiles": one.tile_count,
        }
        for entry, one in timings.items()
    }


def mode_json(run: Run, mode: str | None = None) -> dict[str, Any]:
    """One run with all that is drawn of it. What it took on this machine is left out: it is another each time."""
    compiled = run.compiled
    timings = compiled.timing
    document = run.as_json()
    document.pop("timings", None)
    return {
        "mode": mode or mode_name(compiled),
        "run": document,
        "estimates_are": compiled.cycles_are,
        "entries": entries_json(timings),
        "hops": hops_json(timings),
        "operators": operators_json(compiled, timings),
        "roofline": roofline_json(compiled, timings),
        "timeline": timeline_json(compiled, timings),
        "memory": memory_json(compiled, timings),
    }


def record_of(runs: Sequence[tuple[str | None, Run]], rows: Sequence[Row] = ()) -> dict[str, Any]:
    """`runs` are modes side by side; of `rows`, those that did not fit are kept with their reason."""
    shown = runs[-1][1]
    return {
        "format": FORMAT,
        "version": VERSION,
        "tilegrad": __version__,
        "title": f"{shown.compiled.program.name} on {shown.device}",
        "modes": [mode_json(run, mode) for mode, run in runs],
        "left_out": [{"mode": row.mode, "reason": row.reason} for row in rows if row.run is None],
        "graph": graph_json(shown.compiled),
        "code": code_json(shown.compiled),
    }


def record_bytes(record: Mapping[str, Any]) -> bytes:
    return exact_json.dumps(record, indent=None).encode()


def read_record(folder: Path) -> dict[str, Any]:
    """What a run left in a folder; refused where it is none, broken, or of a later tilegrad."""
    path = folder / FILE
    hint = "a run keeps it: tilegrad train MODEL -o DIR, or tilegrad compare MODEL -o DIR"
    if not path.is_file():
        raise UserError(f"'{folder}' is not the folder of a run", stage="report", expected=FILE, hint=hint)
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise UserError(f"'{path}' cannot be read: {error}", stage="report", hint=hint) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or not isinstance(record.get("version"), int):
        raise UserError(f"'{path}' is not a record of tilegrad's", stage="report", hint=hint)
    if record["version"] > VERSION:
        raise UserError(
            f"'{path}' was written by a later tilegrad ({record.get('tilegrad')})",
            stage="report",
            expected=f"version {VERSION} or before",
            got=f"version {record['version']}",
            hint="update tilegrad, or run the training again",
        )
    return record
