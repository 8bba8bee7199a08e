"""The C driver does what `entry_events` says, event by event: what is verified is what runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from tests.schedule.programs import KIB, compiled_for, quick_sim, run_once, siracusa
from tilegrad.analysis.footprint import transfer_levels
from tilegrad.analysis.lifetimes import temporaries
from tilegrad.analysis.tables import CALL_WORDS
from tilegrad.ir.nest import Access, Axis, Nest, Operand, along
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.schedule import Loop
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.pipeline import Compiled
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.clock import read_trace
from tilegrad.sequence.events import MOST_REQUESTS, Compute, Event, Start, Wait, pieces, sizes_of, split_transfer
from tilegrad.sequence.plan_events import StartMove, WaitMove, plan_events
from tilegrad.sequence.scratch_events import Enter, Fetch, Fetched, OfNest, entry_events
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


def place_text(address: Address, further: int = 0) -> str:
    return f"{address.region} {address.offset + further}"


class Lines:
    """An entry's events as the simulator's trace has them."""

    def __init__(self, plan: Plan, entry: str) -> None:
        self.plan = plan
        self.entry = entry
        self.places = plan.entries[entry].places
        schedule = plan.schedule.entries[entry]
        types = {name: tensor_type for name, (_, tensor_type) in temporaries(schedule.graph).items()}
        self.types = types | dict(schedule.graph.types)
        self.launches = schedule.launches
        self.requests, self.moves = Requests(), Requests()
        target = plan.schedule.target
        self.longest_bytes = target.engine(target.home, target.compute).longest_bytes

    def of_nest(self, number: int, event: Event) -> Iterator[str]:
        place = self.places[number]
        launch = self.launches[place.launch]
        nest, tiling = launch.nests[place.nest], launch.tilings[place.nest]
        assert tiling is not None
        values = {o.name: o.value for o in nest.operands if o.value is not None}
        if isinstance(event, Wait):
            yield f"w {self.requests.close(event.request)}"
        elif isinstance(event, Start):
            if event.request not in self.requests.numbers:
                yield f"o {self.requests.open(event.request)} {int(event.inward)}"
            slot = tiling.slots[event.operand]
            base = place.slots_offset + slot.offset_bytes + event.slot * slot.slot_bytes
            home = self.plan.address(self.entry, values[event.operand], place.launch)
            for part in event.parts:
                far = place_text(home, event.far_start + part.far_offset)
                numbers = (part.row_bytes, part.rows, part.far_stride, base + part.scratch_offset)
                yield f"a {self.requests.numbers[event.request]} {' '.join(map(str, numbers))} {far}"
        elif isinstance(event, Compute):
            yield "j"
        else:
            spans, kernel = [], event.kernel
            for operand in nest.operands:
                size = 0
                if operand.value is not None:
                    size = prod(sizes_of(kernel.boxes[operand.name])) * self.types[operand.value].dtype.size_bytes
                at = -1
                if size:
                    slot = tiling.slots[operand.name]
                    at = place.slots_offset + slot.offset_bytes + kernel.slots[operand.name] * slot.slot_bytes
                    at = place.taken.get(operand.name, at)
                spans.append(f"{at}:{size}")
            yield f"k {kernel.number} {' '.join(spans)}"

    def lines(self) -> Iterator[str]:
        for event in entry_events(self.plan, self.entry):
            if isinstance(event, OfNest):
                yield from self.of_nest(event.nest, event.event)
            elif isinstance(event, Fetch):
                place = self.places[event.nest]
                yield f"o {self.requests.open(event.request)} 1"
                nest = self.launches[place.launch].nests[place.nest]
                call_bytes = 4 * (CALL_WORDS + len(nest.operands))
                for size, at in ((call_bytes, 0), (4 * len(place.table), call_bytes)):
                    for part in pieces(place.table_offset + at, 0, size, 1, 0, self.longest_bytes):
                        number = self.requests.numbers[event.request]
                        yield f"a {number} {part.row_bytes} 1 0 {part.scratch_offset} words"
            elif isinstance(event, Fetched):
                yield f"w {self.requests.close(event.request)}"
            elif isinstance(event, Enter):
                yield "n"
            elif isinstance(event, StartMove):
                move = self.plan.entries[self.entry].staging[event.move]
                numbers = f"{self.moves.open(event.move)} {int(move.inward)} {move.size_bytes}"
                yield f"s {numbers} arena {move.l2_offset} {move.l3_offset}"
            elif isinstance(event, WaitMove):
                yield f"v {self.moves.close(event.move)}"


def whole_lines(plan: Plan, entry: str) -> Iterator[str]:
    """Of an entry that computes where its operands live."""
    moves = Requests()
    for event in plan_events(plan, entry):
        if isinstance(event, StartMove):
            move = plan.entries[entry].staging[event.move]
            numbers = f"{moves.open(event.move)} {int(move.inward)} {move.size_bytes}"
            yield f"s {numbers} arena {move.l2_offset} {move.l3_offset}"
        elif isinstance(event, WaitMove):
            yield f"v {moves.close(event.move)}"
        else:
            for _ in plan.schedule.entries[entry].launches[event.launch].nests:
                yield from ("n", "k 0", "j")


def trace_line(words: Sequence[str]) -> str:
    """Without the names of functions, and without where in the constants a table is."""
    if words[0] == "n":
        return "n"
    if words[0] == "k":
        return " ".join([words[0], *words[2:]])
    return " ".join(words[:-1] if "words" in words else words)


def traced(compiled: Compiled) -> dict[str, list[str]]:
    """The trace of a step, an update and an inference; kernel calls without the name of their function."""
    with quick_sim() as device:
        session = device.load(compiled)
        run_once(session)
        trace: Path = session.folder / session.TRACE  # type: ignore[attr-defined]
        entries = read_trace(trace)
    return {entry: [trace_line(words) for words in lines] for entry, lines in entries.items()}


def odd_engine(target: Target) -> Target:
    """An engine that takes so little that rows, and even single rows, are cut."""
    engines = tuple(
        replace(engine, longest_bytes=56) if engine.near == target.compute else engine for engine in target.engines
    )
    return replace(target, engines=engines)


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("odd_cnn", siracusa(2 * KIB), ScheduleOptions(buffering="double", home="L3")),
        ("odd_cnn", odd_engine(siracusa(2 * KIB)), ScheduleOptions(buffering="single")),
        ("attention", siracusa(2 * KIB, cores=1), ScheduleOptions(buffering="double")),
        ("attention", odd_engine(siracusa(2 * KIB)), ScheduleOptions(buffering="auto", home="L3")),
        ("simplemlp", siracusa(), ScheduleOptions(is_tiled=False, home="L3")),
    ],
)
def test_the_driver_does_what_is_verified(name: str, target: Target, options: ScheduleOptions) -> None:
    compiled = compiled_for(name, target, options)
    found = traced(compiled)
    assert set(found) == {"step", "update", "infer"}
    for entry, lines in found.items():
        plan = compiled.plan
        expected = list(Lines(plan, entry).lines() if options.is_tiled else whole_lines(plan, entry))
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
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
    operand = Operand("x", "x", Access.READ, shape, tuple(along(axis.name) for axis in axes))
    loops = [Loop(axis.name, axis.extent, size) for axis, size in zip(axes, sizes, strict=True) if size < axis.extent]
    levels = transfer_levels(operand, Nest("copy", axes, (operand,)), loops, 4)
    parts = split_transfer(levels, sizes, longest_bytes, 4 * prod(sizes) > longest_bytes)
    assert sum(part.size_bytes for part in parts) == 4 * prod(sizes)
    assert all(0 < part.size_bytes <= longest_bytes for part in parts)
