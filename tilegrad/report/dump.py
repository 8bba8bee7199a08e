"""What a compiler stage made, as stable text: the same input prints the same lines (`--dump-after STAGE`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import singledispatch

from tilegrad.codegen.project import Project
from tilegrad.errors import InternalError
from tilegrad.frontend import ImportedModel
from tilegrad.ir.graph import Graph
from tilegrad.ir.listing import Enter, Listing, describe
from tilegrad.ir.nest import Nest
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.text import format_graph


@singledispatch
def dump(result: object) -> str:
    raise InternalError(f"no text form for {type(result).__name__}")


@dump.register
def _(model: ImportedModel) -> str:
    return format_graph(model.graph)


@dump.register
def _(graph: Graph) -> str:
    return format_graph(graph)


@dump.register
def _(program: Program) -> str:
    return _joined(_program(program))


@dump.register
def _(made: tuple) -> str:  # type: ignore[type-arg]
    """A program, and what was found on the way to it."""
    return dump(made[0])


@dump.register
def _(schedule: Schedule) -> str:
    return _joined(_schedule(schedule))


@dump.register
def _(plan: Plan) -> str:
    return _joined(_plan(plan))


@dump.register
def _(listing: Listing) -> str:
    return _joined(_listing(listing))


@dump.register
def _(project: Project) -> str:
    return _joined(_project(project))


def _joined(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _program(program: Program) -> Iterator[str]:
    yield f"program {program.name}: loss {program.loss}, optimizer {program.recipe.optimizer.operator}"
    for tensor in program.state:
        start = "" if tensor.initial is not None else " = 0"
        owner = f" of %{tensor.owner}" if tensor.owner else ""
        yield f"  {tensor.role.value} %{tensor.name}: {tensor.type}{owner}{start}"
    for graph in program.entries.values():
        yield format_graph(graph).rstrip("\n")


def _schedule(schedule: Schedule) -> Iterator[str]:
    yield f"schedule {schedule.program.name} on {schedule.target.name}"
    for name, entry in schedule.entries.items():
        yield f"entry {name}: {schedule.macs(name)} MACs"
        for launch in entry.launches:
            yield f"  launch {launch.node.op} '{launch.node.name}'"
            yield from (f"    {_nest(nest)}" for nest in launch.nests)


def _nest(nest: Nest) -> str:
    axes = ", ".join(f"{axis.name}={axis.extent} {axis.kind.value}" for axis in nest.axes)
    operands = ", ".join(
        f"{operand.access.value} {operand.name}=" + ("none" if operand.value is None else f"%{operand.value}")
        for operand in nest.operands
    )
    return f"{nest.title}({axes}) {operands}" + (f", {nest.macs} MACs" if nest.macs else "")


def _plan(plan: Plan) -> Iterator[str]:
    yield f"plan {plan.schedule.program.name}: state {plan.state_bytes} bytes, arena {plan.arena_bytes} bytes"
    for name, use in plan.memory.items():
        yield f"  {name}: used {use.used_bytes}, lower bound {use.lower_bound_bytes}, capacity {use.capacity_bytes}"
    for name, address in plan.state_addresses.items():
        yield f"  %{name} at {_address(address)}"
    for name, entry in plan.entries.items():
        yield f"entry {name}: arena {entry.arena_bytes} bytes, lower bound {entry.lower_bound_bytes} bytes"
        for buffer in entry.buffers:
            holds = " ".join(f"%{member}" for member in buffer.members)
            yield (
                f"  arena+{entry.offsets[buffer.name]} {buffer.size_bytes} bytes, "
                f"launches {buffer.first} to {buffer.last}: {holds}"
            )


def _listing(listing: Listing) -> Iterator[str]:
    yield f"listing {listing.plan.schedule.program.name} on {listing.plan.schedule.target.name}"
    if not listing.entries:
        yield "  one flat memory: launches run in the order of the schedule, and nothing is transferred"
    for name, entry in listing.entries.items():
        yield f"entry {name}: {len(entry.nests)} nests, {len(entry.events)} events"
        for event in entry.events:
            what = ""
            if isinstance(event, Enter):
                nest = entry.nests[event.nest]
                node = listing.launch_of(name, event.nest).node.name
                what = f": {nest.nest.title} of '{node}', {nest.tile_count} tiles"
            yield f"  {describe(event)}{what}"


def _address(address: Address) -> str:
    return f"{address.memory} {address.region}+{address.offset}"


def _project(project: Project) -> Iterator[str]:
    yield f"project: {project.line_count} lines of C"
    for name, content in project.files.items():
        yield f"  {name} {len(content)} bytes sha256 {hashlib.sha256(content).hexdigest()}"
    yield "model.c:"
    yield project.files["model.c"].decode().rstrip("\n")
