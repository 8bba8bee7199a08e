"""`tilegrad check`: the figures of models within their limits, for people's CI.

    [keyword-spotting]                 # a name
    model = "dscnn"                    # a zoo name, or a file beside this one
    device = "sim:siracusa"
    l1 = "128K"                        # options of `train`, by their names
    train = "last:2"
    [keyword-spotting.limits]
    L2 = "1M"
    step_cycles = 4_000_000
    loss = 2.6                         # after `steps` updates
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tilegrad.build.files import check_writable, write_file
from tilegrad.commands import hardware, options
from tilegrad.commands.compiling import build_image, chip_of, compile_for, running_device
from tilegrad.compiled import CALLS, Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.devices.registry import DEFAULT_DEVICE, open_device
from tilegrad.errors import UserError, VerificationError
from tilegrad.pipeline import Observer
from tilegrad.report import json as exact_json
from tilegrad.report.failure import announce
from tilegrad.report.format import bytes_text, count_text, uncounted_text
from tilegrad.report.output import Output, Progress, heading, table
from tilegrad.report.table import FittingTable
from tilegrad.sizes import parse_size
from tilegrad.stack import stack_use
from tilegrad.targets import files as target_files
from tilegrad.training import train as training

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECORDED = ".recorded.json"
CYCLES = tuple(f"{entry}_cycles" for entry in CALLS)
LEVELS = ("RAM", "L1", "L2", "L3")
LIMITS = (*LEVELS, "flash", "stack", *CYCLES, "loss")
_CHIP = {field.name: field.default for field in fields(hardware.ChipOptions)}
_UNLESS_TOLD = {"batch": 1, "accum": 1, "lr": 0.01}
_RECIPE = {field.name: field.default for field in fields(options.RecipeOptions)} | _UNLESS_TOLD
_OWN: dict[str, object] = {"model": "", "device": "", "target": "", "steps": 1, "data": "", "limits": {}}
_KNOWN = {**_OWN, **_CHIP, **_RECIPE}


@dataclass(frozen=True)
class Budget:
    """One model with its options and limits. `limits` in bytes, cycles, or the loss itself."""

    name: str
    model: str
    device: str
    target: str | None
    steps: int
    data: Path | None
    recipe: options.RecipeOptions
    chip: hardware.ChipOptions
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    budget: str
    what: str
    value: float
    limit: float
    before: float | None
    uncounted: tuple[str, ...] = ()  # of cycles: the kernels whose part of them nobody counted

    @property
    def is_within(self) -> bool:
        return self.value <= self.limit

    def text(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.what == "loss":
            return f"{value:.5g}"
        return count_text(int(value)) if self.what in CYCLES else bytes_text(int(value))

    @property
    def value_text(self) -> str:
        return self.text(self.value) + (" uncounted" if self.uncounted else "")

    @property
    def change(self) -> str:
        if self.before is None or self.before == self.value:
            return "-" if self.before is None else "same"
        return f"{(self.value / self.before - 1) * 100:+.1f} %" if self.before else f"+{self.text(self.value)}"


def _wrong(path: Path, what: str, **more: str) -> UserError:
    return UserError(f"'{path}': {what}", stage="budget", **more)


def read_budgets(path: Path) -> list[Budget]:
    """What the file asks for; everything in it must mean something."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", stage="budget") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(path, f"not TOML: {error}") from error
    if not document:
        raise _wrong(path, "there is no budget in it", hint="[NAME] with model = … and [NAME.limits]")
    return [_budget(path, name, own) for name, own in document.items()]


def _budget(path: Path, name: str, own: object) -> Budget:
    if not isinstance(own, dict) or not isinstance(own.get("model"), str):
        raise _wrong(path, f"[{name}] names no model", expected='model = "NAME or FILE.onnx"')
    for key, value in own.items():
        if key not in _KNOWN:
            raise _wrong(path, f"[{name}] has no option '{key}'", expected=", ".join(sorted(_KNOWN)))
        if not _is_like(value, _KNOWN[key]):
            raise _wrong(path, f"[{name}] '{key}' cannot be used", expected=_kind(_KNOWN[key]), got=repr(value))
    beside = path.parent / own["model"]
    return Budget(
        name,
        str(beside) if beside.exists() else own["model"],
        str(own.get("device", DEFAULT_DEVICE)),
        _target(path, own.get("target")),
        int(own.get("steps", 2)),
        path.parent / own["data"] if "data" in own else None,
        options.RecipeOptions(**{key: own[key] for key in _RECIPE if key in own}),
        hardware.ChipOptions(**{key: own[key] for key in _CHIP if key in own}),
        _limits(path, name, own.get("limits")),
    )


def _kind(default: object) -> str:
    """What an option takes, seen from what it is where nobody names it."""
    if default is None:
        return "a text or a number"
    if isinstance(default, bool):
        return "true or false"
    return {int: "a whole number", float: "a number", str: "a text"}.get(type(default), "a table")


def _is_like(value: object, default: object) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if default is None:
        return isinstance(value, str | int | float)
    return isinstance(value, int | float) if isinstance(default, float) else isinstance(value, type(default))


def _target(path: Path, name: str | None) -> str | None:
    """A chip's file is found beside the budget's."""
    return str(path.parent / name) if name is not None and target_files.is_file(name) else name


def _limits(path: Path, name: str, own: object) -> dict[str, float]:
    if not isinstance(own, dict) or not own:
        raise _wrong(path, f"[{name}] has no limits", expected=f"[{name}.limits] with {', '.join(LIMITS)}")
    found: dict[str, float] = {}
    for key, value in own.items():
        if key not in LIMITS:
            raise _wrong(path, f"[{name}.limits] has no '{key}'", expected=", ".join(LIMITS))
        if isinstance(value, str) and key not in (*CYCLES, "loss"):
            found[key] = parse_size(f"{name}.limits.{key}", value, "budget")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = value
        else:
            raise _wrong(path, f"[{name}.limits] '{key}' is no number", got=str(value))
    return found


def measure(budget: Budget, before: Mapping[str, float], progress: Progress, use_cache: bool) -> list[Figure]:
    """The figures that have limits, and no others: a loss is trained for, an image built."""
    target = chip_of(budget.device, budget.chip, budget.target)
    recipe = budget.recipe.recipe(budget.steps)
    progress(f"{budget.name}: compile")
    schedule = budget.chip.schedule(target)
    compiled = compile_for(budget.model, recipe, target, Observer(), schedule=schedule)
    known: dict[str, float | None] = {name: use.used_bytes for name, use in compiled.plan.memory.items()}
    known |= {f"{entry}_cycles": cycles for entry, cycles in compiled.cycles.items()}
    if "stack" in budget.limits:
        known["stack"] = max(stack_use(compiled, use_cache=use_cache).entries.values(), default=None)
    if "flash" in budget.limits:
        known["flash"] = _flash_bytes(compiled, budget, use_cache)
    if "loss" in budget.limits:
        known["loss"] = _last_loss(compiled, budget, progress, use_cache)
    for what in budget.limits:
        if known.get(what) is None:
            where = budget.target or budget.device
            raise UserError(f"{budget.name}: '{what}' is not known on {where}", stage="budget", expected=_known(known))
    guessed = uncounted_kernels(compiled.plan.schedule)
    return [
        Figure(budget.name, what, value, limit, before.get(what), guessed if what in CYCLES else ())
        for what, limit in budget.limits.items()
        if (value := known[what]) is not None
    ]


def _known(figures: Mapping[str, float | None]) -> str:
    return ", ".join(name for name, value in figures.items() if value is not None)


def _flash_bytes(compiled: Compiled, budget: Budget, use_cache: bool) -> int | None:
    if budget.target is not None:
        return None
    image = build_image(compiled, budget.device, steps=budget.steps, use_cache=use_cache)
    return None if image is None else image.facts.sections.flash_bytes


def _last_loss(compiled: Compiled, budget: Budget, progress: Progress, use_cache: bool) -> float:
    name = running_device(budget.device, budget.target)
    with open_device(name, use_cache=use_cache) as device:
        steps, data = budget.steps, budget.data
        run = training.train(
            compiled, device, steps=steps, data=data, verify=False, keep_gradients=False, progress=progress
        )
    return run.losses[-1]


def _recorded(path: Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    try:
        found: dict[str, dict[str, float]] = json.loads(path.read_bytes())
        return {name: dict(own) for name, own in found.items()}
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise UserError(f"'{path}' cannot be read: {error}", stage="budget", hint="--update writes it anew") from error


def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="BUDGET.toml", help="Models, their options and limits.")],
    update: Annotated[
        bool, typer.Option("--update", help="Record today's figures beside the file, to compare with next time.")
    ] = False,
    json_to: options.JsonTo = None,
    no_cache: options.NoCache = False,
) -> int:
    """Check that RAM, flash, cycles, stack and loss of models stay within their limits; exit 1 where one does not."""
    output = Output(json_to)
    record = file.with_suffix(RECORDED)
    if update:
        check_writable(record)
    budgets = read_budgets(file)
    before = {} if update and not record.exists() else _recorded(record)
    found: list[Figure] = []
    with Progress() as progress:
        for budget in budgets:
            found += measure(budget, before.get(budget.name, {}), progress, not no_cache)
    if update:
        state = {budget.name: {one.what: one.value for one in found if one.budget == budget.name} for budget in budgets}
        write_file(record, exact_json.dumps(state).encode())
    over = [one for one in found if not one.is_within]
    output.write_json({"figures": [vars_of(one) for one in found], "within": not over})
    output.show(heading(str(file)), Text(), figures_table(found), *_uncounted(found))
    if not over:
        return 0
    first = over[0]
    more = f" (and {len(over) - 1} more)" if len(over) > 1 else ""
    return announce(
        VerificationError(
            f"{first.budget} leaves its budget",
            stage="budget",
            expected=f"{first.what} of at most {first.text(first.limit)}",
            got=f"{first.value_text}{more}",
        )
    )


def vars_of(one: Figure) -> dict[str, Any]:
    facts = {"budget": one.budget, "figure": one.what, "value": one.value, "limit": one.limit, "recorded": one.before}
    return facts | {"within": one.is_within, "uncounted": list(one.uncounted)}


def figures_table(found: list[Figure]) -> FittingTable:
    right = ("value", "limit", "recorded", "change")
    made = table("budget", "figure", *right, "", right=right, spare=("recorded",))
    for one in found:
        word = Text("within", style="green") if one.is_within else Text("OVER", style="bold red")
        made.add_row(one.budget, one.what, one.value_text, one.text(one.limit), one.text(one.before), one.change, word)
    return made


def _uncounted(found: list[Figure]) -> Iterator[Text]:
    """A line for each model with kernels that nobody counted."""
    for budget, kernels in {one.budget: one.uncounted for one in found if one.uncounted}.items():
        yield Text(f"{budget}: {uncounted_text(kernels)}")
