"""Pictures for papers, as PNG or SVG, with matplotlib: the same figures as the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilegrad.errors import DeviceError, UserError
from tilegrad.sizes import bytes_text

FORMATS = (".png", ".svg", ".pdf")
_COLOURS = {
    "compute": "#2f6fdb",
    "load": "#2c8a4b",
    "store": "#b35900",
    "table": "#7a52c7",
    "fetch": "#0f7b8a",
    "evict": "#a8456f",
    "wait": "#c0392b",
    "state": "#8b98a8",
    "arena": "#4f86d9",
    "scratch": "#58a06b",
    "spilled": "#c07a3e",
}
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
Mode = Mapping[str, Any]


def check_plot(kind: str, path: Path) -> None:
    """Refuses early what cannot be drawn or written."""
    if kind not in KINDS:
        raise UserError(
            f"there is no plot '{kind}'", stage="options", expected=" or ".join(KINDS), got=f"--plot {kind}"
        )
    if path.suffix not in FORMATS:
        raise UserError(
            f"a plot cannot be written to '{path}'",
            stage="options",
            expected=f"a name that ends in {' or '.join(FORMATS)}",
            got=path.suffix or "no ending",
        )
    _matplotlib()


def plot_bytes(kind: str, path: Path, record: Mapping[str, Any]) -> bytes:
    """One picture of the last mode. The same record gives the same bytes."""
    mode = record["modes"][-1]
    return drawn(path, f"{record['title']}, {mode['mode']}", lambda axes: PLOTS[kind](axes, mode))


def drawn(path: Path, title: str, draw: Callable[[Any], None]) -> bytes:
    """A picture in the form that the file's name says."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context({"svg.hashsalt": "tilegrad", "font.size": 9}):
        figure = matplotlib.figure.Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, fontsize=10)
        made = io.BytesIO()
        figure.savefig(made, format=path.suffix[1:], dpi=150, metadata=_UNDATED.get(path.suffix))
    return made.getvalue()


def _matplotlib() -> Any:
    """Without pyplot, which would change how a notebook draws what is not ours."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise DeviceError(
            "plots need the package 'matplotlib'", stage="report", hint="pip install 'tilegrad[plot]'"
        ) from error
    return matplotlib


def _of_clock(mode: Mode, what: str) -> Mapping[str, Any]:
    own = mode["timeline"].get("step")
    if own is None:
        raise UserError(
            f"there is no {what} to plot: the target has one flat memory and no clock",
            stage="report",
            hint="choose a simulated cluster, such as --device sim:siracusa",
        )
    found: Mapping[str, Any] = own
    return found


def _estimates_are(mode: Mode) -> str:
    """What is said of estimated cycles: uncounted kernels are named."""
    return str(mode.get("estimates_are", "estimated"))


def _loss(axes: Any, mode: Mode) -> None:
    run = mode["run"]
    axes.plot(range(1, len(run["losses"]) + 1), [float(loss) for loss in run["losses"]], label="loss")
    if run["reference_losses"]:
        reference = [float(loss) for loss in run["reference_losses"]]
        axes.plot(range(1, len(reference) + 1), reference, "--", label=str(run["reference"]))
    axes.set_xlabel("mini-batch")
    axes.set_ylabel(f"loss ({run['loss']})")
    axes.legend()


def _timeline(axes: Any, mode: Mode) -> None:
    own = _of_clock(mode, "timeline")
    for number in range(len(own["tracks"])):
        for kind_number, kind in enumerate(own["kinds"]):
            bars = [
                (own["start"][i], max(own["end"][i] - own["start"][i], 1))
                for i in range(len(own["start"]))
                if own["track"][i] == number and own["kind"][i] == kind_number
            ]
            axes.broken_barh(bars, (number - 0.4, 0.8), color=_COLOURS[kind])
    axes.set_yticks(range(len(own["tracks"])), own["tracks"])
    axes.invert_yaxis()
    axes.set_xlabel(f"cycles of a step, {_estimates_are(mode)}")


def _memory(axes: Any, mode: Mode) -> None:
    own = mode["memory"]["step"]
    level = max(own["levels"], key=lambda name: (name in ("L2", "RAM"), name))
    one = own["levels"][level]
    from matplotlib.patches import Rectangle

    for kind, _, _, offset, size, start, stop, *_ in one["buffers"]:
        box = Rectangle((start, offset), stop - start, size, facecolor=_COLOURS[kind], edgecolor="white", lw=0.3)
        axes.add_patch(box)
    axes.axhline(one["lower_bound"], linestyle="--", color=_COLOURS["wait"], lw=1, label="lower bound")
    axes.set_xlim(0, own["end"] or 1)
    axes.set_ylim(0, 1.05 * max(one["used"], 1))
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(int(value)))
    axes.set_xlabel(f"{own['unit']} of a step" + (f", {_estimates_are(mode)}" if own["unit"] == "cycles" else ""))
    axes.set_ylabel(f"address in {level}")
    axes.legend(loc="upper right")


def _roofline(axes: Any, mode: Mode) -> None:
    _of_clock(mode, "roofline")
    roof = mode["roofline"]
    rows = [row for row in mode["operators"] if row["macs"] and row["traffic_bytes"] and row["cycles"]]
    if not rows:
        raise UserError("there is no roofline to plot: nothing is moved by tiles", stage="report")
    across = [row["macs"] / row["traffic_bytes"] for row in rows]
    areas = [10 + 600 * row["share"] for row in rows]
    axes.scatter(across, [row["macs_per_cycle"] for row in rows], s=areas, alpha=0.6)
    knee = roof["macs_per_cycle"] / roof["bytes_per_cycle"]
    low, high = min([*across, knee / 4]), max([*across, knee * 4])
    axes.plot([low, knee, high], [low * roof["bytes_per_cycle"], roof["macs_per_cycle"], roof["macs_per_cycle"]], "k")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"MAC per byte over {roof['hop']}")
    axes.set_ylabel(f"MAC per cycle, {_estimates_are(mode)}")


PLOTS: Mapping[str, Callable[[Any, Mode], None]] = {
    "memory": _memory,
    "timeline": _timeline,
    "loss": _loss,
    "roofline": _roofline,
}
PARETO = "pareto"
KINDS = (*PLOTS, PARETO)
"""The last one is of an exploration, the others are of a run."""
