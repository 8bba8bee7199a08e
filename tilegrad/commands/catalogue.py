"""What there is: `zoo`, `ops`, `targets`, `devices`, `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from tilegrad import zoo as model_zoo
from tilegrad.build.files import check_writable, write_file
from tilegrad.commands import options
from tilegrad.commands.compiling import compilable_targets
from tilegrad.devices.registry import DEFAULT_DEVICE, kinds
from tilegrad.errors import UserError
from tilegrad.frontend.read import read_model
from tilegrad.ops import registry
from tilegrad.ops.base import Operator
from tilegrad.report import doctor as health
from tilegrad.report.format import bytes_text, count_text, plural, shape_text
from tilegrad.report.output import Output, heading, table
from tilegrad.targets import files as target_files
from tilegrad.targets.base import Target
from tilegrad.zoo.builder import PRODUCER


def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model of the zoo; without it, all.", show_default=False)
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="F.onnx", help="Write the model here.", show_default=False),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="With -o, overwrite an ONNX model that is not tilegrad's. Never any other file."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the initial weights.")] = 0,
    json_to: options.JsonTo = None,
) -> int:
    """List the models tilegrad is measured on, or write one as an ONNX file."""
    output = Output(json_to)
    if name is None and output_file is not None:
        raise UserError("-o needs the name of one model", stage="zoo", hint="tilegrad zoo mlp -o mlp.onnx")
    entries = [model_zoo.describe(each) for each in (model_zoo.names() if name is None else [name])]
    if name is not None and output_file is not None:
        check_writable(output_file)
        check_replaceable(output_file, force=force)
        write_file(output_file, model_zoo.build(name, seed).SerializeToString(deterministic=True))
    output.write_json({"models": [asdict(entry) for entry in entries]})
    numbers = ("parameters", "trained", "MACs forward", "MACs per step")
    spare = ("MACs forward", "input", "trained", "loss", "what")
    made = table("model", "input", "loss", *numbers, "what", right=numbers, spare=spare)
    for entry in entries:
        made.add_row(
            entry.name,
            shape_text(entry.input_shape),
            entry.loss,
            count_text(entry.params),
            count_text(entry.trainable_params),
            count_text(entry.macs_forward),
            count_text(entry.macs_per_step),
            entry.summary,
        )
    output.show(made)
    if output_file is not None:
        output.show(Text(f"written to {output_file}"))
    return 0


def check_replaceable(path: Path, *, force: bool) -> None:
    """A model of the zoo replaces one that was written before, and nothing else that the user may have there."""
    if not path.is_file():
        return
    try:
        producer = read_model(path).producer_name
    except UserError as error:
        raise UserError(
            f"'{path}' is there, and is not an ONNX model", stage="zoo", hint="choose another file"
        ) from error
    if producer != PRODUCER and not force:
        raise UserError(
            f"'{path}' is there, and is not a model of tilegrad's", stage="zoo", hint="--force overwrites it"
        )


def operator_facts(name: str) -> dict[str, Any]:
    operator = registry.get(name)
    source = registry.kernel_source(name)
    return {
        "name": name,
        "differentiable": type(operator).gradient is not Operator.gradient,
        "view": operator.is_view,
        "file": None if source is None else source.name,
    }


def ops(json_to: options.JsonTo = None) -> int:
    """List the operators, which of them have a gradient, and the C file of their kernels."""
    output = Output(json_to)
    facts = [operator_facts(name) for name in registry.names()]
    output.write_json({"operators": facts})
    made = table("operator", "gradient", "kernels")
    for fact in facts:
        made.add_row(
            fact["name"],
            "yes" if fact["differentiable"] else "-",
            "none: the same bytes under another shape" if fact["view"] else fact["file"] or "-",
        )
    output.show(made, Text(plural(len(facts), "operator")))
    return 0


def target_facts(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "summary": target.summary,
        "clusters": target.clusters,
        "cores": target.cores,
        "fpus": target.fpus,
        "conductor": target.conductor,
        "clock_hz": target.clock_hz or None,
        "cycles_are": target.cycles_are,
        "home": target.home,
        "memories": [
            {"name": memory.name, "capacity": memory.capacity_bytes, "alignment": memory.alignment_bytes}
            for memory in target.memories
        ],
        "engines": [{"name": engine.name, "hop": engine.hop, "shares": engine.shares} for engine in target.engines],
    }


def _one_target(target: Target) -> Iterator[RenderableType]:
    """All that is known of a chip."""
    yield heading(f"{target.name}: {target.summary}")
    yield Text()
    clock = f", {target.clock_hz / 1e6:g} MHz" if target.clock_hz else ""
    cores = f"{plural(target.cores, 'core')}, {plural(target.fpus, 'FPU')}, conducted by a {target.conductor}{clock}"
    yield Text(cores if not target.is_flat else f"{plural(target.cores, 'core')}{clock}")
    if not target.is_flat:
        yield Text(f"cycles are {target.cycles_are}")
    yield Text()
    memories = table("memory", "capacity", "alignment", "extra cycles of an access", right=("capacity", "alignment"))
    for memory in target.memories:
        capacity = "no limit" if memory.capacity_bytes is None else bytes_text(memory.capacity_bytes)
        extra = "by DMA only" if memory.core_extra_cycles is None else str(memory.core_extra_cycles)
        memories.add_row(memory.name, capacity, bytes_text(memory.alignment_bytes), extra)
    yield memories
    if not target.engines:
        return
    yield Text()
    right = ("set-up in, out", "cycles/byte in, out", "queue", "longest")
    engines = table("engine", "hop", *right, "can", right=right, spare=("can", "longest"))
    for engine in target.engines:
        ways = (engine.inward, engine.outward)
        setups = ", ".join(f"{way.setup_cycles:.4g}" for way in ways)
        speeds = ", ".join(f"{way.cycles_per_byte:.4g}" for way in ways)
        abilities = {"2-D": engine.has_2d, "duplex": engine.duplex, "overlaps set-up": engine.overlaps_setup}
        able = [name for name, has in abilities.items() if has] + ([f"is {engine.shares}"] if engine.shares else [])
        queue, longest = str(engine.queue_depth), bytes_text(engine.longest_bytes)
        engines.add_row(engine.name, engine.hop, setups, speeds, queue, longest, "; ".join(able) or "-")
    yield engines


def targets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[T|F.toml|F.py]",
            help="One chip, or a file that describes one, which is checked (docs/targets.md); without it, all.",
            show_default=False,
        ),
    ] = None,
    json_to: options.JsonTo = None,
) -> int:
    """List the chips that programs can be compiled for, or show one."""
    output = Output(json_to)
    found = compilable_targets() if name is None else (target_files.find(name),)
    output.write_json({"targets": [target_facts(target) for target in found]})
    if name is not None:
        output.show(*_one_target(found[0]))
        return 0
    numbers = ("clusters", "cores")
    made = table("target", *numbers, "memories", "what", right=numbers, spare=("what", "clusters"))
    for target in found:
        memories = ", ".join(
            f"{memory.name} " + ("no limit" if memory.capacity_bytes is None else bytes_text(memory.capacity_bytes))
            for memory in target.memories
        )
        is_known = target.is_calibrated or target.is_flat  # of one flat memory no cycles are told
        what = target.summary if is_known else f"{target.summary} (uncalibrated)"
        made.add_row(target.name, str(target.clusters), str(target.cores), memories, what)
    output.show(made)
    return 0


def devices(json_to: options.JsonTo = None) -> int:
    """List the things that run compiled programs, and whether each can be used here."""
    output = Output(json_to)
    facts = [
        {
            "name": name,
            "kind": kind.kind,
            "target": kind.target_of(name),
            "usable": (reason := kind.missing(name)) is None,
            "reason": reason,
            "default": name == DEFAULT_DEVICE,
        }
        for kind in kinds()
        for name in kind.names()
    ]
    output.write_json({"devices": facts})
    made = table("device", "target", "usable here", spare=("target",))
    for fact in facts:
        usable = "yes" if fact["usable"] else f"no: {fact['reason']}"
        made.add_row(str(fact["name"]), str(fact["target"]), usable + (" (the default)" if fact["default"] else ""))
    output.show(made)
    if not all(fact["usable"] for fact in facts):
        output.show(Text(), Text("`tilegrad doctor` says how to get what is missing"))
    return 0


def doctor(json_to: options.JsonTo = None) -> int:
    """Say which compilers and libraries are here, what each missing one would unlock, and how to get it."""
    output = Output(json_to)
    findings = health.examine()
    output.write_json(health.as_json(findings))
    output.show(*health.doctor_report(findings))
    return 0
