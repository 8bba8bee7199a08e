"""What every command that compiles has in common: import, stages with progress, `--dump-after`, output folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tilegrad.build.folder import check_folder, write_folder
from tilegrad.build.frames import StackUse
from tilegrad.build.workspace import Workspace
from tilegrad.commands.hardware import BudgetOptions
from tilegrad.commands.options import check_stage
from tilegrad.compiled import Compiled
from tilegrad.devices.embedded import EmbeddedDevice, Image
from tilegrad.devices.registry import DEFAULT_DEVICE, device_kind, device_names
from tilegrad.errors import UserError
from tilegrad.files.tensor_files import check_suffix, read_tensors
from tilegrad.frontend import ImportedModel, load
from tilegrad.frontend.lora import with_adapters
from tilegrad.frontend.start import with_weights
from tilegrad.ir.plan import Plan
from tilegrad.ir.residency import Residency
from tilegrad.parallel.specification import Specification
from tilegrad.pipeline import Observer, Where, compile_model, compile_or_explain
from tilegrad.recipe import Recipe
from tilegrad.recipe.adapters import lora_of
from tilegrad.recipe.storage import Storage
from tilegrad.report import json
from tilegrad.report.dump import dump
from tilegrad.report.output import Output, Progress
from tilegrad.report.picture.record import FILE as RECORD_FILE
from tilegrad.report.picture.record import record_bytes
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets import files as target_files
from tilegrad.targets.base import Target

R = TypeVar("R")
MICROCONTROLLER, BOARD, HOST = "mcu", "qemu:mps2-an500", "host"


@dataclass
class Watch(Observer):
    """Times the stages, shows which one runs, and prints the one that was asked for."""

    output: Output | None = None
    progress: Progress | None = None
    dump_after: str | None = None
    residency: Residency = field(default_factory=Residency)

    def run(self, name: str, work: Callable[[], R], stage: str | None = None) -> R:
        if self.progress is not None:
            self.progress(name)
        result = super().run(name, work, stage)
        if self.output is not None and name == self.dump_after:
            self.output.dump(dump(result) + (self._places(result) if isinstance(result, Plan) else ""))
        return result

    def _places(self, plan: Plan) -> str:
        """Where a device leaves what moves."""
        return "".join(f"{line}\n" for line in ("residency", *self.residency.lines(plan.schedule.program)))

    def skip(self, name: str, where: Where) -> None:
        if name == self.dump_after:
            raise UserError(
                f"the pass '{name}' does not apply here, so there is nothing to dump after it",
                stage="options",
                expected=where.value,
            )


def watch(output: Output, progress: Progress, dump_after: str | None, residency: Residency | None = None) -> Watch:
    check_stage(dump_after)
    return Watch(output=output, progress=progress, dump_after=dump_after, residency=residency or Residency())


def target_of(device: str, name: str | None = None) -> Target:
    """The chip that a device is, or runs, unless another is named."""
    named = None if name is None else target_files.find(name)  # which may bring a device along
    target = device_kind(device).chip_of(device) if named is None else named
    if not has_runtime(target):
        raise UserError(
            f"C cannot be written for target '{target.name}'",
            stage="target",
            expected=" or ".join(known.name for known in compilable_targets()),
            got=target.name,
        )
    return target


def running_device(device: str, target: str | None, default: str = DEFAULT_DEVICE) -> str:
    """The device that runs a chip that was named: the one that was asked for, if it does, or else the chip's own."""
    if target is None:
        return device
    chip = target_files.find(target)
    if device != default:
        device_kind(device).check_target(device, chip)
        return device
    if not chip.is_flat:
        return f"sim:{chip.name}"
    own = [name for name in device_names() if device_kind(name).target_of(name) == chip.name]
    if not own:
        raise UserError(
            f"no device runs target '{chip.name}'",
            stage="device",
            expected="a chip with L1 and L2, which is simulated, or one of a device",
            got=target,
            hint=f"tilegrad compile MODEL --target {target} -o DIR writes its C",
        )
    return own[0]


def flat_chip(device: str, target: str | None, budget: BudgetOptions) -> str | None:
    """A budget of RAM or flash, and no chip: a microcontroller with so much of them."""
    return MICROCONTROLLER if _is_only_flat(device, target, budget) else target


def flat_device(device: str, target: str | None, budget: BudgetOptions) -> str:
    """The same of a device to run on: a board where flash is asked for, which the host has not."""
    if not _is_only_flat(device, target, budget):
        return device
    return HOST if budget.flash is None else BOARD


def _is_only_flat(device: str, target: str | None, budget: BudgetOptions) -> bool:
    return target is None and device == DEFAULT_DEVICE and not (budget.ram is None and budget.flash is None)


def chip_of(device: str, budget: BudgetOptions, name: str | None = None) -> Target:
    """The device's chip, or the one that is named, with the budgets that were asked for."""
    limited = budget.chip(target_of(device, name))
    if name is None:
        device_kind(device).check_target(device, limited)
    return limited


def schedule_of(chip: BudgetOptions, target: Target, shared: bool) -> ScheduleOptions:
    """What was asked of the scheduler. Where an update is shared, gradients are added up, and none is fused."""
    schedule = chip.schedule(target)
    return replace(schedule, fuses_update=False) if shared else schedule


def compile_others(compiled: Compiled, devices: Specification, chip: BudgetOptions) -> dict[str, Compiled]:
    """The program for the targets of the devices behind the first, under the same budgets, by the target's name."""
    made: dict[str, Compiled] = {}
    for name in devices.kinds:
        target = chip_of(name, chip)
        if target.name not in (compiled.target.name, *made):
            options = schedule_of(chip, target, True)
            made[target.name] = compile_model(compiled.model, compiled.program.recipe, target, options=options)
    return made


def compilable_targets() -> tuple[Target, ...]:
    """The chips that have a C runtime; the others are descriptions only."""
    known = (targets.get(name) for name in targets.names())
    return tuple(filter(has_runtime, known))


def has_runtime(target: Target) -> bool:
    return (target.folder / "tg_rt.h").exists()


def import_model(model: str, recipe: Recipe, observer: Observer, weights: Path | None = None) -> ImportedModel:
    """The model, with adapters where the recipe has them, so that a file of weights may hold theirs."""
    if weights is not None:
        check_suffix(weights, "--weights")

    def imported() -> ImportedModel:
        found = load(model, batch=recipe.batch, seed=recipe.seed)
        if weights is None:
            return found
        lora = lora_of(recipe.train)
        found = found if lora is None else with_adapters(found, lora, recipe.seed)
        return with_weights(found, read_tensors(weights), f"'{weights}'")

    return observer.run("import", imported)


def compile_for(
    model: str,
    recipe: Recipe,
    target: Target,
    observer: Observer,
    *,
    schedule: ScheduleOptions | None = None,
    weights_as_c: bool = False,
    storage: Storage | None = None,
    weights: Path | None = None,
) -> Compiled:
    imported = import_model(model, recipe, observer, weights)
    return compile_or_explain(
        imported, recipe, target, observer, options=schedule, weights_as_c=weights_as_c, storage=storage
    )


C_FILES = ("Makefile", "README.md", "kernels.h", "main.c", "manifest.json", "model.c", "model.h", "weights.bin")
"""Of those that every C project has, whatever the model."""


def check_output(folder: Path | None, *, force: bool = False, certain: tuple[str, ...] = ()) -> None:
    """An unusable folder is refused before the work, not after it; so is one with edited files that will be written."""
    if folder is not None:
        check_folder(folder, certain, force=force)


@dataclass(frozen=True)
class BuiltImage:
    """`files` are all that a folder with the image holds, itself included."""

    facts: Image
    files: Mapping[str, bytes]


def build_image(compiled: Compiled, device: str, *, steps: int, use_cache: bool) -> BuiltImage | None:
    """The image of a program, where the device takes one. The emulator or board itself need not be there."""
    kind = device_kind(device)
    if not issubclass(kind, EmbeddedDevice):
        return None
    workspace = Workspace()
    with kind(device, use_cache=use_cache) as opened, workspace.kept_on_failure() as folder:
        assert isinstance(opened, EmbeddedDevice)
        opened.steps = steps
        image = opened.build(compiled, folder)
        built = BuiltImage(image, opened.folder_files(compiled, image))
    workspace.close()
    return built


def write_project(
    compiled: Compiled,
    folder: Path,
    run: dict[str, object] | None = None,
    files: Mapping[str, bytes] | None = None,
    stack: StackUse | None = None,
    force: bool = False,
    record: Mapping[str, object] | None = None,
) -> None:
    """The C project and, after a run, its result as `run.json` and what `tilegrad report` draws of it: without times,
    so that two runs give the same bytes.

    The stack is not the project's own: it depends on the compiler that is here.
    """
    written = dict(compiled.project.files if files is None else files)
    if stack is not None and stack.entries:
        text = str(stack)
        written["README.md"] += f"\n{text[0].upper()}{text[1:]}.\n".encode()
    if run is not None:
        written["run.json"] = json.dumps({key: value for key, value in run.items() if key != "timings"}).encode()
    if record is not None:
        written[RECORD_FILE] = record_bytes(record)
    write_folder(folder, written, force=force)
