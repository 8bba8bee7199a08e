"""Proof that a plan for a hierarchy is right, by code that knows nothing of how it was made.

It replays each entry: which value's content lies at which bytes of L2 and L3, and which bytes a transfer is moving. A
nest must find what it reads, nothing under way may be disturbed, and state must be where the next call looks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tilegrad.ir.nest import Access, Nest, Operand
from tilegrad.ir.plan import Address, Plan, Staging
from tilegrad.ir.schedule import Launch, Tiling
from tilegrad.memory.lifetimes import temporaries
from tilegrad.memory.plan_events import StartMove, WaitMove, plan_events
from tilegrad.memory.validate import PlanError
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.scheduling.verify import verify_in_place
from tilegrad.targets.base import L1, L2, L3

STATE, ARENA, OUTSIDE = "state", "arena", "l3"
_REGION_MEMORY = {STATE: L2, ARENA: L2, OUTSIDE: L3}


def validate_levels(plan: Plan) -> Plan:
    """Raises a PlanError where a plan would give wrong results."""
    _check_sizes(plan)
    known: set[object] = set()
    for entry in plan.schedule.entries:
        _Replay(plan, entry, known).run()
    return plan


def _check_sizes(plan: Plan) -> None:
    for memory, use in plan.memory.items():
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise PlanError(f"plan: {memory} holds {use.capacity_bytes} bytes, the plan uses {use.used_bytes}")
    if plan.memory[L2].used_bytes < plan.state_bytes + plan.arena_bytes:
        raise PlanError(f"plan: {L2} is said to use less than the state and the arena")
    for name, entry in plan.schedule.entries.items():
        for place in plan.entries[name].places:
            launch = entry.launches[place.launch]
            tiling = launch.tilings[place.nest]
            assert tiling is not None
            ends = (place.table_offset + place.table_bytes, place.slots_offset + tiling.scratch_bytes)
            if max(ends) > plan.memory[L1].used_bytes:
                raise PlanError(f"plan: {L1} is said to use less than node '{launch.node.name}'")
    images = {STATE: plan.image_bytes, OUTSIDE: plan.l3_image_bytes}
    for tensor in plan.schedule.program.state:
        address = plan.state_addresses[tensor.name]
        if tensor.initial is not None and address.offset + tensor.type.size_bytes > images.get(address.region, 0):
            raise PlanError(f"plan: the initial values of '{tensor.name}' are not in the image")


@dataclass(frozen=True, slots=True)
class _Span:
    region: str
    start: int
    stop: int

    def overlaps(self, other: _Span) -> bool:
        return self.region == other.region and self.start < other.stop and other.start < self.stop


class _Content:
    """Which value's bytes lie where: per region (start, stop, value) in order, none over another."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[int, int, str]]] = {STATE: [], ARENA: [], OUTSIDE: []}

    def _touched(self, span: _Span) -> slice:
        """Which of a region's entries overlap a span."""
        held = self.spans[span.region]
        low = high = bisect_left(held, (span.start,))
        if low and held[low - 1][1] > span.start:
            low -= 1
        while high < len(held) and held[high][0] < span.stop:
            high += 1
        return slice(low, high)

    def clear(self, span: _Span) -> None:
        if span.start < span.stop:
            del self.spans[span.region][self._touched(span)]

    def write(self, span: _Span, value: str) -> None:
        if span.start < span.stop:
            self.spans[span.region][self._touched(span)] = [(span.start, span.stop, value)]

    def holds(self, span: _Span, value: str) -> bool:
        held, wanted = self.spans[span.region], (span.start, span.stop, value)
        position = bisect_left(held, wanted)
        return span.start == span.stop or (position < len(held) and held[position] == wanted)

    def inside(self, span: _Span) -> list[tuple[int, int, str]]:
        """What lies completely within: offsets from the start, and values."""
        return [
            (start - span.start, stop - span.start, value)
            for start, stop, value in self.spans[span.region][self._touched(span)]
            if span.start <= start and stop <= span.stop
        ]


@dataclass(frozen=True)
class _UnderWay:
    move: Staging
    source: _Span
    target: _Span
    content: list[tuple[int, int, str]]


class _Replay:
    """One entry, event by event."""

    def __init__(self, plan: Plan, entry: str, known: set[object]) -> None:
        self.plan = plan
        self.entry = entry
        self.graph = plan.schedule.entries[entry].graph
        self.launches = plan.schedule.entries[entry].launches
        self.sizes = {name: tensor_type.size_bytes for name, tensor_type in self.graph.types.items()}
        self.sizes |= {name: tensor_type.size_bytes for name, (_, tensor_type) in temporaries(self.graph).items()}
        self.regions = {STATE: plan.state_bytes, ARENA: plan.arena_bytes, OUTSIDE: plan.memory[L3].used_bytes}
        self.content = _Content()
        self.under_way: dict[int, _UnderWay] = {}
        self.settled: set[int] = set()
        # A view's bytes are its source's: they are looked up under the name of what was actually written.
        self.written_as: dict[str, str] = {}
        self.known = known

    def error(self, message: str, node: str | None = None) -> PlanError:
        return PlanError(f"plan of {self.entry}: {message}", stage="memory", node=node)

    def span(self, address: Address, size_bytes: int, what: str) -> _Span:
        """Checked against its region and the alignment."""
        if address.region not in self.regions or address.memory != _REGION_MEMORY[address.region]:
            raise self.error(f"{what} is in region '{address.region}' of {address.memory}, which is none")
        alignment = self.plan.schedule.target.memory(address.memory).alignment_bytes
        if address.offset % alignment:
            raise self.error(f"{what} is not aligned to {alignment} bytes")
        if address.offset < 0 or address.offset + size_bytes > self.regions[address.region]:
            raise self.error(f"{what} lies beyond its region")
        return _Span(address.region, address.offset, address.offset + size_bytes)

    def place(self, value: str, launch: int, node: str) -> _Span:
        """Where a launch finds a value: in L2, or nowhere."""
        stays = self.plan.entries[self.entry].stays.get(value)
        if stays is not None and not any(stay.first <= launch <= stay.last for stay in stays):
            raise self.error(f"'{value}' is not in {L2} when it is needed", node)
        span = self.span(self.plan.address(self.entry, value, launch), self.sizes[value], f"'{value}'")
        if span.region == OUTSIDE:
            raise self.error(f"'{value}' is in {L3} when it is needed in {L2}", node)
        return span

    def run(self) -> None:
        self.begin()
        for event in plan_events(self.plan, self.entry):
            if isinstance(event, StartMove):
                self.start(event.move)
            elif isinstance(event, WaitMove):
                self.wait(event.move)
            else:
                self.launch(event.launch)
        self.end()

    def begin(self) -> None:
        for move in self.plan.entries[self.entry].staging:
            if not 0 <= move.start <= move.wait <= len(self.launches):
                raise self.error(f"the transfer of '{move.tensor}' starts at {move.start} and ends at {move.wait}")
        spans = []
        for tensor in self.plan.schedule.program.state:
            address = self.plan.state_addresses[tensor.name]
            spans.append((self.span(address, tensor.type.size_bytes, f"state '{tensor.name}'"), tensor.name))
        for value in self.graph.inputs:
            spans.append((self.place(value, 0, f"input {value}"), value))
        for span, value in spans:
            self.content.write(span, value)
            self.written_as[value] = value
        for span, value in spans:
            if not self.content.holds(span, value):
                raise self.error(f"'{value}' overlaps other state or another input")

    def start(self, number: int) -> None:
        move = self.plan.entries[self.entry].staging[number]
        what = f"'{move.tensor}' on its way"
        near = self.span(Address(L2, ARENA, move.l2_offset), move.size_bytes, what)
        far = self.span(Address(L3, OUTSIDE, move.l3_offset), move.size_bytes, what)
        source, target = (far, near) if move.inward else (near, far)
        self.expect_undisturbed(source, False, f"the transfer of '{move.tensor}'")
        self.expect_undisturbed(target, True, f"the transfer of '{move.tensor}'")
        self.under_way[number] = _UnderWay(move, source, target, self.content.inside(source))
        self.content.clear(target)

    def wait(self, number: int) -> None:
        moved = self.under_way.pop(number, None)
        if moved is None:
            tensor = self.plan.entries[self.entry].staging[number].tensor
            raise self.error(f"the transfer of '{tensor}' is waited for before it starts")
        self.settled.add(number)
        for start, stop, value in moved.content:
            at = moved.target.start
            self.content.write(_Span(moved.target.region, at + start, at + stop), value)

    def expect_undisturbed(self, span: _Span, is_written: bool, who: str, node: str | None = None) -> None:
        if span.start == span.stop:
            return
        for other in self.under_way.values():
            if other.target.overlaps(span):
                word = "writes" if is_written else "reads"
                raise self.error(f"{who} {word} where '{other.move.tensor}' has not arrived", node)
            if is_written and other.source.overlaps(span):
                raise self.error(f"{who} writes what is still being read of '{other.move.tensor}'", node)

    def launch(self, number: int) -> None:
        launch = self.launches[number]
        if registry.get(launch.node.op).is_view:
            source, view = launch.node.inputs[0], launch.node.outputs[0]
            self.written_as[view] = self.written_as[source]
            return
        tilings = launch.tilings or (None,) * len(launch.nests)
        for nest, tiling in zip(launch.nests, tilings, strict=True):
            self.nest(number, launch, nest, tiling)

    def nest(self, number: int, launch: Launch, nest: Nest, tiling: Tiling | None) -> None:
        name = launch.node.name
        reads: list[tuple[Operand, str, _Span]] = []
        writes: list[tuple[Operand, str, _Span]] = []
        for operand in nest.operands:
            if operand.value is not None:
                span = self.place(operand.value, number, name)
                (writes if operand.access is Access.WRITE else reads).append((operand, operand.value, span))
        for _, value, span in reads:
            self.expect_undisturbed(span, False, f"tg_{nest.kernel}", name)
            if not self.content.holds(span, self.written_as.get(value, value)):
                raise self.error(f"tg_{nest.kernel} finds '{value}' overwritten", name)
        for k, (operand, value, span) in enumerate(writes):
            self.expect_undisturbed(span, True, f"tg_{nest.kernel}", name)
            for _, other, other_span in writes[k + 1 :]:
                if span.overlaps(other_span):
                    raise self.error(f"'{value}' and '{other}' overlap", name)
            for source, read, read_span in reads:
                if span.overlaps(read_span):
                    self.check_in_place(launch, nest, tiling, (source, operand), (read, value), (read_span, span))
        for _, value, span in writes:
            self.content.write(span, value)
            self.written_as[value] = value

    def check_in_place(
        self,
        launch: Launch,
        nest: Nest,
        tiling: Tiling | None,
        operands: tuple[Operand, Operand],
        values: tuple[str, str],
        spans: tuple[_Span, _Span],
    ) -> None:
        node = launch.node
        allowed = registry.get(node.op).in_place(NodeView(node, self.graph.types))
        is_allowed = any(
            (node.outputs[o], node.inputs[i]) == (values[1], values[0])
            for o, i in allowed
            if o < len(node.outputs) and i < len(node.inputs)
        )
        if not is_allowed or spans[0] != spans[1]:
            raise self.error(f"'{values[1]}' overlaps '{values[0]}', which may not be in place", node.name)
        source, result = operands
        # Boxes of one map are the same box at the same tile, and the schedule's verifier saw each leave exactly once.
        if tiling is None or (source.index, source.shape) == (result.index, result.shape):
            return
        key = (nest.kernel, nest.axes, source, result, id(tiling))
        if key in self.known:
            return
        scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(self.graph).items()}
        types = {**scratch, **self.graph.types}
        element_bytes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
        pair = (source.name, result.name)
        verify_in_place(nest, tiling, element_bytes, self.plan.schedule.target, node.name, pair)
        self.known.add(key)

    def end(self) -> None:
        for moved in self.under_way.values():
            raise self.error(f"the transfer of '{moved.move.tensor}' is never waited for")
        if len(self.settled) != len(self.plan.entries[self.entry].staging):
            raise self.error("not every transfer happens")
        for value in self.graph.outputs:
            if value in self.plan.entries[self.entry].stays:
                raise self.error(f"the output '{value}' comes and goes")
            span = self.place(value, len(self.launches), f"output {value}")
            if not self.content.holds(span, self.written_as[value]):
                raise self.error(f"the caller finds '{value}' overwritten")
        becomes = {state: value for value, state in self.graph.writes}
        for tensor in self.plan.schedule.program.state:
            value = becomes.get(tensor.name, tensor.name)
            span = self.span(self.plan.state_addresses[tensor.name], tensor.type.size_bytes, f"'{tensor.name}'")
            if not self.content.holds(span, self.written_as.get(value, value)):
                raise self.error(f"state '{tensor.name}' does not hold '{value}' at the end")
