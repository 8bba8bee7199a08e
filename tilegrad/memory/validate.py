"""Proof that a plan is right, by code that knows nothing of how it was made.

It replays each entry: which value's content lies at which bytes. A launch must find every input's bytes still holding
that input, and what the caller and the next call rely on must be there at the end.
"""

from __future__ import annotations

from tilegrad.errors import InternalError
from tilegrad.ir.plan import Address, Plan
from tilegrad.memory.lifetimes import temporaries
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


class PlanError(InternalError):
    """A plan that would give wrong results."""


def validate_plan(plan: Plan) -> Plan:
    _check_state(plan)
    for name in plan.schedule.entries:
        _replay(plan, name)
    for memory, use in plan.memory.items():
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise PlanError(f"plan: {memory} holds {use.capacity_bytes} bytes, the plan uses {use.used_bytes}")
    return plan


def is_valid(plan: Plan, entry: str) -> bool:
    """For choosing between two plans of an entry, where the better one may be impossible."""
    try:
        _replay(plan, entry)
    except PlanError:
        return False
    return True


def _check_state(plan: Plan) -> None:
    """State tensors must not share a byte."""
    taken = sorted(
        (plan.state_addresses[tensor.name].offset, tensor.type.size_bytes, tensor.name)
        for tensor in plan.schedule.program.state
    )
    end, previous = 0, ""
    for offset, size, name in taken:
        if size and offset < end:
            raise PlanError(f"plan: state '{name}' overlaps '{previous}'")
        if size:
            end, previous = offset + size, name
    if end > plan.state_bytes:
        raise PlanError(f"plan: state '{previous}' ends beyond the state region")


class _Content:
    """Which value's bytes lie where, as a list of intervals per region."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[tuple[int, int, str]]] = {"state": [], "arena": []}

    def write(self, address: Address, size: int, value: str) -> None:
        start, stop = address.offset, address.offset + size
        kept = [
            entry for entry in self.intervals[address.region] if entry[1] <= start or entry[0] >= stop
        ]
        if size:
            kept.append((start, stop, value))
        self.intervals[address.region] = kept

    def holds(self, address: Address, size: int, value: str) -> bool:
        if size == 0:
            return True
        wanted = (address.offset, address.offset + size, value)
        return wanted in self.intervals[address.region]


def _replay(plan: Plan, entry: str) -> None:
    graph = plan.schedule.entries[entry].graph
    regions = {"state": plan.state_bytes, "arena": plan.arena_bytes}
    content = _Content()
    # A view's bytes are its source's: they are looked up under the name of what was actually written.
    written_as: dict[str, str] = {}

    def put(value: str) -> None:
        address, size = plan.address(entry, value), graph.types[value].size_bytes
        if address.offset % plan.alignment_bytes:
            raise PlanError(f"plan: '{value}' of {entry} is not aligned")
        if address.offset + size > regions[address.region]:
            raise PlanError(f"plan: '{value}' of {entry} lies beyond its region")
        content.write(address, size, value)
        written_as[value] = value

    def expect(value: str, reader: str) -> None:
        if not content.holds(plan.address(entry, value), graph.types[value].size_bytes, written_as[value]):
            raise PlanError(f"plan: {reader} of {entry} finds '{value}' overwritten")

    for value in (*graph.state, *graph.inputs):
        put(value)
    scratch: dict[int, list[str]] = {}
    temporary_types = temporaries(graph)
    for name, (i, _) in temporary_types.items():
        scratch.setdefault(i, []).append(name)
    for i, node in enumerate(graph.nodes):
        for value in filter(None, node.inputs):
            expect(value, f"node '{node.name}'")
        if registry.get(node.op).is_view:
            source, view = node.inputs[0], node.outputs[0]
            if plan.address(entry, source) != plan.address(entry, view):
                raise PlanError(f"plan: view '{view}' of {entry} is not where '{source}' is")
            written_as[view] = written_as[source]
            continue
        allowed = registry.get(node.op).in_place(NodeView(node, graph.types))
        spans = []
        for position, value in enumerate(node.outputs):
            if value:
                spans.append((plan.address(entry, value), graph.types[value].size_bytes, value, position))
        for name in scratch.get(i, ()):
            spans.append((plan.address(entry, name), temporary_types[name][1].size_bytes, name, -1))
        for k, (address, size, value, position) in enumerate(spans):
            for other, other_size, other_value, _ in spans[k + 1 :]:
                if _overlap(address, size, other, other_size):
                    raise PlanError(f"plan: '{value}' and '{other_value}' of node '{node.name}' overlap")
            for j, source in enumerate(node.inputs):
                if not source or not _overlap(
                    address, size, plan.address(entry, source), graph.types[source].size_bytes
                ):
                    continue
                if (position, j) not in allowed or address != plan.address(entry, source):
                    raise PlanError(
                        f"plan: '{value}' overlaps the input '{source}' of node '{node.name}', which may not be in place"
                    )
        for _, _, value, position in spans:
            if position >= 0:
                put(value)
            else:
                content.write(plan.address(entry, value), temporary_types[value][1].size_bytes, value)
    for value in graph.outputs:
        expect(value, "the caller")
    becomes = {state: value for value, state in graph.writes}
    for state in graph.state:
        value = becomes.get(state, state)
        if not content.holds(plan.state_addresses[state], graph.types[state].size_bytes, written_as[value]):
            raise PlanError(f"plan: state '{state}' does not hold '{value}' when {entry} ends")


def _overlap(a: Address, a_size: int, b: Address, b_size: int) -> bool:
    return (
        a.region == b.region
        and a_size > 0
        and b_size > 0
        and a.offset < b.offset + b_size
        and b.offset < a.offset + a_size
    )
