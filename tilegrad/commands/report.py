"""`tilegrad report`: what a run did, as one offline page, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilegrad.build.files import check_writable, write_file
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import chip_of, compile_for, running_device, watch
from tilegrad.commands.groups import grouped
from tilegrad.devices.registry import DEFAULT_DEVICE, open_device
from tilegrad.errors import UserError
from tilegrad.exploration.store import is_exploration, read_exploration
from tilegrad.report.output import Output, Progress
from tilegrad.report.picture.page import page
from tilegrad.report.picture.pareto import pareto_page, pareto_plot
from tilegrad.report.picture.plots import KINDS, PARETO, check_plot, plot_bytes
from tilegrad.report.picture.record import read_record, record_of
from tilegrad.training import train as training


@grouped
def report(
    *,
    what: Annotated[
        str,
        typer.Argument(
            metavar="DIR|MODEL",
            help="A folder that train, compare or explore kept (-o DIR), or a model, which is trained first.",
            show_default=False,
        ),
    ],
    output_file: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="The page (.html), or the picture of --plot."),
    ] = Path("report.html"),
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="|".join(KINDS),
            help="A picture for papers instead of the page: -o FILE.png, .svg or .pdf.",
            show_default=False,
        ),
    ] = None,
    device: options.Device = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Updates of the weights.", rich_help_panel="Recipe")
    ] = 4,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    data: options.Data = None,
    verify: options.Verify = True,
    json_to: options.JsonTo = None,
    no_cache: options.NoCache = False,
) -> int:
    """Show a run: loss, memory map, timeline, operator table, roofline, model and C, in one HTML file that works
    offline."""
    output = Output(json_to)
    check_writable(output_file)
    if plot is not None:
        check_plot(plot, output_file)
    elif output_file.suffix not in (".html", ".htm"):
        raise UserError(
            f"the page cannot be called '{output_file}'",
            stage="options",
            expected="a name that ends in .html",
            hint=f"--plot {'|'.join(KINDS)} makes pictures",
        )
    if is_exploration(Path(what)):
        return _of_exploration(output, Path(what), output_file, plot)
    if plot == PARETO:
        raise UserError("a Pareto front is an exploration's", stage="options", expected="a folder of tilegrad explore")
    if Path(what).is_dir():
        record = read_record(Path(what))
    else:
        device = running_device(device, target_name)
        record = _trained(what, device, steps, recipe_options, chip, data, verify=verify, use_cache=not no_cache)
    write_file(output_file, page(record) if plot is None else plot_bytes(plot, output_file, record))
    modes = [one["mode"] for one in record["modes"]]
    output.write_json({"title": record["title"], "modes": modes, "output": str(output_file)})
    output.show(f"{record['title']}: {plot or 'report'} in {output_file}")
    return 0


def _of_exploration(output: Output, folder: Path, output_file: Path, plot: str | None) -> int:
    document = read_exploration(folder)
    if plot not in (None, PARETO):
        raise UserError(f"an exploration has no {plot} to plot", stage="options", expected=f"--plot {PARETO}")
    write_file(output_file, pareto_page(document) if plot is None else pareto_plot(output_file, document))
    output.write_json({"title": document["model"], "modes": [], "output": str(output_file)})
    output.show(f"{document['model']}: {plot or 'exploration'} in {output_file}")
    return 0


def _trained(
    model: str,
    device: str,
    steps: int,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    data: Path | None,
    *,
    verify: bool,
    use_cache: bool,
) -> dict[str, Any]:
    """The record of a run that is made for it."""
    recipe = recipe_options.recipe()
    target = chip_of(device, chip)
    with Progress() as progress, open_device(device, use_cache=use_cache) as opened:
        observer = watch(Output(), progress, None)
        compiled = compile_for(model, recipe, target, observer, schedule=chip.schedule(target))
        run = training.train(
            compiled, opened, steps=steps, data=data, verify=verify, keep_gradients=False, progress=progress
        )
    return record_of([(None, run)])
