"""`tilegrad explore`: many ways to compile one model, and which of them are worth having."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from tilegrad.build.files import write_file
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import import_model, running_device
from tilegrad.commands.groups import grouped
from tilegrad.commands.point import evaluate
from tilegrad.devices.registry import DEFAULT_DEVICE, device_kind
from tilegrad.errors import UserError
from tilegrad.exploration.axes import SIZE, Axis, Point, grid, parse_axes
from tilegrad.exploration.content import model_digest, path_digest, point_key
from tilegrad.exploration.pareto import OBJECTIVES, available, marked
from tilegrad.exploration.pool import DaskPool, LocalPool, Pool
from tilegrad.exploration.search import search
from tilegrad.exploration.store import KIND, OK, RESULT_FILE, Row, Store
from tilegrad.pipeline import Observer
from tilegrad.report import json
from tilegrad.report.exploration import CSV_FILE, PARQUET_FILE, csv_bytes, exploration_report, parquet_bytes
from tilegrad.report.failure import announce
from tilegrad.report.output import Output, Progress
from tilegrad.report.picture.pareto import PAGE_FILE, pareto_page
from tilegrad.targets import files as target_files

_PANEL = "Exploration"
_SIZES = ("l1", "l2", "l3", "ram", "flash")


def axis_kinds() -> dict[str, object]:
    """What may vary: the chip, and every option about it or about the recipe."""
    kinds: dict[str, object] = {"target": str}
    for group in (hardware.ChipOptions, options.RecipeOptions):
        hints = get_type_hints(group)
        for field in fields(group):
            hint = hints[field.name]
            own = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
            kinds[field.name] = SIZE if field.name in _SIZES else own[0]
    return kinds


@dataclass(frozen=True)
class _Base:
    """What all points have in common."""

    model: str
    target: str
    steps: int | None
    recipe: Mapping[str, Any]
    chip: Mapping[str, Any]
    feed: Mapping[str, Any]

    def task(self, point: Point) -> dict[str, Any]:
        """All that a process needs to know of a point."""
        recipe = {name: point.get(name, value) for name, value in self.recipe.items()}
        chip = {name: point.get(name, value) for name, value in self.chip.items()}
        target = _absolute(str(point.get("target", self.target)))
        return {
            "model": self.model,
            "target": target,
            "steps": self.steps,
            "recipe": recipe,
            "chip": chip,
            "feed": dict(self.feed),
        }


def _absolute(target: str) -> str:
    return str(Path(target).absolute()) if target_files.is_file(target) else target


class _Exploration:
    """Points on their way through the store and a pool. `rows` has those that were asked for, in their order."""

    def __init__(self, base: _Base, store: Store | None, pool: Pool, progress: Progress) -> None:
        self.base = base
        self.store = store
        self.pool = pool
        self.progress = progress
        self.rows: dict[str, Row] = {}
        self.beside = {"model": model_digest(base.model)}
        if base.feed["data"] is not None:
            self.beside["data"] = path_digest(Path(base.feed["data"]))
        if base.feed["validation"] is not None and Path(base.feed["validation"]).exists():
            self.beside["validation"] = path_digest(Path(base.feed["validation"]))
        self.evaluated = 0

    def run(self, points: Sequence[Point]) -> list[Row]:
        """Rows of these points; what is known is not evaluated again."""
        tasks = [self.base.task(point) for point in points]
        keys = [point_key(task, self.beside) for task in tasks]
        for key, point in zip(keys, points, strict=True):
            known = None if self.store is None else self.store.read(key)
            self.rows.setdefault(key, {"key": key, "point": point, **(known or {})})
        waiting = {key: task for key, task in zip(keys, tasks, strict=True) if "status" not in self.rows[key]}
        done = len(self.rows) - len(waiting)
        self.progress("points", done, len(self.rows))
        for key, row in self.pool.results(waiting.items()):
            if self.store is not None:
                self.store.keep(key, row)
            self.rows[key] |= row
            self.evaluated += 1
            done += 1
            self.progress("points", done, len(self.rows))
        return [self.rows[key] for key in keys]


def _objectives(asked: Sequence[str] | None, is_trained: bool) -> tuple[str, ...]:
    if not asked:
        return ("memory", "cycles", "accuracy", "loss") if is_trained else ("memory", "cycles")
    names = [name.strip() for text in asked for name in text.split(",")]
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(
                f"there is no objective '{name}'", stage="explore", expected=" or ".join(OBJECTIVES), got=name
            )
        if name in ("loss", "accuracy") and not is_trained:
            raise UserError(f"'{name}' is reached by training", stage="explore", expected="--data F.npz")
    return tuple(dict.fromkeys(names))


def _positive(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UserError(f"{option} cannot be {value}", stage="explore", expected="1 or more", got=str(value))


def _results(store: Store, document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield CSV_FILE, csv_bytes(document)
    parquet = parquet_bytes(document)
    if parquet is not None:
        yield PARQUET_FILE, parquet
    yield PAGE_FILE, pareto_page(document)
    yield RESULT_FILE, json.dumps(document).encode()


@grouped
def explore(
    *,
    model: options.Model,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[AXIS=VALUES]...", help="More of --vary.", show_default=False)
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="AXIS=VALUES...",
            help="What to vary, as l1=16K:256K buffering=single,double cores=1,2,4,8 batch=1:4 train=all,last:2. Axes "
            f"are target and the options here: {', '.join(axis_kinds())}. Values with commas of their own are "
            "separated by semicolons.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    device: options.Device = DEFAULT_DEVICE,
    target_name: options.RunTarget = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            metavar="N",
            help="Try N points that Optuna chooses (tilegrad[explore]). Default: the whole grid.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="|".join(OBJECTIVES),
            help="What points are compared by; several, with commas. Default: memory and cycles, and what is learned.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", help="With --data: updates that train.", show_default=False, rich_help_panel="Data"
        ),
    ] = None,
    data: options.DataOptions,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", metavar="N", help="Processes. Default: one for each core of this machine.", show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="HOST:PORT",
            help="Evaluate on the workers of this Dask cluster (tilegrad[distributed]), which see the same files.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Keep every point here as it is done, and the table as CSV, Parquet (with pyarrow), JSON and a page. "
            "The same command again goes on where it was.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    json_to: options.JsonTo = None,
) -> int:
    """Compile a model in many ways, and say which are worth having: memory, estimated cycles, traffic, and with --data
    what training reaches."""
    output = Output(json_to)
    axes = parse_axes([*(vary or ()), *(more or ())], axis_kinds())
    objectives = _objectives(objective, data.data is not None)
    _positive("--budget", budget)
    _positive("--jobs", jobs)
    base = _base(model, device, target_name, steps, data, recipe_options, chip, axes)
    import_model(model, recipe_options.recipe(None), Observer())  # what is wrong with it is wrong everywhere
    store = None if output_folder is None else Store(output_folder)
    count = jobs or os.cpu_count() or 1
    pool: Pool = LocalPool(evaluate, count) if scheduler is None else DaskPool(evaluate, scheduler)
    with Progress() as progress, closing(pool):
        exploration = _Exploration(base, store, pool, progress)
        if budget is None:
            exploration.run(list(grid(axes)))
        else:
            search(axes, budget, objectives, exploration.run, recipe_options.seed)
    rows = list(exploration.rows.values())
    chosen = available(objectives, rows)
    document = {
        "kind": KIND,
        "model": model,
        "axes": {axis.name: list(axis.values) for axis in axes},
        "objectives": list(chosen),
        "cycles_are": _cycles_are(base, axes),
        "uncounted": sorted({kernel for row in rows for kernel in row["uncounted"]}),
        "rows": marked(rows, chosen),
    }
    if store is not None:
        for name, content in _results(store, document):
            write_file(store.folder / name, content)
    output.write_json(document)
    output.show(*exploration_report(document, exploration.evaluated, output_folder))
    if not any(row["status"] == OK for row in rows):
        return announce(UserError("no point has a program", stage="explore", hint="the reasons are above"))
    return 0


def _cycles_are(base: _Base, axes: Sequence[Axis]) -> str:
    """As of the chip that is known least."""
    chips = next((axis.values for axis in axes if axis.name == "target"), (base.target,))
    return max((target_files.find(str(chip)).cycles_are for chip in chips), key=len)


def _base(
    model: str,
    device: str,
    target_name: str | None,
    steps: int | None,
    data: options.DataOptions,
    recipe_options: options.RecipeOptions,
    chip: hardware.ChipOptions,
    axes: Sequence[Axis],
) -> _Base:
    """Checked before anything is evaluated: names of chips, and options that need others."""
    running = running_device(device, target_name) if target_name is not None else device
    target = target_name or device_kind(running).target_of(running)
    for axis in axes:
        if axis.name == "target":
            for name in axis.values:
                target_files.find(str(name))
    if data.data is None and (steps is not None or data.epochs is not None or data.validation is not None):
        raise UserError("there is nothing to train on", stage="explore", expected="--data F.npz")
    feed = asdict(data)
    for name in ("data", "validation"):
        if feed[name] is not None and Path(feed[name]).exists():
            feed[name] = str(Path(feed[name]).absolute())
    path = Path(model)
    where = str(path.absolute()) if path.exists() else model
    return _Base(where, target, steps, asdict(recipe_options), asdict(chip), feed)
