"""Pipes between engines of a block: the listing is proved, faults are caught with the operator's name, bits stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.listing import Await, Event, Load, Signal, Store
from tilegrad.ir.pipes import DEPTHS, slot_offset
from tilegrad.sequence.replay import ListingError, replay
from tilegrad.sequence.timing import time_listing
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

PAIR = ("first", "second")


def small_npu(blocks: int = 3, lanes: int = 2, elements_per_cycle: float = 64.0) -> Target:
    """With so little scratchpad that there are many boxes."""
    npu = targets.get("npu")
    matrix, vector = npu.compute_engines
    matrix = replace(matrix, scratch_bytes=16384)
    vector = replace(vector, scratch_bytes=3072, lanes=lanes, elements_per_cycle=elements_per_cycle)
    return replace(npu, clusters=blocks, compute_engines=(matrix, vector))


def sharing_l1(target: Target) -> Target:
    """The same with one L1 for all engines of a block."""
    size_bytes = sum(engine.lanes * engine.scratch_bytes for engine in target.compute_engines)
    l1 = replace(target.memory("L1"), capacity_bytes=size_bytes)
    return replace(target, shares_l1=True, memories=(l1, *target.memories[1:]))


def product_then_sum(rows: int, inner: int, width: int, is_backwards: bool = False) -> onnx.ModelProto:
    """A matrix product and a residual; backwards, an activation and the product that reads it."""
    generator = np.random.default_rng(rows * 7 + inner)
    weights = generator.standard_normal((inner, width)).astype(np.float32)
    if is_backwards:
        nodes = [
            helper.make_node("Sigmoid", ["x"], ["p"], "first"),
            helper.make_node("MatMul", ["p", "w"], ["y"], "second"),
        ]
    else:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["p"], "first"),
            helper.make_node("Add", ["p", "r"], ["y"], "second"),
        ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])]
    if not is_backwards:
        inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [rows, width]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, width])
    graph = helper.make_graph(nodes, "block", inputs, [output], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def compiled(
    model: onnx.ModelProto, rows: int, depth: int | None = 2, blocks: int | str = "auto", target: Target | None = None
) -> Compiled:
    pipes = "off" if depth is None else [(*PAIR, depth)]
    recipe = tg.Recipe(loss="mse", batch=rows)
    return tg.compile(model, recipe, target=target or small_npu(), pipes=pipes, blocks=blocks)


@pytest.fixture(scope="module")
def piped() -> Compiled:
    return compiled(product_then_sum(181, 24, 16), 181, depth=2)


def changed(program: Compiled, change: Callable[[Event], Event | None]) -> None:
    entry = program.listing.entries["infer"]
    events = tuple(one for one in map(change, entry.events) if one is not None)
    replay(replace(program.listing, entries={"infer": replace(entry, events=events)}))


def test_a_pipe_has_a_ring_in_every_block(piped: Compiled) -> None:
    pipe = piped.plan.schedule.entries["infer"].pipes[0]
    assert (pipe.value, pipe.depth, pipe.blocks) == ("p", 2, 3)
    pushed = [e for e in piped.listing.entries["infer"].events if isinstance(e, Store) and e.pipe is not None]
    popped = [e for e in piped.listing.entries["infer"].events if isinstance(e, Load) and e.pipe is not None]
    assert [(e.far, e.count, e.parts) for e in pushed] == [(e.far, e.count, e.parts) for e in popped]
    assert len({e.parts[0].size_bytes for e in pushed}) > 1  # the last one is shorter


FAULTS: dict[str, tuple[Callable[[Event], Event | None], str]] = {
    "a slot is written before it is free": (
        lambda e: replace(e, count=0) if isinstance(e, Await) and not e.ready else e,
        "may not have been read",
    ),
    "a box is read before it is ready": (
        lambda e: replace(e, count=e.count - 1) if isinstance(e, Await) and e.ready else e,
        "before it is ready",
    ),
    "every block has the same slice": (
        lambda e: replace(e, far=e.far % 4096) if isinstance(e, Store | Load) and e.pipe is not None else e,
        "pipe|workspace|block",
    ),
    "nobody says that a box is ready": (
        lambda e: None if isinstance(e, Signal) and e.ready else e,
        "is wedged",
    ),
    "nobody says that a slot is free": (
        lambda e: None if isinstance(e, Signal) and not e.ready else e,
        "is wedged",
    ),
    "a box is told ready too early": (
        lambda e: replace(e, count=e.count + 1) if isinstance(e, Signal) and e.ready else e,
        "is told",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_with_its_operator(piped: Compiled, fault: str) -> None:
    change, words = FAULTS[fault]
    with pytest.raises(ListingError, match=words) as caught:
        changed(piped, change)
    assert caught.value.node in PAIR


def test_a_ring_one_slot_short_is_caught(piped: Compiled) -> None:
    """Boxes go to where a ring of one slot less would have them."""
    pipe = piped.plan.schedule.entries["infer"].pipes[0]
    short = replace(pipe, depth=1)

    def change(event: Event) -> Event:
        if not isinstance(event, Store | Load) or event.pipe is None:
            return event
        block = event.queue.block // 2
        return replace(
            event, far=event.far - slot_offset(pipe, block, 0, event.count) + slot_offset(short, block, 0, event.count)
        )

    with pytest.raises(ListingError, match=r"may not have been read|use|write") as caught:
        changed(piped, change)
    assert caught.value.node in PAIR


@pytest.mark.parametrize("pair", [("first", "nobody"), ("second", "first")])
def test_what_cannot_be_joined_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UserError):
        tg.compile(product_then_sum(8, 8, 8), tg.Recipe(loss="mse", batch=8), target=small_npu(), pipes=[pair])


@pytest.mark.parametrize("asked", ["on", [("first",)], [("first", "second", 3)]])
def test_pipes_are_asked_for_by_name(asked: object) -> None:
    with pytest.raises(UserError, match="pipe"):
        tg.compile(product_then_sum(8, 8, 8), tg.Recipe(batch=8), target=small_npu(), pipes=asked)  # type: ignore[arg-type]


def test_pipes_need_engines() -> None:
    with pytest.raises(UserError, match="--pipes does not apply to target 'siracusa'"):
        tg.compile(product_then_sum(8, 8, 8), tg.Recipe(batch=8), target="siracusa", pipes="off")


def programs(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Sizes, depth, direction and number of blocks."""
    drawn = given(
        st.integers(2, 90),
        st.integers(1, 40),
        st.integers(1, 40),
        st.sampled_from(DEPTHS),
        st.booleans(),
        st.integers(1, 5),
    )
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    limits = settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=checks)
    return lambda test: limits(drawn(test))


def prove(rows: int, inner: int, width: int, depth: int, is_backwards: bool, blocks: int) -> None:
    """Compiling replays the listing: every box comes out as it went in, and nobody waits for ever."""
    try:
        program = compiled(product_then_sum(rows, inner, width, is_backwards), rows, depth, blocks)
    except UserError as error:
        assert "no pipe" in str(error)  # sizes that cannot be cut alike
        return
    assert program.plan.schedule.entries["infer"].pipes[0].depth == depth
    assert time_listing(program.listing)["infer"].cycles > 0


@pytest.mark.slow
@pytest.mark.parametrize(("inner", "is_bound"), [(64, True), (128, False), (160, False)])
def test_over_all_blocks_a_pipe_gains_where_memory_leaves_room(inner: int, is_bound: bool) -> None:
    """All 24 blocks, rings in global memory. With few steps of the sum that is busy all the time, whatever is done."""
    model, recipe = product_then_sum(8192, inner, 128), tg.Recipe(loss="mse", batch=8192)
    ways = [tg.compile(model, recipe, target="npu", pipes=pipes) for pipes in ("off", "auto")]
    in_turn, piped = (time_listing(program.listing)["infer"] for program in ways)
    assert ways[1].plan.schedule.entries["infer"].pipes and piped.roofline is not None
    moves = piped.roofline.memory_cycles / piped.cycles
    assert moves > 0.9 if is_bound else in_turn.cycles > 1.3 * piped.cycles


@programs(6)
def test_random_programs_end(rows: int, inner: int, width: int, depth: int, is_backwards: bool, blocks: int) -> None:
    prove(rows, inner, width, depth, is_backwards, blocks)


@pytest.mark.matrix
@programs(1000)
def test_a_thousand_random_programs_end(
    rows: int, inner: int, width: int, depth: int, is_backwards: bool, blocks: int
) -> None:
    prove(rows, inner, width, depth, is_backwards, blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "depth", [1, pytest.param(2, marks=pytest.mark.matrix), pytest.param(8, marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize("is_backwards", [False, True])
def test_the_simulator_has_the_bits_of_the_host(depth: int, is_backwards: bool) -> None:
    model, rows = product_then_sum(37, 12, 8, is_backwards), 37
    generator = np.random.default_rng(1)
    values = [generator.standard_normal((rows, 12)).astype(np.float32)]
    if not is_backwards:
        values.append(generator.standard_normal((rows, 8)).astype(np.float32))
    found = []
    for device, target in (("host", targets.get("host")), ("sim:npu", small_npu())):
        recipe = tg.Recipe(loss="mse", batch=rows)
        pipes = "auto" if device == "host" else [(*PAIR, depth)]
        with registry.open_device(device) as opened:
            session = opened.load(tg.compile(model, recipe, target=target, pipes=pipes))
            found.append(np.asarray(session.infer(*values)).tobytes())
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_wedged_pipe_ends_the_run_and_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is not told to be free."""
    monkeypatch.setenv("TG_SIM_DROP_TELL", "2")
    rows = 91
    program = compiled(product_then_sum(rows, 12, 16), rows, depth=1, blocks=1)
    values = [np.ones((rows, 12), np.float32), np.ones((rows, 16), np.float32)]
    with registry.open_device("sim:npu") as opened:
        session = opened.load(program)
        with pytest.raises(DeviceError) as caught:
            session.infer(*values)
    text = str(caught.value)
    assert "pipe 0, first -> second, is wedged" in text
    assert "are ready" in text and "free; slots: " in text
