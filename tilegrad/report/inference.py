"""An inference for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from tilegrad.report.format import count_text, error_text, seconds_text, shape_text
from tilegrad.report.output import heading
from tilegrad.report.training import code_line, memory_table, time_line
from tilegrad.training.inference import Inference

SHOWN_VALUES = 16


def inference_report(result: Inference, folder: Path | None) -> Iterator[RenderableType]:
    values = np.asarray(result.output).reshape(-1)
    shown = " ".join(f"{value:.6g}" for value in values[:SHOWN_VALUES])
    yield heading(f"{result.compiled.program.name} on {result.device}")
    yield Text(f"{count_text(result.macs)} MACs, {seconds_text(result.seconds_per_call)} per call")
    more = " …" if len(values) > SHOWN_VALUES else ""
    yield Text(f"{result.output_name} {shape_text(result.output.shape)}: {shown}{more}")
    yield Text()
    if result.verified is None:
        yield Text("not verified (--no-verify)")
    else:
        word = Text("verified", style="bold green") if result.verified else Text("DISAGREES", style="bold red")
        figures = f"relative error {error_text(result.error)}, allowed {error_text(result.tolerance)}"
        yield word + Text(f" against {result.reference}: {figures}")
    yield Text()
    yield memory_table(result.compiled.plan)
    yield Text()
    yield time_line(result.timings_seconds)
    yield code_line(result.compiled, folder)
