"""Programs, plans, listings and runs in a notebook: figures and drawings of the report page, without a script."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import estimates_are
from tilegrad.errors import DeviceError
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.pictured import draws
from tilegrad.report.picture.memory_map import memory_json
from tilegrad.report.picture.operators import operators_json
from tilegrad.report.picture.plots import PLOTS, drawn
from tilegrad.report.picture.timeline import timeline_json
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.sizes import bytes_text
from tilegrad.training.train import Run
from tilegrad.visible import visible_line

MOST_ROWS = 12
_CELL = 'style="text-align:{};padding:0 .6em"'


@dataclass(frozen=True)
class _Drawn:
    """What pictures are made of: a plan, and the listing where there is one."""

    plan: Plan
    listing: Listing
    timings: Mapping[str, EntryTiming]

    @property
    def mode(self) -> dict[str, Any]:
        return {
            "memory": memory_json(self, self.timings),
            "timeline": timeline_json(self, self.timings),
            "operators": operators_json(self, self.timings),
            "estimates_are": estimates_are(self.plan.schedule),
        }


@draws(Program)
def program_html(program: Program) -> str:
    rows: dict[str, list[int]] = {}
    for tensor in program.state:
        row = rows.setdefault(tensor.role.value, [0, 0])
        row[0] += 1
        row[1] += tensor.type.size_bytes
    state = _table(("state", "tensors", "bytes"), [(role, *counts) for role, counts in rows.items()])
    entries = [(name, len(graph.nodes), ", ".join(graph.inputs)) for name, graph in program.entries.items()]
    return _joined(_heading(f"program {program.name}"), state, _table(("entry", "operators", "inputs"), entries))


@draws(Plan)
def plan_html(plan: Plan) -> str:
    mode = _Drawn(plan, Listing(plan, {}), {}).mode
    return _joined(_heading(f"plan of {_title(plan)}"), _memory(plan), _picture("memory", mode, _title(plan)))


@draws(Listing)
def listing_html(listing: Listing) -> str:
    return _joined(_heading(f"listing of {_title(listing.plan)}"), *_listed(listing, time_listing(listing)))


@draws(Compiled)
def compiled_html(compiled: Compiled) -> str:
    return _joined(_heading(repr(compiled)), _memory(compiled.plan), *_listed(compiled.listing, compiled.timing))


@draws(Run)
def run_html(run: Run) -> str:
    document = run.as_json()
    pictures = [_picture("loss", {"run": document}, f"{run.compiled.name} on {run.device}")] if run.losses else []
    figures = [("updates", run.steps), ("verified", document["verified"])]
    cycles = [(f"cycles of {entry}", count) for entry, count in run.cycles.items() if count is not None]
    cycles_are = run.cycles_are if run.counted_cycles else run.compiled.cycles_are
    figures += [*cycles, ("cycles are", cycles_are)] if cycles else []
    shown = _Drawn(run.compiled.plan, run.compiled.listing, run.compiled.timing)
    pictures.append(_picture("memory", shown.mode, _title(shown.plan)))
    return _joined(_heading(repr(run)), _table(("figure", "value"), figures), _memory(shown.plan), *pictures)


def _listed(listing: Listing, timings: Mapping[str, EntryTiming]) -> Iterator[str]:
    """Memory, time where the target has a clock, and the operators that take most of it."""
    mode = _Drawn(listing.plan, listing, timings).mode
    yield _picture("memory", mode, _title(listing.plan))
    if "step" in mode["timeline"]:
        yield _picture("timeline", mode, _title(listing.plan))
    yield _operators(mode["operators"], mode["estimates_are"])


def _title(plan: Plan) -> str:
    return f"{plan.schedule.program.name} for {plan.schedule.target.name}"


def _memory(plan: Plan) -> str:
    rows = [
        (name, use.used_bytes, use.lower_bound_bytes, "no limit" if use.capacity_bytes is None else use.capacity_bytes)
        for name, use in plan.memory.items()
    ]
    return _table(("memory", "used, bytes", "lower bound", "capacity"), rows)


def _operators(rows: Sequence[Mapping[str, Any]], cycles_are: str) -> str:
    """The costliest: by cycles where there is a clock, else by multiply-adds. What nobody counted is marked."""
    key = "cycles" if any(row["cycles"] is not None for row in rows) else "macs"
    first = sorted(rows, key=lambda row: -(row[key] or 0))[:MOST_ROWS]
    columns = ("entry", "op", "node", "macs", "tile", "footprint_bytes", "traffic_bytes", "cycles", "bound")
    marked = [{**row, "cycles": f"{row['cycles']:,} uncounted"} if row["uncounted"] else row for row in first]
    table = _table(columns, [tuple(row[column] for column in columns) for row in marked])
    left = len(rows) - len(first)
    said = f"<p>cycles are {_text(cycles_are)}</p>" if key == "cycles" else ""
    return table + said + (f"<p>and {left:,} more operators; tilegrad report has all of them</p>" if left else "")


def _picture(kind: str, mode: Mapping[str, Any], title: str) -> str:
    try:
        content = drawn(Path(f"{kind}.png"), title, lambda axes: PLOTS[kind](axes, mode))
    except DeviceError as error:
        return f"<p>{_text(error.message)}: {_text(error.hint or '')}</p>"
    encoded = base64.b64encode(content).decode()
    return f'<img alt="{kind} of {_text(title)}" style="max-width:100%" src="data:image/png;base64,{encoded}">'


def _heading(text: str) -> str:
    return f"<p><b>{_text(text)}</b></p>"


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return html.escape("" if value is None else visible_line(str(value)))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers to the right; a count of bytes says how many they are in short."""

    def cell(value: object, column: str) -> str:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        told = f' title="{bytes_text(value)}"' if isinstance(value, int) and "byte" in column else ""
        return f"<td {_CELL.format('right' if is_number else 'left')}{told}>{_text(value)}</td>"

    top = "".join(f"<th {_CELL.format('left')}>{_text(name.replace('_', ' '))}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(cell(value, column) for value, column in zip(row, head, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _joined(*parts: str) -> str:
    return "<div>" + "\n".join(parts) + "</div>"
