"""Proof that a plan is right, by code that knows nothing of how it was made.

It replays each entry: which value's content lies at which bytes. A launch must find every input's bytes still holding
that input, and what the caller and the next call rely on must be there at the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

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
    _check_flash(plan)
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


def _check_flash(plan: Plan) -> None:
    """What is in flash must have a content that no entry changes."""
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


class _Replay:
    """One entry, node by node."""

    def __init__(self, plan: Plan, entry: str) -> None:
        self.plan = plan
        self.entry = entry
        self.graph = plan.schedule.entries[entry].graph
        # All state, also what only other entries use: it must be there when they run.
        self.state = [tensor.name for tensor in plan.schedule.program.state]
        self.sizes = {name: own.size_bytes for name, own in self.graph.types.items()}
        self.sizes |= {tensor.name: tensor.type.size_bytes for tensor in plan.schedule.program.state}
        self.regions = {"state": plan.state_bytes, "arena": plan.arena_bytes, FLASH_REGION: plan.flash_bytes}
        self.content = _Content()
        # A view's bytes are its source's: they are looked up under the name of what was actually written.
        self.written_as: dict[str, str] = {}
        self.scratch: dict[int, list[str]] = {}
        for name, (i, tensor_type) in temporaries(self.graph).items():
            self.scratch.setdefault(i, []).append(name)
            self.sizes[name] = tensor_type.size_bytes

    def address(self, value: str) -> Address:
        return self.plan.address(self.entry, value)

    def put(self, value: str) -> None:
        address, size = self.address(value), self.sizes[value]
        if address.offset % self.plan.alignment_bytes:
            raise PlanError(f"plan: '{value}' of {self.entry} is not aligned")
        if address.offset < 0 or address.offset + size > self.regions[address.region]:
            raise PlanError(f"plan: '{value}' of {self.entry} lies beyond its region")
        self.content.write(address, size, value)
        self.written_as[value] = value

    def holds(self, place: str, value: str) -> bool:
        """Whether a value's content is where `place` lies."""
        return self.content.holds(self.address(place), self.sizes[place], self.written_as[value])

    def expect(self, value: str, reader: str) -> None:
        if not self.holds(value, value):
            raise PlanError(f"plan: {reader} of {self.entry} finds '{value}' overwritten")

    def run(self) -> None:
        for value in (*self.state, *self.graph.inputs):
            self.put(value)
        for i, node in enumerate(self.graph.nodes):
            unread = registry.get(node.op).unread_inputs(NodeView(node, self.graph.types))
            read = {j: value for j, value in enumerate(node.inputs) if value and j not in unread}
            for value in read.values():
                self.expect(value, f"node '{node.name}'")
            if registry.get(node.op).is_view:
                self.see_view(node)
                continue
            written = [*filter(None, node.outputs), *self.scratch.get(i, ())]
            self.check_written(node, read, written)
            for value in written:
                self.put(value)
        for value in self.graph.outputs:
            self.expect(value, "the caller")
        becomes = {state: value for value, state in self.graph.writes}
        for state in self.state:
            value = becomes.get(state, state)
            if not self.holds(state, value):
                raise PlanError(f"plan: state '{state}' does not hold '{value}' when {self.entry} ends")

    def see_view(self, node: Node) -> None:
        source, view = node.inputs[0], node.outputs[0]
        if self.address(source) != self.address(view):
            raise PlanError(f"plan: view '{view}' of {self.entry} is not where '{source}' is")
        self.written_as[view] = self.written_as[source]

    def check_written(self, node: Node, read: Mapping[int, str], written: Sequence[str]) -> None:
        """What a node writes may overlap an input only as a declared in-place pair, and nothing else it writes."""
        pairs = registry.get(node.op).in_place(NodeView(node, self.graph.types))
        allowed = {(node.outputs[i], j) for i, j in pairs if i < len(node.outputs)}
        for k, value in enumerate(written):
            if self.address(value).region == FLASH_REGION:
                raise PlanError(f"plan: '{value}' of {self.entry} is written to flash")
            for other in written[k + 1 :]:
                if self.overlap(value, other):
                    raise PlanError(f"plan: '{value}' and '{other}' of node '{node.name}' overlap")
            for j, source in read.items():
                is_in_place = (value, j) in allowed and self.address(value) == self.address(source)
                if self.overlap(value, source) and not is_in_place:
                    raise PlanError(
                        f"plan: '{value}' overlaps the input '{source}' of node '{node.name}', "
                        "which may not be in place"
                    )

    def overlap(self, one: str, other: str) -> bool:
        a, b = self.address(one), self.address(other)
        ends = a.offset + self.sizes[one], b.offset + self.sizes[other]
        return a.region == b.region and max(a.offset, b.offset) < min(ends)
