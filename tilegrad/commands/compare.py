"""`tilegrad compare`: untiled, tiled, and tiled with double buffering, in one table."""

from __future__ import annotations

from typing import Annotated

import typer

from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import chip_of, import_model, watch
from tilegrad.commands.groups import grouped
from tilegrad.comparison import compare_modes
from tilegrad.devices.registry import DEFAULT_DEVICE, open_device
from tilegrad.errors import DoesNotFit, VerificationError
from tilegrad.recipe import expect_tolerance
from tilegrad.report.comparison import comparison_json, comparison_report
from tilegrad.report.failure import announce
from tilegrad.report.output import Output, Progress
from tilegrad.verify.compare import DEFAULT_TOLERANCE


@grouped
def compare(
    *,
    model: options.Model,
    device: options.Device = DEFAULT_DEVICE,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Updates of the weights.", rich_help_panel="Recipe")
    ] = 2,
    recipe_options: options.RecipeOptions,
    budget: hardware.BudgetOptions,
    verify: options.Verify = True,
    tolerance: options.Tolerance = DEFAULT_TOLERANCE,
    json_to: options.JsonTo = None,
    no_cache: options.NoCache = False,
) -> int:
    """Run a model untiled, tiled, and tiled with double buffering, and put estimated cycles side by side."""
    output = Output(json_to)
    expect_tolerance(tolerance)
    recipe = recipe_options.recipe()
    target = chip_of(device, budget)
    base = budget.schedule(target)
    with Progress() as progress, open_device(device, use_cache=not no_cache) as opened:
        imported = import_model(model, recipe, watch(output, progress, None))
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
    output.write_json(comparison_json(imported.name, device, target, recipe, rows))
    output.show(*comparison_report(imported.name, device, target, recipe, rows))
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
