"""Operators larger than L2: cut into panels that come from L3 and go back, with the host's bits; faults are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.schedule.programs import KIB, compiled_for, host_state, sim_state, siracusa
from tests.support.models import model, node, value, weights
from tilegrad import frontend
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.devices.host import HostDevice
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.plan import Plan, Staging
from tilegrad.ir.schedule import EntrySchedule, Launch, NestPart
from tilegrad.pipeline import compile_model
from tilegrad.place.traffic import least_traffic_bytes
from tilegrad.recipe import SGD, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.panels import MOST_PANELS, Panels
from tilegrad.sequence.replay import ListingError
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.sequence.timing import time_listing
from tilegrad.targets.base import L3, get
from tilegrad.training.train import train

WAYS = {
    "odd_cnn": ("odd_cnn", siracusa(4 * KIB, l2_bytes=7 * KIB), ScheduleOptions()),
    "odd_cnn, single": ("odd_cnn", siracusa(4 * KIB, l2_bytes=7 * KIB), ScheduleOptions(buffering="single")),
    "attention": ("attention", siracusa(4 * KIB, l2_bytes=5 * KIB), ScheduleOptions(home="L3")),
    "mlp": ("autoencoder_tiny", siracusa(8 * KIB, l2_bytes=24 * KIB), ScheduleOptions(buffering="l2=single,l3=double")),
}


@cache
def compiled_way(way: str) -> Compiled:
    name, target, options = WAYS[way]
    return compiled_for(name, target, options)


def parts(schedule: EntrySchedule) -> list[Launch]:
    return [launch for launch in schedule.launches if launch.part is not None]


@pytest.mark.parametrize("way", WAYS)
def test_panels_have_the_bits_of_the_host(way: str) -> None:
    compiled = compiled_way(way)
    assert any(parts(entry) for entry in compiled.plan.schedule.entries.values())
    assert sim_state(compiled, 2) == host_state(WAYS[way][0], 2)


def checked(plan: Plan) -> Plan:
    return sequence_plan(plan).plan


def with_staging(plan: Plan, entry: str, staging: Sequence[Staging]) -> Plan:
    changed = replace(plan.entries[entry], staging=tuple(staging))
    return replace(plan, entries={**plan.entries, entry: changed})


def part_moves(plan: Plan) -> list[tuple[str, int, Staging]]:
    """But for those that bring bytes to where these may still be: then they could as well be left out."""

    def bytes_of(move: Staging) -> tuple[int, ...]:
        return move.l2_offset, move.l3_offset, move.size_bytes, move.rows

    return [
        (entry, i, move)
        for entry, own in plan.entries.items()
        for i, move in enumerate(own.staging)
        if move.tensor in own.parts and bytes_of(move) not in map(bytes_of, own.staging[:i])
    ]


def short(move: Staging) -> Staging:
    """One row less, or one word where there is one row."""
    if move.rows > 1:
        return replace(move, rows=move.rows - 1, size_bytes=move.size_bytes // move.rows * (move.rows - 1))
    return replace(move, size_bytes=move.size_bytes - 4)


FAULTS: dict[str, tuple[Callable[[Staging], Staging], str]] = {
    "one row short": (short, "should be|at the end|not the part|not one tensor|overwritten"),
    "from elsewhere in L3": (
        lambda move: replace(move, l3_offset=move.l3_offset + 4),
        "should be|at the end|not the part|not one tensor|beyond|still being read",
    ),
    "rows too far apart": (
        lambda move: replace(move, l3_stride=move.l3_stride + 4) if move.rows > 1 else short(move),
        "should be|at the end|not the part|not one tensor|beyond|still being read",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_part_is_found(fault: str) -> None:
    plan = compiled_way("odd_cnn").plan
    change, words = FAULTS[fault]
    moves = part_moves(plan)
    assert len(moves) > 20
    for entry, i, move in moves[:: max(1, len(moves) // 12)]:
        staging = list(plan.entries[entry].staging)
        staging[i] = change(move)
        with pytest.raises(ListingError, match=words):
            checked(with_staging(plan, entry, staging))


def test_a_write_back_that_a_fetch_overtakes_is_found() -> None:
    """The fetch of bytes that are still on their way to L3, because nobody waits for them before."""
    plan = compiled_way("odd_cnn").plan
    tried = 0
    for entry, own in plan.entries.items():
        for i, store in enumerate(own.staging):
            whole = own.parts.get(store.tensor, store.tensor)
            later = [
                load
                for load in own.staging
                if load.inward
                and own.parts.get(load.tensor, load.tensor) == whole
                and store.wait <= load.start
                and load.l3_offset < store.l3_offset + store.size_bytes
                and store.l3_offset < load.l3_offset + load.size_bytes
            ]
            if store.inward or not later or tried == 6:
                continue
            tried += 1
            staging = list(own.staging)
            staging[i] = replace(store, wait=max(load.start for load in later) + 1)
            with pytest.raises(ListingError, match=r"before it has arrived|on its way|still being read|should be"):
                checked(with_staging(plan, entry, staging))
    assert tried > 2


def test_a_tensor_that_was_evicted_is_not_read() -> None:
    """It is away and nobody brings it back: the load that would read it is named, and so is what lived there."""
    plan = compiled_way("odd_cnn").plan
    tried = 0
    for entry, own in plan.entries.items():
        evicted = {move.tensor for move in own.staging if not move.inward}
        for i, move in enumerate(own.staging):
            if not move.inward or move.tensor not in evicted or move.tensor in own.parts:
                continue
            tried += 1
            staging = [*own.staging[:i], *own.staging[i + 1 :]]
            names = [re.escape(value) for value, stays in own.stays.items() if stays == own.stays[move.tensor]]
            missing = rf"'\w+' finds .+ where '({'|'.join(names)})' should be \((load|begin) "
            wanted = rf"listing of {entry}: tg_\w+: {missing}"
            with pytest.raises(ListingError, match=wanted) as caught:
                checked(with_staging(plan, entry, staging))
            assert caught.value.node is not None
    assert tried > 2


def with_launch(plan: Plan, entry: str, number: int, launch: Launch) -> Plan:
    schedule = plan.schedule.entries[entry]
    launches = (*schedule.launches[:number], launch, *schedule.launches[number + 1 :])
    entries = {**plan.schedule.entries, entry: replace(schedule, launches=launches)}
    return replace(plan, schedule=replace(plan.schedule, entries=entries))


def test_panels_are_the_whole_operator() -> None:
    plan = compiled_way("odd_cnn").plan
    schedule = plan.schedule.entries["step"]
    number = next(i for i, one in enumerate(schedule.launches) if one.part is not None and one.nests[0].axes)
    launch = schedule.launches[number]
    assert launch.part is not None
    with pytest.raises(ListingError, match=r"is no part|not all there|another nest|not the panel's"):
        checked(with_launch(plan, "step", number, replace(launch, part=NestPart(7, launch.part.ranges))))
    axis = next(axis for axis in launch.part.ranges if launch.part.ranges[axis].size > 1)
    r = launch.part.ranges[axis]
    ranges = {**launch.part.ranges, axis: replace(r, stop=r.stop - 1)}
    with pytest.raises(ListingError, match="not the panel's"):
        checked(with_launch(plan, "step", number, replace(launch, part=NestPart(launch.part.nest, ranges))))


def dense(*sizes: int) -> frontend.ImportedModel:
    nodes, arrays, name = [], dict[str, Any](), "x"
    for i, (inner, outer) in enumerate(pairwise(sizes)):
        arrays |= {f"w{i}": weights(outer, inner, seed=i) * 0.05, f"b{i}": weights(outer, seed=99)}
        nodes.append(node("Gemm", f"{name} w{i} b{i}", f"h{i}", f"/fc{i}", transB=1))
        name = f"h{i}"
    ends = [value("x", ["batch", sizes[0]])], [value(name, ["batch", sizes[-1]])]
    return frontend.load(model(nodes, *ends, arrays))


def test_a_tensor_larger_than_l2_is_trained() -> None:
    imported = dense(60, 90, 90, 5)
    target = siracusa(8 * KIB, l2_bytes=20 * KIB)
    compiled = compile_model(imported, Recipe(optimizer=SGD(lr=0.05)), target)
    assert compiled.plan.memory["L2"].used_bytes <= 20 * KIB < 90 * 90 * 4
    host = compile_model(imported, Recipe(optimizer=SGD(lr=0.05)), get("host"))
    assert sim_state(compiled, 1).keys() == _state_on_host(host).keys()
    assert sim_state(compiled, 1) == _state_on_host(host)


def _state_on_host(compiled: Compiled) -> dict[str, bytes]:
    with HostDevice() as device:
        run = train(compiled, device, steps=1, verify=False)
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


def test_what_is_not_worth_moving_is_moved_when_it_must_be() -> None:
    """Layers that follow each other quickly: no gap is as long as a transfer takes."""
    imported = dense(64, 100, 100, 100, 100, 10)
    for room in (48, 64, 96, 160):
        compiled = compile_model(imported, Recipe(), siracusa(16 * KIB, l2_bytes=room * KIB))
        assert compiled.plan.memory["L2"].used_bytes <= room * KIB


def test_traffic_and_time_stay_near_their_bounds() -> None:
    options = ScheduleOptions(home="L3")
    compiled = compile_model(frontend.load("autoencoder_tiny"), Recipe(), siracusa(), options=options)
    step = time_listing(compiled.listing)["step"]
    hop = step.hops["L3-L2"]
    assert hop.size_bytes <= 1.5 * least_traffic_bytes(compiled.plan, "step")
    assert step.cycles <= 1.35 * max(step.compute_cycles, hop.busy_cycles)


def test_single_buffering_of_l3_hides_nothing() -> None:
    imported = dense(64, 100, 100, 100, 10)
    hidden = {}
    for way in ("single", "double"):
        options = ScheduleOptions(buffering=f"l2=double,l3={way}", home="L3")
        compiled = compile_model(imported, Recipe(), siracusa(), options=options)
        hidden[way] = time_listing(compiled.listing)["step"].hops["L3-L2"].hidden_cycles
    assert hidden["single"] < 0.05 * hidden["double"]


@pytest.mark.parametrize("text", ["l4=double", "l2", "l2=often", "l2=single,l2=double", ""])
def test_buffering_of_a_hop_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match="--buffering cannot be"):
        ScheduleOptions(buffering=text)


def test_what_l3_is_too_small_for_is_refused_with_what_would_do() -> None:
    target = siracusa().with_capacity(L3, 100 * KIB).with_capacity("L2", 100 * KIB)
    imported = dense(64, 200, 200, 10)
    with pytest.raises(DoesNotFit, match="does not fit into L3") as caught:
        compile_model(imported, Recipe(), target)
    assert caught.value.hint is not None and "smaller batch" not in caught.value.hint
    needed = int(caught.value.hint.split("an L3 of ")[1].split()[0])
    compile_model(imported, Recipe(), target.with_capacity(L3, needed + 16 * KIB))


def test_a_launch_that_writes_a_part_finds_the_rest() -> None:
    """Of a Concat that is larger than L2, one nest is cut, and what it made is in L3 when the other one is run."""
    shapes = {"w0": (8, 3, 3, 3), "w1": (3, 8, 3, 3), "w2": (4, 11 * 18 * 18)}
    arrays = {name: weights(*shape, seed=i) * 0.1 for i, (name, shape) in enumerate(shapes.items())}
    nodes = [
        node("Conv", "x w0", "a", "/conv0", pads=[1, 1, 1, 1]),
        node("Conv", "a w1", "b", "/conv1", pads=[1, 1, 1, 1]),
        node("Concat", "a b", "c", "/concat", axis=1),
        node("Relu", "c", "d", "/relu"),
        node("Flatten", "d", "e", "/flatten"),
        node("Gemm", "e w2", "y", "/fc", transB=1),
    ]
    imported = frontend.load(model(nodes, [value("x", ["batch", 3, 18, 18])], [value("y", ["batch", 4])], arrays))
    cut = 0
    for room in (20, 22, 24, 26, 30, 34):
        compiled = compile_model(imported, Recipe(), siracusa(8 * KIB, l2_bytes=room * KIB))
        own = [one for one in parts(compiled.plan.schedule.entries["step"]) if one.node.op == "Concat"]
        whole = [o for one in own for nest in one.nests for o in nest.results if o.value == "c"]
        cut += bool(whole) and len(own) > len(whole)
    assert cut


def test_panels_that_begin_elsewhere_share_a_table() -> None:
    imported = dense(60, 90, 90, 5)
    compiled = compile_model(imported, Recipe(), siracusa(8 * KIB, l2_bytes=20 * KIB))
    launches = parts(compiled.plan.schedule.entries["step"])
    kinds = {launch.nests[0].kind for launch in launches}
    assert len(launches) > 8
    assert len(kinds) < len(launches) / 2
    begins = {launch.nests[0].skipped for launch in launches if launch.nests[0].kind is launches[0].nests[0].kind}
    assert len(begins) > 1


def test_more_panels_than_one_would_like_are_made_where_fewer_do_not_fit() -> None:
    """Of the 1,100 rows of a weight, L2 has room for one or two."""
    launches = compile_model(dense(64, 1100, 2), Recipe(), siracusa()).plan.schedule.entries["infer"].launches
    target = siracusa(l2_bytes=512)
    panels = Panels(target, {}, is_double=True, costs=KernelCosts(target))
    (unit,) = panels.units(launches[0].node, launches[0].nests[:1])
    panels.check()
    found = panels.launches(unit)
    assert len(found) > MOST_PANELS[0]
    rows = [one.part.ranges for one in found if one.part is not None]
    assert len({tuple((name, r.start) for name, r in ranges.items()) for ranges in rows}) == len(found)
    assert all(panels.whole_bytes(one.nests) <= 512 for one in found)
