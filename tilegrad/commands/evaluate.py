"""`tilegrad evaluate`: how good a model is on samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import chip_of, compile_for, running_device, watch
from tilegrad.commands.groups import grouped
from tilegrad.commands.options import RecipeOptions
from tilegrad.devices.registry import open_device
from tilegrad.report.format import plural
from tilegrad.report.output import Output, Progress, heading
from tilegrad.report.training import time_line
from tilegrad.training.evaluation import evaluate as evaluate_samples


@grouped
def evaluate(
    *,
    model: options.Model,
    device: options.Device = "host",
    target_name: options.RunTarget = None,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="F.npz|DIR",
            help="Samples as for train: arrays x and y, or one by the name of each input.",
            show_default=False,
        ),
    ],
    batch: options.Batch = None,
    loss: options.Loss = None,
    seed: options.Seed = 0,
    weights: options.Weights = None,
    top_k: options.TopK = None,
    chip: hardware.ChipOptions,
    json_to: options.JsonTo = None,
    no_cache: options.NoCache = False,
) -> int:
    """Measure a model on samples: loss, and accuracy or mean error. Every sample counts, whatever the batch size."""
    output = Output(json_to)
    recipe = RecipeOptions(loss=loss, batch=batch, seed=seed).recipe()
    device = running_device(device, target_name, "host")
    target = chip_of(device, chip)
    with Progress() as progress, open_device(device, use_cache=not no_cache) as opened:
        observer = watch(output, progress, None)
        compiled = compile_for(model, recipe, target, observer, schedule=chip.schedule(target), weights=weights)
        found = evaluate_samples(compiled, opened, data, top_k=tuple(top_k or ()), progress=progress)
    found = replace(found, timings_seconds={**observer.seconds, **found.timings_seconds})
    output.write_json(found.as_json())
    notes = [Text(f"note: {note}") for note in compiled.model.notes]
    output.show(heading(f"{compiled.program.name} on {found.device}"), *notes)
    output.show(Text(f"{plural(found.measures.samples, 'sample')} of {data}: {found.measures}"))
    output.show(time_line(found.timings_seconds))
    return 0
