"""Writes docs/reference from the code: `python tools/reference.py`. A test says where the pages are out of date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

import tilegrad
from tilegrad.cli import app
from tilegrad.devices.base import Capabilities
from tilegrad.devices.registry import kinds
from tilegrad.ops import registry
from tilegrad.ops.base import Operator
from tilegrad.sizes import bytes_text
from tilegrad.targets import base as targets

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made from the code by tools/reference.py: change the code, not this page. -->\n"


def _cell(text: object) -> str:
    """One line of a table; what looks like markup is text."""
    plain = re.sub(r"\[/?b\]", "", " ".join(str(text).split()))
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _code(text: object) -> str:
    return f"`{str(text).replace('|', chr(92) + '|')}`"


def _first(text: str | None) -> str:
    """The first paragraph of a docstring."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def _option(parameter: Any) -> str:
    names = ", ".join(_code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    metavar = f" {_code(parameter.metavar)}" if parameter.metavar and not parameter.is_flag else ""
    has_default = parameter.default not in (None, False, (), []) and not callable(parameter.default)
    default = f" Default: {_code(parameter.default)}." if has_default and "Default" not in str(parameter.help) else ""
    return f"| {names}{metavar} | {_cell(parameter.help or '')}{default} |"


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    yield f"## {path}\n"
    usage = " ".join([path, *(str(one.metavar) for one in arguments), *(["[OPTIONS]"] if options else [])])
    yield f"    {usage}\n"
    yield f"{_first(command.help)}\n"
    examples = re.findall(r"\[b\](.*?)\[/b\]", command.epilog or "")
    if examples:
        yield "Examples: " + ", ".join(f"`{example}`" for example in examples) + ".\n"
    if arguments or options:
        yield "| option | |\n|---|---|"
        yield from (f"| {_code(one.metavar)} | {_cell(one.help or '')} |" for one in arguments)
        yield from map(_option, options)
        yield ""


def command_line() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield "# Command line\n"
    yield "Exit status: 0 done, 1 disagrees with the reference, 2 wrong input, 3 a device or compiler is missing,"
    yield "70 a bug of tilegrad's, 130 interrupted. [json.md](../json.md) has the fields of `--json`.\n"
    for name, command in root.commands.items():
        inside = getattr(command, "commands", None)
        for path, one in [(f"{name} {inner}", own) for inner, own in inside.items()] if inside else [(name, command)]:
            yield from _command(f"tilegrad {path}", one)


def python_api() -> Iterator[str]:
    yield "# Python\n"
    yield "`import tilegrad as tg`. Everything that the command line does is made of these.\n"
    for name in tilegrad.__all__:
        thing = getattr(tilegrad, name)
        yield f"## tg.{name}\n"
        yield f"    tg.{name}{_signature(thing)}\n"
        told = _first(thing.__doc__)
        yield "" if told.startswith(f"{name}(") else f"{told}\n"


def _signature(thing: Any) -> str:
    """As it is written, one parameter a line where it is long."""
    signature = inspect.signature(thing)
    parts = [
        str(one.replace(annotation=inspect.Parameter.empty)).replace("=", " = ", 1)
        if one.annotation is inspect.Parameter.empty
        else f"{one.name}: {one.annotation}{_default(one.default)}"
        for one in signature.parameters.values()
    ]
    stars = [i for i, one in enumerate(signature.parameters.values()) if one.kind is inspect.Parameter.KEYWORD_ONLY]
    if stars:
        parts.insert(stars[0], "*")
    result = signature.return_annotation
    arrow = "" if result in (inspect.Signature.empty, None, "None") else f" -> {result}"
    flat = f"({', '.join(parts)}){arrow}"
    return flat if len(flat) <= 90 else "(\n" + "".join(f"        {part},\n" for part in parts) + f"    ){arrow}"


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f" = {value.__name__}" if inspect.isfunction(value) else f" = {value!r}"


def operators() -> Iterator[str]:
    yield "# Operators\n"
    yield "What an ONNX model may have, and what gradients and optimizers are made of. Element type is float32 unless"
    yield "said otherwise; shapes are fixed when a model is compiled. What an operator does not take is refused with"
    yield "the node, what was expected and what came.\n"
    yield "| operator | gradient | kernels | notes and limits |\n|---|---|---|---|"
    for name in registry.names():
        operator = registry.get(name)
        source = registry.kernel_source(name)
        gradient = "yes" if type(operator).gradient is not Operator.gradient else "-"
        kernels = "none: the same bytes" if operator.is_view else "-" if source is None else f"`{source.name}`"
        own = type(operator).__dict__.get("__doc__")
        notes = _first(own) or _first(sys.modules[type(operator).__module__].__doc__)
        yield f"| `{name}` | {gradient} | {kernels} | {_cell(notes)} |"
    yield ""


def chips() -> Iterator[str]:
    yield "# Targets\n"
    yield "[targets.md](../targets.md) explains every field, and how to bring a chip of your own.\n"
    yield "| target | what | cores | memories | engines | cycles |\n|---|---|---:|---|---|---|"
    for name in targets._own_names():
        target = targets.get(name)
        memories = ", ".join(
            f"{one.name} {'no limit' if one.capacity_bytes is None else bytes_text(one.capacity_bytes)}"
            for one in target.memories
        )
        engines = ", ".join(f"{engine.name} ({engine.hop})" for engine in target.engines) or "-"
        cycles = "-" if target.is_flat else target.cycles_are
        yield f"| `{name}` | {_cell(target.summary)} | {target.cores} | {memories} | {engines} | {cycles} |"
    yield ""


def all_devices() -> Iterator[str]:
    yield "# Devices\n"
    yield "`tilegrad devices` lists those of a machine. [devices.md](../devices.md) has the contract.\n"
    flags = [one.name for one in fields(Capabilities) if one.type == "bool"]
    yield "| kind | what | can | counts |\n|---|---|---|---|"
    for kind in kinds():
        capabilities = kind.capabilities
        able = ", ".join(f"`{flag}`" for flag in flags if getattr(capabilities, flag)) or "-"
        counters = ", ".join(capabilities.counters) or "-"
        notes = _first(kind.__dict__.get("__doc__")) or _first(sys.modules[kind.__module__].__doc__)
        yield f"| `{kind.kind}` | {_cell(notes)} | {able} | {_cell(counters)} |"
    yield ""


PAGES = {
    "command-line.md": command_line,
    "python.md": python_api,
    "operators.md": operators,
    "targets.md": chips,
    "devices.md": all_devices,
}


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    return {name: MADE + "\n" + "\n".join(make()).rstrip("\n") + "\n" for name, make in PAGES.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
