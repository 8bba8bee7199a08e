"""Proof that a plan is right, by code that knows nothing of how it was made.

It replays each entry: which value's content lies at which bytes. A launch must find every input's bytes still holding
that input, and what the caller and the next call rely on must be there at the end.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tilegrad.analysis.lifetimes import temporaries
from tilegrad.errors import InternalError
from tilegrad.ir.graph import Node
from tilegrad.ir.plan import FLASH_REGION, Address, Plan
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.targets.base import FLASH


class PlanError(InternalError):
    """A plan that would give wrong results."""


def validate_plan(plan: Plan) -> Plan:
    _check_state(plan)
    for name in plan.schedule.entries:
        _Replay(plan, name).run()
    used_bytes = plan.state_bytes + plan.arena_bytes
    for memory, use in plan.memory.items():
        needed = plan.flash_bytes if memory == FLASH else used_bytes
        if use.used_bytes < needed:
            raise PlanError(f"plan: {memory} is said to need {use.used_bytes} bytes, its regions have {needed}")
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise PlanError(f"plan: {memory} holds {use.capacity_bytes} bytes, the plan uses {use.used_bytes}")
    return plan


def is_valid(plan: Plan, entry: str) -> bool:
    """For choosing between two plans of an entry, where the better one may be impossible."""
    try:
        _Replay(plan, entry).run()
    except PlanError:
        return False
    return True


def _check_state(plan: Plan) -> None:
    """State tensors must not share a byte, and what is in flash must have a content that no entry changes."""
    for region, region_bytes in (("state", plan.state_bytes), (FLASH_REGION, plan.flash_bytes)):
        taken = sorted(
            (plan.state_addresses[tensor.name].offset, tensor.type.size_bytes, tensor.name)
            for tensor in plan.schedule.program.state
            if plan.state_addresses[tensor.name].region == region
        )
        end, previous = 0, ""
        for offset, size, name in taken:
            if offset < 0:
                raise PlanError(f"plan: state '{name}' starts before the {region} region")
            if size and offset < end:
                raise PlanError(f"plan: state '{name}' overlaps '{previous}'")
            if size:
                end, previous = offset + size, name
        if end > region_bytes:
            raise PlanError(f"plan: state '{previous}' ends beyond the {region} region")
    written = {state for entry in plan.schedule.entries.values() for _, state in entry.graph.writes}
    for tensor in plan.schedule.program.state:
        if plan.is_read_only(tensor.name) and (tensor.initial is None or tensor.name in written):
            raise PlanError(f"plan: '{tensor.name}' is in flash, and changes")


class _Content:
    """Which value's bytes lie where: per region disjoint intervals in order, of which those overwritten are gone."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[tuple[int, int, str]]] = {"state": [], "arena": [], FLASH_REGION: []}

    def write(self, address: Address, size: int, value: str) -> None:
        if not size:
            return
        intervals = self.intervals[address.region]
        start, stop = address.offset, address.offset + size
        low = high = bisect_left(intervals, (start,))
        if low and intervals[low - 1][1] > start:
            low -= 1
        while high < len(intervals) and intervals[high][0] < stop:
            high += 1
        intervals[low:high] = [(start, stop, value)]

    def holds(self, address: Address, size: int, value: str) -> bool:
        if size == 0:
            return True
        intervals = self.intervals[address.region]
        wanted = (address.offset, address.offset + size, value)
        position = bisect_left(intervals, wanted)
        return position < len(intervals) and intervals[position] == wanted


@dataclass(frozen=True)
class _Span:
    """Bytes that a node writes: an output (with its position) or scratch (position -1)."""

    address: Address
    size: int
    value: str
    position: int


class _Replay:
    """One entry, node by node."""

    def __init__(self, plan: Plan, entry: str) -> None:
        self.plan = plan
        self.entry = entry
        self.graph = plan.schedule.entries[entry].graph
        self.state = {tensor.name: tensor.type.size_bytes for tensor in plan.schedule.program.state}
        self.regions = {"state": plan.state_bytes, "arena": plan.arena_bytes, FLASH_REGION: plan.flash_bytes}
        self.content = _Content()
        # A view's bytes are its source's: they are looked up under the name of what was actually written.
        self.written_as: dict[str, str] = {}
        self.scratch: dict[int, list[tuple[str, int]]] = {}
        for name, (i, tensor_type) in temporaries(self.graph).items():
            self.scratch.setdefault(i, []).append((name, tensor_type.size_bytes))

    def address(self, value: str) -> Address:
        return self.plan.address(self.entry, value)

    def size(self, value: str) -> int:
        return self.graph.types[value].size_bytes

    def put(self, span: _Span) -> None:
        if span.address.region == FLASH_REGION and span.position >= 0:
            raise PlanError(f"plan: '{span.value}' of {self.entry} is written to flash")
        if span.address.offset % self.plan.alignment_bytes:
            raise PlanError(f"plan: '{span.value}' of {self.entry} is not aligned")
        if span.address.offset < 0 or span.address.offset + span.size > self.regions[span.address.region]:
            raise PlanError(f"plan: '{span.value}' of {self.entry} lies beyond its region")
        self.content.write(span.address, span.size, span.value)
        self.written_as[span.value] = span.value

    def expect(self, value: str, reader: str) -> None:
        if not self.content.holds(self.address(value), self.size(value), self.written_as[value]):
            raise PlanError(f"plan: {reader} of {self.entry} finds '{value}' overwritten")

    def run(self) -> None:
        # All state, also what only other entries use: it must be there when they run.
        for name, size in self.state.items():
            self.put(_Span(self.plan.state_addresses[name], size, name, -1))
        for value in self.graph.inputs:
            self.put(_Span(self.address(value), self.size(value), value, -1))
        for i, node in enumerate(self.graph.nodes):
            unread = registry.get(node.op).unread_inputs(NodeView(node, self.graph.types))
            for value in (name for k, name in enumerate(node.inputs) if name and k not in unread):
                self.expect(value, f"node '{node.name}'")
            if registry.get(node.op).is_view:
                self.see_view(node)
                continue
            spans = self.spans(i, node)
            self.check_spans(node, spans)
            for span in spans:
                self.put(span)
        for value in self.graph.outputs:
            self.expect(value, "the caller")
        becomes = {state: value for value, state in self.graph.writes}
        for state, size in self.state.items():
            value = becomes.get(state, state)
            if not self.content.holds(self.plan.state_addresses[state], size, self.written_as[value]):
                raise PlanError(f"plan: state '{state}' does not hold '{value}' when {self.entry} ends")

    def see_view(self, node: Node) -> None:
        source, view = node.inputs[0], node.outputs[0]
        if self.address(source) != self.address(view):
            raise PlanError(f"plan: view '{view}' of {self.entry} is not where '{source}' is")
        self.written_as[view] = self.written_as[source]

    def spans(self, i: int, node: Node) -> list[_Span]:
        outputs = [
            _Span(self.address(value), self.size(value), value, position)
            for position, value in enumerate(node.outputs)
            if value
        ]
        return outputs + [_Span(self.address(name), size, name, -1) for name, size in self.scratch.get(i, ())]

    def check_spans(self, node: Node, spans: list[_Span]) -> None:
        """What a node writes may overlap an input only as a declared in-place pair, and nothing else it writes."""
        view = NodeView(node, self.graph.types)
        allowed, unread = registry.get(node.op).in_place(view), registry.get(node.op).unread_inputs(view)
        for k, span in enumerate(spans):
            for other in spans[k + 1 :]:
                if _overlap(span.address, span.size, other.address, other.size):
                    raise PlanError(f"plan: '{span.value}' and '{other.value}' of node '{node.name}' overlap")
            for j, source in enumerate(node.inputs):
                if not source or j in unread:
                    continue
                if not _overlap(span.address, span.size, self.address(source), self.size(source)):
                    continue
                if (span.position, j) not in allowed or span.address != self.address(source):
                    raise PlanError(
                        f"plan: '{span.value}' overlaps the input '{source}' of node '{node.name}', "
                        "which may not be in place"
                    )


def _overlap(a: Address, a_size: int, b: Address, b_size: int) -> bool:
    return a.region == b.region and max(a.offset, b.offset) < min(a.offset + a_size, b.offset + b_size)
