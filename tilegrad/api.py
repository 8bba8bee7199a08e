"""The Python API: what the command line is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.base import Device
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.frontend import ImportedModel, load
from tilegrad.ops.base import Operator
from tilegrad.ops.registry import register
from tilegrad.parallel.group import open_devices
from tilegrad.parallel.specification import is_several
from tilegrad.pipeline import Observer, compile_or_explain, unfused
from tilegrad.recipe import SGD, Adam, AdamW, Momentum, Rate, Recipe, RMSprop, loss
from tilegrad.recipe.guards import Guard
from tilegrad.recipe.storage import Storage
from tilegrad.recipe.stored_types import Stored
from tilegrad.report.picture import notebook as _notebook  # noqa: F401 - draws programs and runs in notebooks
from tilegrad.schedule.options import ScheduleOptions, fit_bytes_of
from tilegrad.targets import base as targets
from tilegrad.targets import files as target_files
from tilegrad.targets.base import CoreCosts, DmaEngine, DmaTiming, Memory, Target
from tilegrad.training.keeping import Keeping
from tilegrad.training.restored import export_checkpoint
from tilegrad.training.train import train

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Compiled",
    "CoreCosts",
    "DmaEngine",
    "DmaTiming",
    "Guard",
    "ImportedModel",
    "Keeping",
    "Memory",
    "Momentum",
    "Operator",
    "RMSprop",
    "Rate",
    "Recipe",
    "Residency",
    "Storage",
    "Stored",
    "Target",
    "compile",
    "export_checkpoint",
    "load",
    "loss",
    "open_device",
    "register",
    "register_target",
    "train",
    "unfused",
]


def open_device(name: str, *, use_cache: bool = True) -> Device:
    """Opens a device, or several as one (`host*2`, `host,sim:siracusa`); use it as a context manager."""
    opening = open_devices if is_several(str(name)) else registry.open_device
    return opening(name, use_cache=use_cache)


def register_target(target: Target | str | Path) -> Target:
    """Adds a chip from outside the package, or from a file (.toml or .py): its name is a target's from now on, and
    `sim:NAME` a device's if it has a scratchpad. docs/targets.md explains every field."""
    return targets.register(target) if isinstance(target, Target) else target_files.register(Path(target))


def compile(
    model: object,
    recipe: Recipe | None = None,
    target: str | Path | Target = "host",
    *,
    tiling: bool = True,
    buffering: str = "auto",
    home: str = "auto",
    fit: bool = False,
    blocks: int | str = "auto",
    most_blocks: int | None = None,
    pipes: str | Sequence[tuple[str, str] | tuple[str, str, int]] = "auto",
    observer: Observer | None = None,
    weights_as_c: bool = False,
    storage: str | Storage | None = None,
    residency: Residency | None = None,
) -> Compiled:
    """Compiles a model (anything `load` takes, or what it gave) for a target: the C that `tilegrad compile` writes.

    `tiling`, `buffering`, `home`, `blocks` and `most_blocks` are the options of that name of the command line, for
    targets with a scratchpad (docs/blocks.md explains blocks).
    `pipes` is auto, off, or pairs of nodes by name, producer and consumer, that are to be joined, with a number of
    slots if that matters (docs/pipes.md).
    `residency` is where devices leave inputs, outputs and gradients between calls (docs/devices.md).
    `storage` (`tg.Storage`, or as `64K:4K:256`) adds `tg_save` and `tg_load`.
    `fit` makes a program for one memory fit into it, by computing activations again (docs/fit.md).
    Pure: no file is written, no device is touched.
    """
    recipe = Recipe() if recipe is None else recipe
    if not isinstance(recipe, Recipe):
        raise UserError("the recipe cannot be used", stage="recipe", expected="a tg.Recipe", got=type(recipe).__name__)
    if not isinstance(target, str | Path | Target):
        raise UserError(
            "the target cannot be used",
            stage="target",
            expected="a name, a file or a tg.Target",
            got=type(target).__name__,
            hint="`tilegrad targets` lists them",
        )
    if not isinstance(model, ImportedModel):
        model = load(model, batch=recipe.batch, seed=recipe.seed)
    model = model.with_batch(recipe.batch)
    chip = targets.known(target) if isinstance(target, Target) else target_files.find(str(target))
    fit_bytes = fit_bytes_of(chip) if fit else None
    asked = pipes if isinstance(pipes, str) else tuple(pipes)
    options = ScheduleOptions(tiling, buffering, home, None, fit_bytes, str(blocks), most_blocks, asked)
    options.check(chip)
    kept = Storage.parse(storage) if isinstance(storage, str) else storage
    made = compile_or_explain(
        model, recipe, chip, observer, options=options, weights_as_c=weights_as_c, storage=kept
    )
    if residency is None:
        return made
    residency.checked(made.program)
    return replace(made, residency=residency)
