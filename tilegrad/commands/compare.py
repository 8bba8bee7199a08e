"""`tilegrad compare`: untiled, tiled, and tiled with double buffering, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilegrad.build.folder import write_folder
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import check_output, chip_of, import_model, running_device, watch
from tilegrad.commands.groups import grouped
from tilegrad.devices.registry import DEFAULT_DEVICE, open_device
from tilegrad.errors import DoesNotFit, VerificationError
from tilegrad.recipe import expect_tolerance
from tilegrad.report import json
from tilegrad.report.comparison import comparison_json, comparison_report
from tilegrad.report.comparison_text import FORMATS, change_lines, check_format, formatted, read_comparison
from tilegrad.report.failure import announce
from tilegrad.report.output import Output, Progress
from tilegrad.report.picture.record import FILE as RECORD_FILE
from tilegrad.report.picture.record import record_bytes, record_of
from tilegrad.training.comparison import compare_modes
from tilegrad.verify.compare import DEFAULT_TOLERANCE


@grouped
def compare(
    *,
    model: options.Model,
    device: options.Device = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Updates of the weights.", rich_help_panel="Recipe")
    ] = 2,
    recipe_options: options.RecipeOptions,
    budget: hardware.BudgetOptions,
    verify: options.Verify = True,
    tolerance: options.Tolerance = DEFAULT_TOLERANCE,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Keep what `tilegrad report DIR` shows: every mode with its timeline and memory map.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    force: options.Force = False,
    json_to: options.JsonTo = None,
    style: Annotated[
        str,
        typer.Option("--format", metavar="|".join(FORMATS), help="How rows are printed.", rich_help_panel="Output"),
    ] = "table",
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="OLD.json",
            help="Say in per cent what changed since a comparison that --json wrote.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    no_cache: options.NoCache = False,
) -> int:
    """Run a model untiled, tiled, and tiled with double buffering, and put estimated cycles side by side."""
    output = Output(json_to)
    check_output(output_folder, force=force)
    check_format(style)
    if against is not None:
        read_comparison(against)
    expect_tolerance(tolerance)
    recipe = recipe_options.recipe()
    device = running_device(device, target_name)
    target = chip_of(device, budget)
    base = budget.schedule(target)
    with Progress() as progress, open_device(device, use_cache=not no_cache) as opened:
        imported = import_model(model, recipe, watch(output, progress, None))
        before = None if against is None else read_comparison(against, imported.name)
        rows = compare_modes(
            imported,
            recipe,
            target,
            opened,
            base=base,
            steps=steps,
            verify=verify,
            tolerance=tolerance,
            progress=progress,
        )
    document = comparison_json(imported.name, device, target, recipe, rows)
    runs = [(row.mode, row.run) for row in rows if row.run is not None]
    if output_folder is not None and runs:
        kept = {RECORD_FILE: record_bytes(record_of(runs, rows)), "comparison.json": json.dumps(document).encode()}
        write_folder(output_folder, kept, force=force)
    output.write_json(document)
    if style == "table":
        output.show(*comparison_report(imported.name, device, target, recipe, rows))
        if before is not None and against is not None:
            output.show(*change_lines(document, before, against))
    else:
        output.dump(formatted(document, before, style))
    if all(row.run is None for row in rows):
        return announce(DoesNotFit(f"no mode of '{imported.name}' fits", stage="memory", hint="the reasons are above"))
    wrong = [
        f"{row.mode} {row.run.verdict.outcome}"
        for row in rows
        if row.run is not None and row.run.verdict and not row.run.verdict.verified
    ]
    if wrong:
        return announce(
            VerificationError("not verified against the reference", stage="verify", got=", ".join(wrong))
        )
    return 0
