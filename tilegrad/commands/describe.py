"""`tilegrad infer`, `compile` and `inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilegrad.codegen.saved import save_cost
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import (
    build_image,
    check_output,
    chip_of,
    compile_for,
    flat_chip,
    import_model,
    running_device,
    watch,
    write_project,
)
from tilegrad.commands.groups import grouped
from tilegrad.commands.several import SeveralOptions, compile_several, refuse_for_several
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.devices.registry import DEFAULT_DEVICE, device_kind, open_device
from tilegrad.errors import DoesNotFit, UserError, VerificationError
from tilegrad.inspection import Inspection, inspect_program
from tilegrad.parallel.specification import parse_devices
from tilegrad.passes.parameters import parameters_of
from tilegrad.pipeline import compile_inference, compile_model, ways_to_fit
from tilegrad.recipe import expect_count, expect_tolerance
from tilegrad.recipe.storage import FORM, Storage
from tilegrad.report.checkpoint import wear_text
from tilegrad.report.failure import announce
from tilegrad.report.format import bytes_text, count_text, cycles_text, error_text
from tilegrad.report.inference import inference_report
from tilegrad.report.inspection import inspection_report, parameter_report
from tilegrad.report.output import Output, Progress, heading
from tilegrad.report.tiles import pipes_json, tiles_json, tiles_report
from tilegrad.report.training import code_line, image_line, memory_table, time_line
from tilegrad.stack import stack_use
from tilegrad.targets.base import OPENCL_C, Target
from tilegrad.training import inference
from tilegrad.training.train import memory_json
from tilegrad.verify.compare import DEFAULT_TOLERANCE


@grouped
def infer(
    *,
    model: options.Model,
    device: options.Device = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    batch: options.Batch = None,
    batchnorm: options.BatchNorm = "frozen",
    seed: options.Seed = 0,
    data: options.Data = None,
    weights: options.Weights = None,
    chip: hardware.ChipOptions,
    verify: options.Verify = True,
    tolerance: options.Tolerance = DEFAULT_TOLERANCE,
    output_folder: options.OutputFolder = None,
    force: options.Force = False,
    json_to: options.JsonTo = None,
    dump_after: options.DumpAfter = None,
    no_cache: options.NoCache = False,
) -> int:
    """Run the inference entry on one mini-batch, and compare its output with a float64 forward pass."""
    output = Output(json_to)
    expect_tolerance(tolerance)
    check_output(output_folder, force=force)
    recipe = options.RecipeOptions(batch=batch, batchnorm=batchnorm, seed=seed).recipe()
    device = running_device(device, target_name)
    target = chip_of(device, chip)
    with Progress() as progress, open_device(device, use_cache=not no_cache) as opened:
        observer = watch(output, progress, dump_after)
        imported = import_model(model, recipe, observer, weights)
        compiled = compile_inference(imported, recipe, target, observer, options=chip.schedule(target))
        result = inference.infer(compiled, opened, data=data, verify=verify, tolerance=tolerance, progress=progress)
    result = replace(result, timings_seconds={**observer.seconds, **result.timings_seconds})
    document = result.as_json()
    error = None
    if result.verified is False:
        error = VerificationError(
            f"the output disagrees with {result.reference}",
            stage="verify",
            expected=f"a relative error within {tolerance:g}",
            got=f"'{result.output_name}' is off by {error_text(result.error)}",
        )
        document |= error.as_json()
    if output_folder is not None:
        write_project(compiled, output_folder, force=force)
    output.write_json(document)
    output.show(*inference_report(result, output_folder))
    return 0 if error is None else announce(error)


@grouped
def compile_project(
    *,
    model: options.Model,
    device: options.Devices = DEFAULT_DEVICE,
    shares: options.Shares = None,
    target: options.TargetName = None,
    output_folder: options.OutputFolder = None,
    force: options.Force = False,
    weights_c: Annotated[
        bool, typer.Option("--weights-c", help="Also write the weights as a C array, for firmware without files.")
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar=FORM,
            help="Add tg_save and tg_load: what was learned survives power cuts, in a flash such as 64K:4K:256.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            help="Updates of an image that runs by itself (on Siracusa), or of a program over several devices.",
        ),
    ] = 4,
    recipe_options: options.RecipeOptions,
    weights: options.Weights = None,
    chip: hardware.ChipOptions,
    json_to: options.JsonTo = None,
    dump_after: options.DumpAfter = None,
    no_cache: options.NoCache = False,
) -> int:
    """Write the C project of a model: plain C99 that infers and trains, no malloc, no dependency. Nothing is run.

    For a board, its image is in the folder too. For several devices (D*N,…) it is a program that `tilegrad run`
    executes: a module to read, and a folder for each kind of device.
    """
    output = Output(json_to)
    if output_folder is None and dump_after is None:
        raise UserError(
            "there is nowhere to write the C project",
            stage="options",
            expected="-o DIR",
            hint=f"tilegrad compile {model} -o {Path(model).stem}-c",
        )
    check_output(output_folder, force=force)
    devices = parse_devices(device)
    target = flat_chip(device, target, chip)
    recipe = recipe_options.with_shares(shares).recipe(None)
    expect_count("the number of steps", steps)
    if devices.is_several:
        refuse_for_several({"--target": target, "--storage": storage, "--weights-c": weights_c})
        several = SeveralOptions(devices, chip, steps, weights, output_folder, force, dump_after, not no_cache)
        return compile_several(model, recipe, several, output)
    limited = chip_of(device, chip, target)
    schedule = chip.schedule(limited)
    flash = flash_of(storage, limited)
    with Progress() as progress:
        observer = watch(output, progress, dump_after)
        compiled = compile_for(
            model, recipe, limited, observer, schedule=schedule, weights_as_c=weights_c, weights=weights, storage=flash
        )
        image = None
        if output_folder is not None and target is None:
            image = observer.run("build", lambda: build_image(compiled, device, steps=steps, use_cache=not no_cache))
        stack = stack_use(compiled, use_cache=not no_cache)
    files = image.files if image is not None else _project_files(compiled, device, target)
    uncounted = uncounted_kernels(compiled.plan.schedule)
    cost = None if flash is None else save_cost(compiled.program, compiled.target.name, flash)
    if output_folder is not None:
        write_project(compiled, output_folder, files=files, stack=stack, force=force)
    output.write_json(
        {
            "model": compiled.program.name,
            "device": device,
            "target": compiled.target.name,
            "output": None if output_folder is None else str(output_folder),
            "memory": {name: memory_json(use) for name, use in compiled.plan.memory.items()},
            "cycles": compiled.cycles,
            "cycles_are": compiled.target.cycles_are,
            "uncounted": list(uncounted),
            "stack": stack.as_json(),
            "image": None if image is None else image.facts.as_json(),
            "storage": None if cost is None else cost.as_json(),
            "c_lines": compiled.project.line_count,
            "timings": observer.seconds,
            "files": sorted(files),
        }
    )
    if output_folder is not None:
        output.show(heading(f"{compiled.program.name} for {compiled.target.name}"), Text(), memory_table(compiled.plan))
        cycles = cycles_text(compiled.cycles, limited.cycles_word, uncounted)
        output.show(Text(str(stack)), *([Text(cycles)] if cycles else []), Text())
        output.show(time_line(observer.seconds), code_line(compiled, output_folder))
        if cost is not None:
            wear = wear_text(cost.erases, cost.sector_bytes, None)
            often = f"{count_text(1000 * cost.erases)} in 1,000 updates that are each saved"
            output.show(f"a save: {bytes_text(cost.save_bytes)}; {wear}, {often}")
        if image is not None:
            output.show(image_line(image.facts))
    return 0


def flash_of(text: str | None, target: Target) -> Storage | None:
    if text is not None and target.language == OPENCL_C:
        raise UserError(
            f"a program for '{target.name}' saves nothing by itself",
            stage="options",
            expected="a target in C",
            got="--storage",
            hint="its host program can: train --checkpoint F",
        )
    return None if text is None else Storage.parse(text)


def _project_files(compiled: Compiled, device: str, target: str | None) -> Mapping[str, bytes]:
    """The device's own, unless a target was named that it may have nothing to do with."""
    return compiled.project.files if target is not None else device_kind(device).files_for(device, compiled)


@grouped
def inspect(
    *,
    model: options.Model,
    device: options.Device = DEFAULT_DEVICE,
    target: options.TargetName = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="List every initializer: what it is, whether it trains, and why.")
    ] = False,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="List how each operator is cut into tiles, and why. For chips with L1.")
    ] = False,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    json_to: options.JsonTo = None,
    dump_after: options.DumpAfter = None,
) -> int:
    """Show operators, MACs, parameters and the memory budget of training a model, and whether it fits."""
    output = Output(json_to)
    recipe = recipe_options.recipe()
    limited = chip_of(device, chip, flat_chip(device, target, chip))
    schedule = chip.schedule(limited)
    if tiles and limited.is_flat:
        raise UserError(
            f"target '{limited.name}' has no L1, so nothing is cut into tiles",
            stage="options",
            hint=f"add --device {DEFAULT_DEVICE}",
        )
    with Progress() as progress:
        observer = watch(output, progress, dump_after)
        imported = import_model(model, recipe, observer)
        ways = None
        if recipe.train is None and not parameters_of(imported.parameters):
            compiled = compile_inference(imported, recipe, limited.without_limits(), observer, options=schedule)
        else:
            if schedule.fit_bytes is not None and limited.is_flat:
                ways = observer.run("ways", lambda: ways_to_fit(imported, recipe, limited, schedule), "program")
                schedule = schedule if ways.fits else replace(schedule, fit_bytes=None)
            compiled = compile_model(imported, recipe, limited.without_limits(), observer, options=schedule)
            if ways is None and limited.is_flat and _is_over(compiled, limited):
                ways = observer.run("ways", lambda: ways_to_fit(imported, recipe, limited, schedule), "program")
        stack = observer.run("stack", lambda: stack_use(compiled))
    facts = inspect_program(compiled, limited, stack, ways)
    document = facts.as_json()
    if tiles:
        pipes = pipes_json(compiled)
        document |= {"tiles": tiles_json(compiled), "cycles_are": compiled.target.cycles_are}
        document |= {"pipes": pipes} if pipes else {}
    error = None if facts.fits else does_not_fit(facts)
    if error is not None:
        document |= error.as_json()
    output.write_json(document)
    if tiles:
        output.show(*tiles_report(compiled))
    else:
        output.show(*(parameter_report(facts) if parameters else inspection_report(facts)))
    return 0 if error is None else announce(error)


def _is_over(compiled: Compiled, limited: Target) -> bool:
    capacity = limited.memory(limited.home).capacity_bytes
    return capacity is not None and compiled.plan.memory[limited.home].used_bytes > capacity


def does_not_fit(facts: Inspection) -> DoesNotFit:
    over = {name: level for name, level in facts.memory.items() if not level.fits}
    least = None if facts.ways is None or facts.ways.fits else facts.ways
    best = "" if least is None else f"; {least.least_bytes} at best with the same results, bound {least.bound_bytes}"
    return DoesNotFit(
        f"the program does not fit into {' and '.join(over)} of {facts.target}",
        stage="memory",
        expected=", ".join(f"at most {level.capacity_bytes} bytes of {name}" for name, level in over.items()),
        got=", ".join(f"{level.used_bytes} bytes" for level in over.values()) + best,
        hint="; or ".join(facts.advice) or None,
    )
