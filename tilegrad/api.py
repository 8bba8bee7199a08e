"""The Python API: what the command line is made of."""

from __future__ import annotations

from tilegrad.compiled import Compiled
from tilegrad.devices.registry import open_device
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.frontend import ImportedModel, load
from tilegrad.guards import Guard
from tilegrad.keeping import Keeping
from tilegrad.ops.base import Operator
from tilegrad.ops.registry import register
from tilegrad.pipeline import Observer, compile_model, unfused
from tilegrad.recipe import SGD, Adam, AdamW, Momentum, Rate, Recipe, RMSprop, loss
from tilegrad.schedule.options import ScheduleOptions, fit_bytes_of
from tilegrad.storage import Storage
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target
from tilegrad.training import train

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Compiled",
    "Guard",
    "ImportedModel",
    "Keeping",
    "Momentum",
    "Operator",
    "RMSprop",
    "Rate",
    "Recipe",
    "Residency",
    "Storage",
    "Target",
    "compile",
    "load",
    "loss",
    "open_device",
    "register",
    "train",
    "unfused",
]


def compile(
    model: object,
    recipe: Recipe | None = None,
    target: str | Target = "host",
    *,
    tiling: bool = True,
    buffering: str = "auto",
    home: str = "auto",
    fit: bool = False,
    observer: Observer | None = None,
    weights_as_c: bool = False,
    storage: str | Storage | None = None,
) -> Compiled:
    """Compiles a model (anything `load` takes, or what it gave) for a target: the C that `tilegrad compile` writes.

    `tiling`, `buffering` and `home` are the options of that name of the command line, for targets with a scratchpad.
    `storage` (`tg.Storage`, or as `64K:4K:256`) adds `tg_save` and `tg_load`.
    `fit` makes a program for one memory fit into it, by computing activations again (docs/fit.md).
    Pure: no file is written, no device is touched.
    """
    recipe = Recipe() if recipe is None else recipe
    if not isinstance(recipe, Recipe):
        raise UserError("the recipe cannot be used", stage="recipe", expected="a tg.Recipe", got=type(recipe).__name__)
    if not isinstance(target, str | Target):
        raise UserError(
            "the target cannot be used",
            stage="target",
            expected="a name or a tg.Target",
            got=type(target).__name__,
            hint="`tilegrad targets` lists them",
        )
    if not isinstance(model, ImportedModel):
        model = load(model, batch=recipe.batch, seed=recipe.seed)
    model = model.with_batch(recipe.batch)
    chip = targets.get(target) if isinstance(target, str) else target
    options = ScheduleOptions(tiling, buffering, home, fit_bytes=fit_bytes_of(chip) if fit else None)
    options.check(chip)
    kept = Storage.parse(storage) if isinstance(storage, str) else storage
    return compile_model(model, recipe, chip, observer, options=options, weights_as_c=weights_as_c, storage=kept)
