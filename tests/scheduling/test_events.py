"""The C driver does what `nest_events` and `plan_events` say, event by event: what is verified is what runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from tests.scheduling.programs import KIB, compiled_for, quick_sim, run_once, siracusa
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.schedule import Launch
from tilegrad.memory.lifetimes import temporaries
from tilegrad.memory.validate_levels import RunLaunch, StartMove, plan_events
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.pipeline import Compiled
from tilegrad.scheduling.clock import read_trace
from tilegrad.scheduling.events import MOST_REQUESTS, Compute, Start, nest_events, sizes_of, split_transfer
from tilegrad.scheduling.options import ScheduleOptions
from tilegrad.targets.base import Target


class Requests:
    """The lowest number that is free, as the runtime counts."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def open(self, request: int) -> int:
        number = next(i for i in range(1000) if i not in self.numbers.values())
        self.numbers[request] = number
        return number

    def close(self, request: int) -> int:
        return self.numbers.pop(request)


def place(address: Address, further: int = 0) -> str:
    return f"{address.region} {address.offset + further}"


def launch_lines(plan: Plan, entry: str, number: int, launch: Launch) -> Iterator[str]:
    graph = plan.schedule.entries[entry].graph
    types = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()} | dict(graph.types)
    target = plan.schedule.target
    longest_bytes = target.engine(target.home, target.compute).longest_bytes
    for nest, tiling in zip(launch.nests, launch.tilings, strict=True):
        element_bytes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
        values = {o.name: o.value for o in nest.operands if o.value is not None}
        if tiling is None:
            yield "k 0"
            continue
        requests = Requests()
        for event in nest_events(nest, tiling, element_bytes, longest_bytes):
            if isinstance(event, Start):
                slot = tiling.slots[event.operand]
                request = requests.open(event.request)
                yield f"o {request} {int(event.inward)}"
                base = slot.offset_bytes + event.slot * slot.slot_bytes
                home = plan.address(entry, values[event.operand], number)
                for part in event.parts:
                    far = place(home, event.far_start + part.far_offset)
                    numbers = (request, part.row_bytes, part.rows, part.far_stride, base + part.scratch_offset)
                    yield f"a {' '.join(map(str, numbers))} {far}"
            elif isinstance(event, Compute):
                spans = []
                for operand in nest.operands:
                    size = 0
                    if operand.value is not None:
                        size = prod(sizes_of(event.boxes[operand.name])) * element_bytes[operand.name]
                    at = -1
                    if size:
                        slot = tiling.slots[operand.name]
                        at = slot.offset_bytes + event.slots[operand.name] * slot.slot_bytes
                    spans.append(f"{at}:{size}")
                yield f"k {event.number} {' '.join(spans)}"
            else:
                yield f"w {requests.close(event.request)}"


def entry_lines(plan: Plan, entry: str) -> Iterator[str]:
    launches = plan.schedule.entries[entry].launches
    moves = plan.entries[entry].staging
    requests = Requests()
    for event in plan_events(plan, entry):
        if isinstance(event, StartMove):
            move = moves[event.move]
            numbers = f"{requests.open(event.move)} {int(move.inward)} {move.size_bytes}"
            yield f"s {numbers} arena {move.l2_offset} {move.l3_offset}"
        elif isinstance(event, RunLaunch):
            yield from launch_lines(plan, entry, event.launch, launches[event.launch])
        else:
            yield f"v {requests.close(event.move)}"


def traced(compiled: Compiled) -> dict[str, list[str]]:
    """The trace of a step, an update and an inference; kernel calls without the name of their function."""
    with quick_sim() as device:
        session = device.load(compiled)
        run_once(session)
        trace: Path = session.folder / session.TRACE  # type: ignore[attr-defined]
        entries = read_trace(trace)
    return {
        entry: [" ".join([words[0], *words[2:]] if words[0] == "k" else words) for words in lines]
        for entry, lines in entries.items()
    }


def odd_engine(target: Target) -> Target:
    """An engine that takes so little that rows, and even single rows, are cut."""
    engines = tuple(
        replace(engine, longest_bytes=56) if engine.near == target.compute else engine for engine in target.engines
    )
    return replace(target, engines=engines)


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("odd_cnn", siracusa(KIB), ScheduleOptions(buffering="double", home="L3")),
        ("odd_cnn", odd_engine(siracusa(2 * KIB)), ScheduleOptions(buffering="single")),
        ("attention", siracusa(2 * KIB, cores=1), ScheduleOptions(buffering="double")),
        ("attention", odd_engine(siracusa(KIB)), ScheduleOptions(buffering="auto", home="L3")),
        ("simplemlp", siracusa(), ScheduleOptions(is_tiled=False, home="L3")),
    ],
)
def test_the_driver_does_what_is_verified(name: str, target: Target, options: ScheduleOptions) -> None:
    compiled = compiled_for(name, target, options)
    found = traced(compiled)
    assert set(found) == {"step", "update", "infer"}
    for entry, lines in found.items():
        expected = list(entry_lines(compiled.plan, entry))
        if not options.is_tiled:
            lines = [line if line[0] != "k" else "k 0" for line in lines]
        launches = compiled.plan.schedule.entries[entry].launches
        assert sum(line[0] == "k" for line in lines) >= sum(len(launch.nests) for launch in launches)
        differing = [i for i, pair in enumerate(zip(lines, expected, strict=False)) if pair[0] != pair[1]]
        where = differing[0] if differing else min(len(lines), len(expected))
        assert lines == expected, f"{entry}, event {where}: {lines[where : where + 1]} {expected[where : where + 1]}"


def test_both_count_the_engines_requests() -> None:
    header = (RUNTIME_FOLDER / "cluster" / "tg_cluster.h").read_text(encoding="utf-8")
    (count,) = re.findall(r"TG_DMA_REQUESTS = (\d+)", header)
    assert int(count) == MOST_REQUESTS


@pytest.mark.parametrize("longest_bytes", [8, 12, 24, 100, 1000])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((), ()),
        ((5,), (3,)),
        ((4, 5), (4, 5)),
        ((4, 5), (2, 5)),
        ((4, 5), (2, 3)),
        ((2, 3, 4), (2, 3, 2)),
        ((2, 3, 4), (1, 2, 4)),
        ((2, 3, 4, 5), (2, 2, 3, 4)),
        ((3, 1, 7), (2, 1, 7)),
    ],
)
def test_no_part_is_longer_than_the_engine_takes(
    shape: tuple[int, ...], sizes: tuple[int, ...], longest_bytes: int
) -> None:
    parts = split_transfer(shape, sizes, 4, longest_bytes)
    assert sum(part.size_bytes for part in parts) == 4 * prod(sizes)
    assert all(0 < part.size_bytes <= longest_bytes for part in parts)
