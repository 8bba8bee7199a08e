"""Expands every operator into its nests."""

from __future__ import annotations

from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Schedule
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.targets.base import Target

LARGEST_ELEMENT_COUNT = 2**31 - 1


def schedule_program(program: Program, target: Target) -> Schedule:
    return Schedule(
        program, target, {name: _schedule_entry(graph) for name, graph in program.entries.items()}
    )


def _schedule_entry(graph: Graph) -> EntrySchedule:
    for name, tensor_type in graph.types.items():
        if tensor_type.size > LARGEST_ELEMENT_COUNT:
            raise UserError(
                f"tensor '{name}' is too large",
                stage="schedule",
                expected=f"at most {LARGEST_ELEMENT_COUNT} elements",
                got=str(tensor_type),
            )
    launches = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        nests = () if operator.is_view else operator.nests(NodeView(node, graph.types))
        launches.append(Launch(node, tuple(nests)))
    return EntrySchedule(graph, tuple(launches))

