"""One point of an exploration, evaluated: in a process of its own, or on a worker of a cluster."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegrad.commands.compiling import import_model
from tilegrad.commands.hardware import ChipOptions
from tilegrad.commands.options import DataOptions, RecipeOptions
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.devices.registry import open_device
from tilegrad.errors import InternalError, TilegradError
from tilegrad.exploration.store import CRASHED, FAILED, OK, Row, without_figures
from tilegrad.pipeline import Observer, compile_model
from tilegrad.recipe import Recipe
from tilegrad.targets import base as targets
from tilegrad.targets import files as target_files
from tilegrad.training import train as training


def evaluate(task: Mapping[str, Any]) -> Row:
    """A row: its figures, or why there are none. A user's mistake and a bug of ours are told apart."""
    try:
        figures, uncounted = _figures(task)
        return {"status": OK, "reason": None, "figures": figures, "uncounted": list(uncounted)}
    except InternalError as error:
        return without_figures(CRASHED, str(error))
    except TilegradError as error:
        return without_figures(FAILED, "; ".join(line.strip() for line in str(error).splitlines()))
    except Exception as error:  # noqa: BLE001 - a point that breaks the compiler is a row, too
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, line {where.lineno}"
        return without_figures(CRASHED, f"{type(error).__name__}: {error} ({place})")


def _figures(task: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """And the kernels whose part of the cycles nobody counted."""
    recipe_options = RecipeOptions(**task["recipe"])
    feed = DataOptions(**{**task["feed"], "data": None if task["feed"]["data"] is None else Path(task["feed"]["data"])})
    is_trained = feed.data is not None
    updates = feed.updates(task["steps"], recipe_options.batch, recipe_options.accum) if is_trained else None
    recipe = recipe_options.recipe() if updates is None else recipe_options.recipe(updates)
    chip = ChipOptions(**task["chip"])
    target = chip.chip(target_files.find(task["target"]))
    schedule = chip.schedule(target)
    model = import_model(task["model"], recipe, Observer())
    compiled = compile_model(model, recipe, target, options=schedule)
    learned = _learned(task, compiled, recipe, feed) if is_trained else {}
    uncounted = uncounted_kernels(compiled.plan.schedule) if compiled.timing else ()
    return {**_compiled_figures(compiled), **learned}, uncounted


def _compiled_figures(compiled: Compiled) -> dict[str, Any]:
    """Of one update, cycles and bytes that are moved for each sample; memory is all levels together."""
    recipe = compiled.program.recipe
    samples = recipe.batch * recipe.accumulate
    memory = {name: use.used_bytes for name, use in compiled.plan.memory.items()}
    found: dict[str, Any] = {"memory": sum(memory.values()), **memory}
    if compiled.timing:
        step, update = compiled.timing["step"], compiled.timing["update"]
        total = recipe.accumulate * step.cycles + update.cycles
        moved = {
            hop: recipe.accumulate * step.hops[hop].size_bytes + update.hops[hop].size_bytes for hop in step.hops
        }
        found |= {
            "cycles": round(total / samples),
            "traffic": round(sum(moved.values()) / samples),
            "update_cycles": round(total),
            "step_cycles": round(step.cycles),
            "tiles": step.tile_count + update.tile_count,
        }
    return found


def _learned(task: Mapping[str, Any], compiled: Compiled, recipe: Recipe, feed: DataOptions) -> dict[str, Any]:
    """What training really reaches. Every device gives the same bits, so the fastest one trains."""
    model = import_model(task["model"], recipe, Observer())
    on_host = compile_model(model, recipe, targets.get("host"))
    with open_device("host") as device:
        run = training.train(
            on_host,
            device,
            steps=task["steps"],
            data=feed.data,
            verify=False,
            keep_gradients=False,
            epochs=feed.epochs,
            validation=feed.held_out(),
            shuffle=feed.shuffle,
            patience=feed.patience,
        )
    found: dict[str, Any] = {"loss": run.losses[-1]}
    if run.learning is not None:
        after = run.learning.after
        found |= {"loss": after.loss, "accuracy": after.accuracy}
    return {name: value for name, value in found.items() if value is not None}
