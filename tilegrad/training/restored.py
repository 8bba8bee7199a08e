"""A checkpoint taken home: the model that it was trained from, with what was learned in it.

A save holds what training changes and the recipe, and nothing that stays as it was. With the model beside it, it gives
all that `--save` gives: every parameter, or the ONNX model itself, adapters merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tilegrad.build.files import write_file
from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.learned import learned
from tilegrad.optimizers import OPTIMIZERS, Optimizer
from tilegrad.recipe import Recipe
from tilegrad.recipe.rates import Rate
from tilegrad.training.checkpoint import STAGE, Checkpoint, expect_same_training, read_checkpoint
from tilegrad.training.kept import kept_bytes


def recipe_of(found: Checkpoint, path: str | Path) -> Recipe:
    """The recipe that a checkpoint was trained under; a guard is not part of what was learned."""
    facts = dict(found.recipe)
    try:
        plain = {field.name for field in fields(Recipe)} - {"optimizer", "rate", "guard"}
        known = {name: facts[name] for name in plain if name in facts}
        return Recipe(optimizer=_optimizer(facts["optimizer"]), rate=Rate(**facts["rate"]), **known)
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the recipe of checkpoint '{path}' is not one of this tilegrad's",
            stage=STAGE,
            got=str(error).splitlines()[0],
            hint="the version that wrote it can export it",
        ) from error


def _optimizer(facts: Mapping[str, Any]) -> Optimizer:
    return OPTIMIZERS[facts["name"]](**{name: value for name, value in facts.items() if name != "name"})


def restored_bytes(
    path: str | Path, found: Checkpoint, compiled: Compiled, checkpoint: str | Path, *, merges: bool = True
) -> bytes:
    """The content of `path`, as `--save` writes it. A checkpoint of another training than `compiled` is refused."""
    expect_same_training(found, compiled.program, checkpoint)
    own = learned(compiled, _in_order(compiled, found), lambda: found.with_role("statistic"))
    return kept_bytes(path, compiled, own, found.minibatches, merges=merges)


def _in_order(compiled: Compiled, found: Checkpoint) -> dict[str, Any]:
    """As a session gives them: in the order of the initializers, not of their names."""
    return {tensor.name: found.tensors[tensor.name] for tensor in compiled.program.trainable}


def export_checkpoint(checkpoint: str | Path, compiled: Compiled, path: str | Path, *, merges: bool = True) -> None:
    """Writes the model that `compiled` was made of with what `checkpoint` holds in it: .safetensors, .npz or .onnx."""
    write_file(Path(path), restored_bytes(path, read_checkpoint(checkpoint), compiled, checkpoint, merges=merges))
