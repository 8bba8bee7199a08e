"""An exploration as one offline page, and as a picture: the front, what is behind it, and every point in a table."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad.report.exploration import BYTES, cell_text, cycles_are, figure_names, figure_text
from tilegrad.report.picture.plots import drawn
from tilegrad.visible import visible_line

ASSETS = Path(__file__).parent / "assets"
PAGE_FILE = "pareto.html"
PAIRS = (
    ("memory", "cycles"),
    ("traffic", "cycles"),
    ("memory", "accuracy"),
    ("memory", "loss"),
    ("cycles", "accuracy"),
)
WORDS = {
    "cycles": "cycles of a sample",
    "traffic": "bytes moved for a sample",
    "memory": "memory, all levels",
}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 84, 44, 12, 14
TICKS = 5
WIDE_RATIO = 20
"""Of the largest to the smallest figure, above which an axis is logarithmic."""
_MARK = re.compile("@[A-Z]+@")
Rows = Sequence[Mapping[str, Any]]


def _escaped(value: object) -> str:
    return html.escape(visible_line(str(value)))


def _axis_text(document: Mapping[str, Any], name: str) -> str:
    text = WORDS.get(name, name)
    return f"{text}, {cycles_are(document)}" if name == "cycles" else text


class _Scale:
    """From a figure to a place between `start` and `stop`."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        low, high = min(values), max(values)
        self.is_log = low > 0 and high / low > WIDE_RATIO
        spread = (math.log10(high / low) if self.is_log else high - low) or (abs(high) or 1.0)
        self.low = (math.log10(low) if self.is_log else low) - 0.06 * spread
        self.high = (math.log10(high) if self.is_log else high) + 0.06 * spread
        self.start, self.stop = start, stop

    def __call__(self, value: float) -> float:
        share = ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        places = [self.low + (self.high - self.low) * (k + 0.5) / TICKS for k in range(TICKS)]
        return [10**place if self.is_log else place for place in places]


def _told(document: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    point = ", ".join(f"{name} {value}" for name, value in row["point"].items())
    figures = ", ".join(f"{name} {cell_text(row, name)}" for name in document["objectives"] if name in row["figures"])
    return f"{point}: {figures}"


def _tick_text(name: str, value: float) -> str:
    rounded = int(value) if name in BYTES or name == "cycles" else value
    return figure_text(name, rounded)


def _chart(document: Mapping[str, Any], across: str, up: str) -> Iterator[str]:
    rows: Rows = [
        row for row in document["rows"] if row["figures"].get(across) is not None and row["figures"].get(up) is not None
    ]
    x = _Scale([row["figures"][across] for row in rows], LEFT, WIDTH - RIGHT)
    y = _Scale([row["figures"][up] for row in rows], HEIGHT - BOTTOM, TOP)
    front = sum(bool(row["pareto"]) for row in rows)
    over, below = _escaped(_axis_text(document, up)), _escaped(_axis_text(document, across))
    label = f"{over} over {below}: {len(rows)} points, {front} on the front"
    yield f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    for value in x.ticks():
        place = x(value)
        yield f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        text = _escaped(_tick_text(across, value))
        yield f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 16}" class="middle">{text}</text>'
    for value in y.ticks():
        place = y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{place + 4:.1f}" class="end">{_escaped(_tick_text(up, value))}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" class="middle">{below}</text>'
    for row in sorted(rows, key=lambda one: bool(one["pareto"])):
        kind, radius = ("front", 6) if row["pareto"] else ("behind", 4)
        at = f'cx="{x(row["figures"][across]):.1f}" cy="{y(row["figures"][up]):.1f}"'
        yield f'<circle class="{kind}" {at} r="{radius}"><title>{_escaped(_told(document, row))}</title></circle>'
    yield f"</svg><figcaption>{over} over {below}</figcaption></figure>"


def _table(document: Mapping[str, Any]) -> Iterator[str]:
    axes, names = list(document["axes"]), figure_names(document)
    yield "<thead><tr>"
    for name in ("front", *axes, *names, "reason"):
        yield f'<th scope="col" aria-sort="none"><button type="button">{_escaped(name)}</button></th>'
    yield "</tr></thead><tbody>"
    for row in document["rows"]:
        yield f'<tr class="{"front" if row["pareto"] else _escaped(row["status"])}">'
        yield f'<td data-value="{int(bool(row["pareto"]))}">{"yes" if row["pareto"] else ""}</td>'
        yield from (f"<td>{_escaped(row['point'][name])}</td>" for name in axes)
        for name in names:
            value = row["figures"].get(name)
            text = _escaped(cell_text(row, name))
            yield f'<td class="number" data-value="{"" if value is None else value}">{text}</td>'
        yield f"<td>{_escaped(row['reason'] or '')}</td></tr>"
    yield "</tbody>"


def pairs(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What can be drawn over what: of which some point has both figures, more than one value of each."""
    found = []
    for across, up in PAIRS:
        both = [(row["figures"].get(across), row["figures"].get(up)) for row in document["rows"]]
        known = [pair for pair in both if None not in pair]
        if known and (len(set(known)) > 1 or len(document["rows"]) == 1):
            found.append((across, up))
    return found


def pareto_page(document: Mapping[str, Any]) -> bytes:
    """What comes from a model or an option is text in it: never markup, never script."""
    rows = document["rows"]
    counts = {kind: sum(row["status"] == kind for row in rows) for kind in ("ok", "failed", "crashed")}
    front = sum(bool(row["pareto"]) for row in rows)
    lost = f"{counts['failed']} without a program, {counts['crashed']} crashed"
    told = f"{len(rows)} points: {front} on the front, {lost}"
    varied = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in document["axes"].items())
    parts = {
        "@STYLE@": _asset("page.css") + _asset("pareto.css"),
        "@TITLE@": _escaped(f"{document['model']}: exploration"),
        "@TOLD@": _escaped(told),
        "@VARIED@": _escaped(f"varied {varied}; compared by {', '.join(document['objectives'])}"),
        "@CYCLES@": _escaped(cycles_are(document)),
        "@CHARTS@": "".join(piece for across, up in pairs(document) for piece in _chart(document, across, up)),
        "@ROWS@": "".join(_table(document)),
        "@SCRIPT@": _asset("pareto.js"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], _asset("pareto.html")).encode()


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def pareto_plot(path: Path, document: Mapping[str, Any]) -> bytes:
    """The first pair that can be drawn, as PNG, SVG or PDF."""
    across, up = (pairs(document) or [("memory", "cycles")])[0]

    def draw(axes: Any) -> None:
        for is_front, label in ((False, "behind the front"), (True, "on the Pareto front")):
            own = [
                row["figures"]
                for row in document["rows"]
                if row["pareto"] is is_front and None not in (row["figures"].get(across), row["figures"].get(up))
            ]
            own.sort(key=lambda figures: figures[across])
            places = [figures[across] for figures in own], [figures[up] for figures in own]
            axes.scatter(*places, s=36 if is_front else 16, color="#2f6fdb" if is_front else "#8b98a8", label=label)
        axes.set_xlabel(_axis_text(document, across) + (" (bytes)" if across in BYTES else ""))
        axes.set_ylabel(_axis_text(document, up))
        axes.legend()

    return drawn(path, f"{document['model']}: exploration", draw)
