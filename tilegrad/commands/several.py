"""Programs over several devices as folders: `tilegrad compile --device D*N -o FOLDER`, and `tilegrad run FOLDER`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from tilegrad.build.files import check_writable, write_file
from tilegrad.build.folder import write_folder
from tilegrad.commands import options
from tilegrad.commands.compiling import chip_of, compile_for, compile_others, schedule_of, watch
from tilegrad.commands.hardware import BudgetOptions
from tilegrad.commands.options import npz_option
from tilegrad.errors import UserError
from tilegrad.parallel.folder import folder_name, program_files, read_folder
from tilegrad.parallel.form import fingerprint
from tilegrad.parallel.program import RunningProgram, orchestration
from tilegrad.parallel.specification import Specification
from tilegrad.recipe import Recipe, expect_count
from tilegrad.report.arrays import npz_bytes
from tilegrad.report.format import plural
from tilegrad.report.output import Output, Progress, heading
from tilegrad.report.several import shares_table
from tilegrad.report.training import memory_table, time_line
from tilegrad.training.train import memory_json


def refuse_for_several(given: Mapping[str, object]) -> None:
    """Options of `compile` that are for the C of one device."""
    for option, value in given.items():
        if value:
            raise UserError(
                f"{option} is for the C of one device", stage="options", expected="one --device", got="several devices"
            )


@dataclass(frozen=True)
class SeveralOptions:
    """What `compile` was asked for."""

    devices: Specification
    chip: BudgetOptions
    steps: int
    weights: Path | None
    output_folder: Path | None
    force: bool
    dump_after: str | None
    use_cache: bool


def compile_several(model: str, recipe: Recipe, asked: SeveralOptions, output: Output) -> int:
    """The folder of a program over several devices; the stages that are shown are those for the first one."""
    devices = asked.devices
    target = chip_of(devices.first, asked.chip)
    schedule = schedule_of(asked.chip, target, True)
    with Progress() as progress:
        observer = watch(output, progress, asked.dump_after)
        compiled = compile_for(model, recipe, target, observer, schedule=schedule, weights=asked.weights)
        programs = {target.name: compiled, **compile_others(compiled, devices, asked.chip)}
        files: dict[str, bytes] = {}
        if asked.output_folder is not None:
            files = observer.run(
                "build", lambda: program_files(programs, devices, updates=asked.steps, use_cache=asked.use_cache)
            )
            write_folder(asked.output_folder, files, force=asked.force)
    folders = {name: folder_name(name) for name in devices.kinds}
    output.write_json(
        {
            "model": compiled.name,
            "device": devices.text,
            "devices": list(devices.names),
            "folders": folders,
            "shares": recipe.accumulate,
            "batch": recipe.batch,
            "fingerprint": fingerprint(compiled.program),
            "output": None if asked.output_folder is None else str(asked.output_folder),
            "memory": {
                name: {level: memory_json(use) for level, use in program.plan.memory.items()}
                for name, program in programs.items()
            },
            "timings": observer.seconds,
            "files": sorted(files),
        }
    )
    if asked.output_folder is not None:
        output.show(heading(f"{compiled.name} on {devices.text}"))
        output.show(Text(f"{plural(recipe.accumulate, 'share')} an update, of batch {recipe.batch}"), Text())
        for name, program in programs.items():
            output.show(Text(name), memory_table(program.plan), Text())
        output.show(time_line(observer.seconds))
        output.show(Text(f"{plural(len(files), 'file')} in {asked.output_folder}; tilegrad run {asked.output_folder}"))
    return 0


def run(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="What `tilegrad compile --device D*N -o FOLDER` wrote.", show_default=False
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="Updates. Default: as it was written.", show_default=False),
    ] = None,
    data: options.Data = None,
    save_weights: Annotated[
        Path | None, npz_option("--save-weights", "the trained parameters, by initializer name,")
    ] = None,
    json_to: options.JsonTo = None,
) -> int:
    """Check every file of a program over several devices, start it, and train. Neither model nor compiler is needed."""
    output = Output(json_to)
    if steps is not None:
        expect_count("the number of steps", steps)
    if save_weights is not None:
        check_writable(save_weights)
    timings: dict[str, float] = {}
    with Progress() as progress:
        progress("check")
        start = time.perf_counter()
        checked = read_folder(folder)
        train = orchestration(checked).train
        timings["check"] = time.perf_counter() - start
        progress("start")
        start = time.perf_counter()
        with RunningProgram(checked) as program:
            timings["start"] = time.perf_counter() - start
            updates = program.training["updates"] if steps is None else steps
            batches = program.batches(updates, data)
            progress("train")
            start = time.perf_counter()
            losses = train(program, batches, updates)
            timings["run"] = time.perf_counter() - start
            document = _document(program, updates, losses, timings)
            if save_weights is not None:
                write_file(save_weights, npz_bytes(program.weights()))
    output.write_json(document)
    output.show(*_report(document))
    return 0


def _document(program: RunningProgram, updates: int, losses: list[float], timings: dict[str, float]) -> dict[str, Any]:
    training = program.training
    return {
        "tilegrad": training["tilegrad"],
        "model": training["model"],
        "device": training["specification"],
        "steps": updates,
        "accum": training["shares"],
        "batch": training["batch"],
        "seed": training["seed"],
        "fingerprint": program.facts.fingerprint,
        "losses": losses,
        "verified": None,
        "weights_sha256": program.weights_sha256(),
        "shares": program.shares_json(),
        "timings": timings,
    }


def _report(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    losses = document["losses"]
    yield heading(f"{document['model']} on {document['device']}")
    updates, shares = plural(document["steps"], "update"), plural(document["accum"], "share")
    yield Text(f"{updates} of {shares}, batch {document['batch']}")
    yield Text(f"loss {losses[0]:.7g} to {losses[-1]:.7g}; weights {document['weights_sha256']}")
    yield Text("not verified: a folder holds no reference; `tilegrad train` compares with one")
    yield Text()
    yield shares_table(document["shares"])
    yield Text()
    yield time_line(document["timings"])
