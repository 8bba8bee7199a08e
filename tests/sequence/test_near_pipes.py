"""Pipes whose rings lie in L1, and groups of more than two operators: nothing is moved, counts are proved, faults are
caught with the operator's name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tests.schedule.programs import patched
from tests.sequence.test_pipes import PAIR, compiled, product_then_sum, sharing_l1, small_npu
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.sim import SimSession
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.listing import RING, Await, Begin, End, Event, Load, Move, Place, Signal, Store, ring_offset
from tilegrad.ir.nest import AxisKind, Range
from tilegrad.ir.pipes import groups
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.replay import ListingError, _Replay, replay
from tilegrad.sequence.timing import time_listing
from tilegrad.targets import base as targets
from tilegrad.targets import files
from tilegrad.targets.base import DmaTiming, Memory, Target

ROWS = 181
EXAMPLE = Path(__file__).parents[2] / "examples/target/shared_l1.toml"


@pytest.fixture(scope="module")
def piped() -> Compiled:
    return compiled(product_then_sum(ROWS, 24, 16), ROWS, depth=2, target=sharing_l1(small_npu()))


def events_of(program: Compiled) -> tuple[Event, ...]:
    return program.listing.entries["infer"].events


def chain(rows: int, inner: int, width: int, *, is_two_way: bool) -> onnx.ModelProto:
    """Two products with an activation between them, or two whose results are added."""
    generator = np.random.default_rng(3)
    shapes = {"w": (inner, width), "v": (width, inner) if is_two_way else (inner, width)}
    weights = [numpy_helper.from_array(generator.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    middle = ("Sigmoid", ["p"], "MatMul", ["q", "v"]) if is_two_way else ("MatMul", ["x", "v"], "Add", ["p", "q"])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "first"),
        helper.make_node(middle[0], middle[1], ["q"], "second"),
        helper.make_node(middle[2], middle[3], ["y"], "third"),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, inner if is_two_way else width])]
    graph = helper.make_graph(nodes, "chain", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def joined(model: onnx.ModelProto, rows: int, target: Target, is_two_way: bool, depth: int = 2) -> Compiled:
    pipes = [("first", "second" if is_two_way else "third", depth), ("second", "third", depth)]
    return tg.compile(model, tg.Recipe(loss="mse", batch=rows), target=target, pipes=pipes)


def test_what_passes_through_l1_is_not_moved(piped: Compiled) -> None:
    (pipe,) = piped.plan.schedule.entries["infer"].pipes
    assert pipe.is_near and pipe.shared_bytes == 0
    assert not any(isinstance(e, Load | Store) and e.operand in ("p",) for e in events_of(piped))
    places = [place for e in events_of(piped) if isinstance(e, Begin) for place in e.places if place is not None]
    slots = {place.offset for place in places if place.region == RING}
    assert len(slots) == pipe.depth
    far = compiled(product_then_sum(ROWS, 24, 16), ROWS, depth=2)
    assert piped.plan.arena_bytes < far.plan.arena_bytes
    assert time_listing(piped.listing)["infer"].cycles < time_listing(far.listing)["infer"].cycles


def short(place: Place | None, pipe_slot: int) -> Place | None:
    """As a ring of one slot less would have it."""
    if place is None or place.region != RING:
        return place
    return replace(place, offset=place.offset - place.count % 2 * pipe_slot)


def beside(place: Place | None, pipe_slot: int) -> Place | None:
    return place if place is None or place.region != RING else replace(place, offset=place.offset + 64 * pipe_slot)


def changed(event: Event, fault: str, slot_bytes: int) -> Event | None:
    if isinstance(event, Begin) and fault == "a ring one slot short":
        return replace(event, places=tuple(short(place, slot_bytes) for place in event.places))
    if isinstance(event, Begin) and fault == "beside the ring":
        return replace(event, places=tuple(beside(place, slot_bytes) for place in event.places))
    if isinstance(event, Await):
        if fault == "written before it is free" and not event.ready:
            return replace(event, count=0)
        if fault == "read before it is ready" and event.ready:
            return replace(event, count=event.count - 1)
    if isinstance(event, Signal) and fault == "nobody says that a slot is free" and not event.ready:
        return None
    if isinstance(event, Signal) and fault == "told ready too early" and event.ready:
        return replace(event, count=event.count + 1)
    return event


FAULTS = {
    "a ring one slot short": "may not have been read",
    "beside the ring": "is not in a slot of pipe 0",
    "written before it is free": "may not have been read",
    "read before it is ready": "before it is ready",
    "nobody says that a slot is free": "is wedged",
    "told ready too early": "is told",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_l1_is_caught_with_its_operator(piped: Compiled, fault: str) -> None:
    entry, (pipe,) = piped.listing.entries["infer"], piped.plan.schedule.entries["infer"].pipes
    wrong = tuple(one for one in (changed(e, fault, pipe.slot_bytes) for e in entry.events) if one is not None)
    with pytest.raises(ListingError, match=FAULTS[fault]) as caught:
        replay(replace(piped.listing, entries={"infer": replace(entry, events=wrong)}))
    assert caught.value.node in PAIR


def test_a_load_into_a_ring_is_caught(piped: Compiled) -> None:
    entry = piped.listing.entries["infer"]
    slot = next(p.offset for e in entry.events if isinstance(e, Begin) for p in e.places if p and p.region == RING)
    wrong = tuple(replace(e, near=slot) if isinstance(e, Load) and e.nest == 0 else e for e in entry.events)
    with pytest.raises(ListingError, match="comes to where a ring is") as caught:
        replay(replace(piped.listing, entries={"infer": replace(entry, events=wrong)}))
    assert caught.value.node == "first"


@pytest.mark.parametrize("is_two_way", [True, False])
def test_three_operators_run_at_once(is_two_way: bool) -> None:
    """Two of them on the matrix engine, which takes turns, and has its scratchpad for both."""
    rows, target = 96, small_npu(1)
    model = chain(rows, 16, 24, is_two_way=is_two_way)
    program = joined(model, rows, target, is_two_way)
    schedule = program.plan.schedule.entries["infer"]
    assert len(schedule.pipes) == 2 and groups(schedule.pipes) == ((0, 2),)
    of_matrix = [one for one in program.listing.entries["infer"].nests if one.nest.counts_macs]
    assert {one.lanes for one in of_matrix} == {(("matrix", 0),)}
    assert sum(one.tiling.scratch_bytes for one in of_matrix if one.tiling) < 16384
    spans = [
        (timed.start, timed.end)
        for timed in time_listing(program.listing)["infer"].events
        if isinstance(timed.event, End) and timed.event.nest in (0, 2 if is_two_way else 1)
    ]
    spans.sort()
    assert len(spans) > 4 and all(stop <= start for (_, stop), (start, _) in pairwise(spans))


def test_lanes_have_rings_of_their_own() -> None:
    """Where a lane is what the matrix engine waits for, both take boxes in turn, each from a slice of its own."""
    target = small_npu(2, elements_per_cycle=1.0)
    program = compiled(product_then_sum(ROWS, 4, 16), ROWS, depth=2, target=target)
    (pipe,) = program.plan.schedule.entries["infer"].pipes
    assert (pipe.lanes, pipe.blocks) == (2, 2)
    nests = program.listing.entries["infer"].nests
    assert [one.lanes for one in nests] == [(("matrix", 0),), (("vector", 0), ("vector", 1))]
    popped = [e for e in events_of(program) if isinstance(e, Load) and e.pipe is not None]
    assert {(e.queue.block % 3, e.ring) for e in popped} == {(1, 0), (2, 1)}
    alone = compiled(product_then_sum(ROWS, 4, 16), ROWS, target=small_npu(2, lanes=1, elements_per_cycle=1.0))
    assert time_listing(program.listing)["infer"].cycles < time_listing(alone.listing)["infer"].cycles


@pytest.mark.parametrize("lanes", [1, 2])
def test_rings_end_behind_their_last_slots(lanes: int) -> None:
    """One lane of the producer has a ring for each lane of the consumer: two slots of a kilobyte each."""
    target = sharing_l1(small_npu(2, lanes=lanes, elements_per_cycle=1.0))
    program = compiled(product_then_sum(ROWS, 4, 16), ROWS, depth=2, target=target)
    (pipe,) = program.plan.schedule.entries["infer"].pipes
    assert (pipe.lanes, pipe.near_lanes, pipe.slot_bytes) == (lanes, 1, 1024)
    nests = program.listing.entries["infer"].nests
    start = ring_offset(pipe, nests)
    assert _Replay(program.listing, "infer", Needs()).ring_spans == {0: [(start, start + lanes * 2 * 1024)]}


class Summing:
    """The first box of the product, whose sum of 24 steps is cut where no plan cuts it."""

    def __init__(self, program: Compiled) -> None:
        self.replay = _Replay(program.listing, "infer", Needs())
        self.event = next(e for e in events_of(program) if isinstance(e, Begin) and e.nest == 0)
        self.nest = program.listing.entries["infer"].nests[0].nest
        (self.result,) = self.nest.results
        place = self.event.places[self.nest.operands.index(self.result)]
        assert place is not None
        self.place = place
        (self.axis,) = [axis.name for axis in self.nest.axes if axis.kind is AxisKind.REDUCTION]

    @property
    def boxes(self) -> int:
        """That are ready."""
        return len(self.replay.ring(self.place, self.event)[1].pushed)

    def steps(self, start: int, stop: int, slots: int = 0) -> None:
        """In the box's slot, or so many behind it."""
        event = replace(self.event, ranges={**self.event.ranges, self.axis: Range(start, stop)})
        place = replace(self.place, offset=self.place.offset + 1024 * slots)
        self.replay.begin_in_ring(event, self.nest, self.result, place)
        self.replay.end_in_ring(event, self.nest, self.result, place)


def test_a_sum_goes_on_in_its_slot(piped: Compiled) -> None:
    summing = Summing(piped)
    for start in (0, 8, 16):
        assert summing.boxes == 0
        summing.steps(start, start + 8)
    assert summing.boxes == 1  # behind the last of its steps
    lost = "does not find the sum to continue in pipe 0"
    for done, wrong, text in (
        ([], (8, 16), lost),  # nothing was begun
        ([(0, 8)], (8, 16, 1), lost),  # it lies in the other slot
        ([(0, 8), (16, 20)], (8, 16), lost),  # out of order
        ([(0, 8)], (0, 8), "is made where a box of pipe 0 is not complete"),
    ):
        summing = Summing(piped)
        for steps in done:
            summing.steps(*steps)
        with pytest.raises(ListingError, match=text):
            summing.steps(*wrong)


def test_a_chip_from_outside_has_its_pipes_in_l1() -> None:
    target = files.find(str(EXAMPLE))
    program = tg.compile(product_then_sum(512, 64, 32), tg.Recipe(loss="mse", batch=512), target=target)
    pipes = program.plan.schedule.entries["infer"].pipes
    assert pipes and all(pipe.is_near for pipe in pipes)
    off = tg.compile(product_then_sum(512, 64, 32), tg.Recipe(loss="mse", batch=512), target=target, pipes="off")
    assert time_listing(program.listing)["infer"].cycles < time_listing(off.listing)["infer"].cycles


def test_one_l1_has_room_for_all_engines() -> None:
    npu = targets.get("npu")
    with pytest.raises(UserError, match="one L1 for all engines"):
        replace(npu, shares_l1=True)
    with pytest.raises(UserError, match="one L1 for all engines"):
        replace(targets.get("mppa"), shares_l1=True)


def test_other_operators_between_are_refused() -> None:
    with pytest.raises(UserError, match="there can be no pipe from 'first' to 'third'"):
        joined(chain(24, 8, 8, is_two_way=True), 24, small_npu(), is_two_way=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("is_two_way", [True, False])
def test_the_simulator_has_the_bits_of_the_host(is_two_way: bool, is_near: bool) -> None:
    rows, target = 41, small_npu(2, elements_per_cycle=1.0)
    model = chain(rows, 5, 11, is_two_way=is_two_way)
    program = joined(model, rows, sharing_l1(target) if is_near else target, is_two_way, depth=1)
    assert {pipe.is_near for pipe in program.plan.schedule.entries["infer"].pipes} == {is_near}
    values = np.random.default_rng(1).standard_normal((rows, 5)).astype(np.float32)
    on_host = tg.compile(model, tg.Recipe(loss="mse", batch=rows), target="host")
    found = []
    for device, compiled_for in (("host", on_host), ("sim:npu", program)):
        with registry.open_device(device) as opened:
            session = opened.load(compiled_for)
            found.append(np.asarray(session.infer(values)).tobytes())
            if isinstance(session, SimSession):
                assert session.timings()["infer"].cycles > 0  # the driver did what is listed
    assert found[0] == found[1]


SEEDED = {
    "a ring one slot short": (
        "(uint64_t)(count % pipe->depth)", "(uint64_t)(count % (pipe->depth - 1))",
        "pipe 0, first -> second: slot 0 is written while it is",
    ),
    "the scratchpad of another member": (
        "(ptrdiff_t)(member - t->member)", "(ptrdiff_t)(member + 1 - t->member)",
        "operand",
    ),
    "nobody says that a box is ready": (
        "    tell(t, t->piped, 1, 1);", "",
        "pipe 0, first -> second, is wedged",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", SEEDED)
def test_faults_in_the_emitted_code_stop_the_run(piped: Compiled, fault: str) -> None:
    old, new, text = SEEDED[fault]
    values = [np.ones((ROWS, 24), np.float32), np.ones((ROWS, 16), np.float32)]
    with registry.open_device("sim:npu") as opened:
        session = opened.load(patched(piped, "tg_pipe.h", old, new))
        with pytest.raises(DeviceError) as caught:
            session.infer(*values)
    assert text in (caught.value.got or ""), caught.value.got


def with_l3(target: Target) -> Target:
    """The same with a memory behind L2."""
    timing = DmaTiming(setup_cycles=500.0, cycles_per_byte=0.25)
    near = target.engine("L2", "L1")
    far = replace(near, name="far", near="L2", far="L3", inward=timing, outward=timing)
    return replace(target, memories=(*target.memories, Memory("L3", 1 << 22, 64, None)), engines=(near, far))


@pytest.mark.slow
@pytest.mark.parametrize("is_near", [True, False])
def test_what_pipes_join_may_be_at_home_in_l3(is_near: bool) -> None:
    """What any of them needs is in L2 before the first one begins, and until the last one ends."""
    rows, model = 41, chain(41, 5, 11, is_two_way=True)
    target = with_l3(sharing_l1(small_npu(2)) if is_near else small_npu(2))
    pipes = [("first", "second", 2), ("second", "third", 2)]
    program = tg.compile(model, tg.Recipe(loss="mse", batch=rows), target=target, pipes=pipes, home="L3")
    assert len(program.plan.schedule.entries["infer"].pipes) == 2
    moves = [i for i, e in enumerate(events_of(program)) if isinstance(e, Move) and e.inward]
    begun = next(i for i, e in enumerate(events_of(program)) if isinstance(e, Begin))
    assert len(moves) == 2 and moves[-1] < begun  # the weights of both products
    values = np.random.default_rng(1).standard_normal((rows, 5)).astype(np.float32)
    on_host = tg.compile(model, tg.Recipe(loss="mse", batch=rows), target="host")
    found = []
    for device, own in (("host", on_host), ("sim:npu", program)):
        with registry.open_device(device) as opened:
            found.append(np.asarray(opened.load(own).infer(values)).tobytes())
    assert found[0] == found[1]
