"""What a compiler stage made, as stable text: the same input prints the same lines (`--dump-after STAGE`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tilegrad.codegen.project import Project
from tilegrad.errors import InternalError
from tilegrad.frontend import ImportedModel
from tilegrad.ir.graph import Graph
from tilegrad.ir.nest import Nest
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.text import format_graph


def dump(result: object) -> str:
    if isinstance(result, ImportedModel):
        return format_graph(result.graph)
    if isinstance(result, Graph):
        return format_graph(result)
    for kind, lines in ((Program, _program), (Schedule, _schedule), (Plan, _plan), (Project, _project)):
        if isinstance(result, kind):
            return "\n".join(lines(result)) + "\n"  # type: ignore[operator]
    raise InternalError(f"no text form for {type(result).__name__}")


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
            yield f"  launch {launch.node.op} '{launch.node.name}' on {launch.blocks} block(s) of {launch.engine}"
            yield from (f"    {_nest(nest)}" for nest in launch.nests)


def _nest(nest: Nest) -> str:
    axes = ", ".join(f"{axis.name}={axis.extent} {axis.kind.value}" for axis in nest.axes)
    operands = ", ".join(
        f"{operand.access.value} {operand.name}=" + ("none" if operand.value is None else f"%{operand.value}")
        for operand in nest.operands
    )
    return f"{nest.kernel}({axes}) {operands}" + (f", {nest.macs} MACs" if nest.macs else "")


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


def _address(address: Address) -> str:
    return f"{address.memory} {address.region}+{address.offset}"


def _project(project: Project) -> Iterator[str]:
    yield f"project: {project.line_count} lines of C"
    for name, content in project.files.items():
        yield f"  {name} {len(content)} bytes sha256 {hashlib.sha256(content).hexdigest()}"
    yield "model.c:"
    yield project.files["model.c"].decode().rstrip("\n")
