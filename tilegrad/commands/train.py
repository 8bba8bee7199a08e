"""`tilegrad train` and `tilegrad gradcheck`: the generated C at work, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilegrad.build.files import check_writable, write_file
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import (
    C_FILES,
    check_output,
    chip_of,
    compile_for,
    compile_others,
    flat_device,
    running_device,
    schedule_of,
    watch,
    write_project,
)
from tilegrad.commands.groups import grouped
from tilegrad.commands.options import RecipeOptions, npz_option
from tilegrad.data.epochs import DEFAULT_STEPS
from tilegrad.devices.base import Device
from tilegrad.devices.embedded import AutonomousDevice
from tilegrad.devices.registry import DEFAULT_DEVICE, device_kind, kinds, open_device
from tilegrad.errors import UserError, VerificationError
from tilegrad.ir.residency import Residency
from tilegrad.parallel.dask_group import DaskGroup
from tilegrad.parallel.group import DeviceGroup, open_devices
from tilegrad.parallel.specification import parse_devices
from tilegrad.recipe import expect_tolerance
from tilegrad.report.arrays import npz_bytes
from tilegrad.report.failure import announce
from tilegrad.report.gradcheck import gradcheck_report
from tilegrad.report.output import Output, Progress
from tilegrad.report.picture.record import record_of
from tilegrad.report.picture.trace import check_trace, trace_bytes
from tilegrad.report.training import run_report
from tilegrad.stack import stack_use
from tilegrad.targets.base import OPENCL_C
from tilegrad.training import train as training
from tilegrad.training.beside import beside_all
from tilegrad.training.gradcheck import check_gradients
from tilegrad.training.keeping import Keeping
from tilegrad.verify.compare import DEFAULT_TOLERANCE, Verdict
from tilegrad.verify.finite_differences import GRADIENT_TOLERANCE

_EXPECTED = "errors within {tolerance:g}, or ten times PyTorch's own float32 difference"
_NOT_VERIFIED = {
    "disagrees": ("the run disagrees with {reference}", _EXPECTED, None),
    "diverged": (
        "the run diverged: its numbers are not finite, and neither are those of {reference}",
        "finite losses and weights",
        "a smaller --lr",
    ),
    "inconclusive": (
        "the run is neither verified nor wrong: {reference} is itself as far off in float32 when its weights move by "
        "one unit in the last place",
        _EXPECTED,
        "fewer --steps or a smaller --lr amplify rounding less",
    ),
}


def disagreement(verdict: Verdict) -> VerificationError:
    """Why a run is not verified. Names the worst figure first; there may be hundreds."""
    message, expected, hint = _NOT_VERIFIED[verdict.outcome]
    failures = verdict.failures()
    is_stored = ".npz" in verdict.reference and verdict.outcome == "disagrees"
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return VerificationError(
        message.format(reference=verdict.reference),
        stage="verify",
        expected=expected.format(tolerance=verdict.tolerance),
        got=f"{failures[0]}{more}" if failures else f"the losses {_first_and_last(verdict.reference_losses)}",
        hint="what is stored beside the graphs is of one learning rate: is it --lr?" if is_stored else hint,
    )


def _first_and_last(losses: Sequence[float]) -> str:
    return f"{losses[0]:.3g} … {losses[-1]:.3g}" if losses else "none"


def check_runs(device: str) -> None:
    """Refuses a device that runs nothing, for options that need results."""
    if not device_kind(device).capabilities.runs:
        raise UserError(
            f"device '{device}' runs nothing, so there is nothing to save",
            stage="options",
            hint="choose another device: `tilegrad devices` lists them",
        )


def open_all(device: str, scheduler: str | None, *, use_cache: bool) -> Device:
    """One device, several of this machine, or the workers of a cluster."""
    if scheduler is not None:
        return DaskGroup(device, scheduler, use_cache=use_cache)
    return open_devices(device, use_cache=use_cache)


def check_profiles(device: str) -> None:
    if not device_kind(device).capabilities.profiles:
        able = ", ".join(name for kind in kinds() if kind.capabilities.profiles for name in kind.names())
        raise UserError(
            f"device '{device}' cannot tell where cycles go", stage="options", got="--profile", hint=f"--device {able}"
        )


@grouped
def train(
    *,
    model: options.Model,
    device: options.Devices = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    shares: options.Shares = None,
    scheduler: options.Scheduler = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help=f"Updates of the weights. Default: {DEFAULT_STEPS}, or as --epochs says.",
            show_default=False,
            rich_help_panel="Recipe",
        ),
    ] = None,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    data: options.DataOptions,
    verify: options.Verify = True,
    tolerance: options.Tolerance = DEFAULT_TOLERANCE,
    output_folder: options.OutputFolder = None,
    force: options.Force = False,
    json_to: options.JsonTo = None,
    weights: options.Weights = None,
    save: options.Save = None,
    keep_adapters: options.KeepAdapters = False,
    save_weights: Annotated[
        Path | None,
        npz_option("--save-weights", "all that was learned (weights, running statistics), by initializer name,"),
    ] = None,
    save_gradients: Annotated[
        Path | None, npz_option("--save-gradients", "the first mini-batch's gradients, by initializer name,")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Tell where cycles go, nest by nest: instructions and stalls by reason (iss:siracusa).",
            rich_help_panel="Output",
        ),
    ] = False,
    trace: options.TraceTo = None,
    dump_after: options.DumpAfter = None,
    residency: options.ResidencyOf = None,
    resume: options.Resume = None,
    checkpoint: options.CheckpointTo = None,
    checkpoint_every: options.CheckpointEvery = None,
    no_cache: options.NoCache = False,
) -> int:
    """Compile a model to C, train it on a device, and compare losses, gradients and weights with a reference."""
    output = Output(json_to)
    device = running_device(flat_device(device, target_name, chip), target_name)
    specification = parse_devices(device)
    target = chip_of(specification.first, chip)
    recipe_options = recipe_options.with_shares(shares)
    check_output(output_folder, force=force, certain=() if target.language == OPENCL_C else C_FILES)
    keeping = Keeping(resume, checkpoint, checkpoint_every)
    for path in (save_weights, save_gradients, checkpoint):
        if path is not None:
            check_writable(path)
            check_runs(specification.first)
    if trace is not None:
        check_writable(trace)
        check_trace(trace)
        check_runs(specification.first)
    if profile:
        check_profiles(specification.first)
    recipe = recipe_options.recipe(data.updates(steps, recipe_options.batch, recipe_options.accum))
    expect_tolerance(tolerance)
    training.check_patience(data.patience, data.epochs)
    # Where gradients cannot be read from a second program, they are in the first.
    is_alone = device_kind(specification.first).capabilities.is_single
    schedule = schedule_of(chip, target, specification.is_several or scheduler is not None or is_alone)
    places = Residency.parse(residency)
    with Progress() as progress, open_all(device, scheduler, use_cache=not no_cache) as opened:
        observer = watch(output, progress, dump_after, places)
        compiled = compile_for(model, recipe, target, observer, schedule=schedule, weights=weights)
        places.checked(compiled.program)
        compiled = replace(compiled, residency=places)
        if isinstance(opened, DeviceGroup):
            opened.programs |= compile_others(compiled, specification, chip)
        if isinstance(opened, AutonomousDevice):
            opened.wants_profile = profile
        run = training.train(
            compiled,
            opened,
            steps=steps,
            data=data.data,
            epochs=data.epochs,
            validation=data.held_out(),
            shuffle=data.shuffle,
            patience=data.patience,
            top_k=tuple(data.top_k or ()),
            verify=verify,
            tolerance=tolerance,
            keep_gradients=save_gradients is not None,
            keeping=keeping,
            progress=progress,
            shares=shares,
        )
        stack = stack_use(compiled, use_cache=not no_cache)
        beside = beside_all(compiled)
    run = replace(run, timings_seconds={**observer.seconds, **run.timings_seconds}, stack=stack, beside=beside)
    document = run.as_json()
    error = None if run.verdict is None or run.verdict.verified else disagreement(run.verdict)
    if error is not None:
        document |= error.as_json()
    record = record_of([(None, run)]) if output_folder is not None or trace is not None else {}
    if output_folder is not None:
        write_project(compiled, output_folder, document, stack=stack, force=force, record=record)
    if trace is not None:
        write_file(trace, trace_bytes(trace, record))
    if save is not None:
        write_file(save, run.kept_bytes(save, merges=not keep_adapters))
    if save_weights is not None:
        write_file(save_weights, npz_bytes(run.learned))
    if save_gradients is not None:
        write_file(save_gradients, npz_bytes({name: run.first_gradients[name] for name in run.weights}))
    output.write_json(document)
    output.show(*run_report(run, output_folder))
    return 0 if error is None else announce(error)


@grouped
def gradcheck(
    *,
    model: options.Model,
    device: options.Device = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    batch: options.Batch = None,
    loss: options.Loss = None,
    train: options.Train = None,
    batchnorm: options.BatchNorm = "frozen",
    seed: options.Seed = 0,
    data: options.Data = None,
    chip: hardware.ChipOptions,
    tolerance: options.Tolerance = GRADIENT_TOLERANCE,
    json_to: options.JsonTo = None,
    no_cache: options.NoCache = False,
) -> int:
    """Compare every gradient of the generated C with central differences in float64; name what is off."""
    output = Output(json_to)
    expect_tolerance(tolerance)
    recipe = RecipeOptions(loss=loss, batch=batch, train=train, batchnorm=batchnorm, seed=seed).recipe()
    device = running_device(device, target_name)
    target = chip_of(device, chip)
    with Progress() as progress, open_device(device, use_cache=not no_cache) as opened:
        observer = watch(output, progress, None)
        compiled = compile_for(model, recipe, target, observer, schedule=chip.schedule(target))
        check = check_gradients(compiled, opened, data=data, tolerance=tolerance, progress=progress)
    check = replace(check, timings_seconds={**observer.seconds, **check.timings_seconds})
    error = None if check.verdict.verified else disagreement(check.verdict)
    document = check.as_json()
    if error is not None:
        document |= error.as_json()
    output.write_json(document)
    output.show(*gradcheck_report(check))
    return 0 if error is None else announce(error)
