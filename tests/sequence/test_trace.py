"""The C driver does what was listed, event by event: what is proved and timed is what runs."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from tests.schedule.programs import KIB, compiled_for, quick_sim, run_once, siracusa
from tilegrad.analysis.footprint import transfer_levels
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Begin, Listing, Wait
from tilegrad.ir.nest import Access, Axis, Nest, Operand, along
from tilegrad.ir.schedule import Loop
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.nest_events import split_transfer
from tilegrad.sequence.replay import MOST_TRANSFERS
from tilegrad.sequence.trace import check_trace, read_trace
from tilegrad.targets import base as targets
from tilegrad.targets.base import TARGETS_FOLDER, Target


def odd_engine(target: Target) -> Target:
    """An engine that takes so little that rows, and even single rows, are cut."""
    engines = tuple(
        replace(engine, longest_bytes=56) if engine.near == target.compute else engine for engine in target.engines
    )
    return replace(target, engines=engines)


def changed(listing: Listing, entry: str, position: int) -> Listing:
    """Without one event."""
    own = listing.entries[entry]
    fewer = replace(own, events=own.events[:position] + own.events[position + 1 :])
    return replace(listing, entries={**listing.entries, entry: fewer})


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
def test_the_driver_does_what_is_listed(name: str, target: Target, options: ScheduleOptions) -> None:
    compiled = compiled_for(name, target, options)
    with quick_sim() as device:
        session = device.load(compiled)
        run_once(session)
        trace: Path = session.folder / session.TRACE  # type: ignore[attr-defined]
        entries = read_trace(trace)
        assert set(entries) == {"step", "update", "infer"}
        check_trace(compiled.listing, read_trace(trace))
        for entry, lines in entries.items():
            own = compiled.listing.entries[entry]
            begun = sum(isinstance(event, Begin) for event in own.events)
            assert sum(line[0] == "k" for line in lines) == begun >= len(own.nests)
            waits = [i for i, event in enumerate(own.events) if isinstance(event, Wait)]
            for position in (waits[0], waits[-1]) if waits else ():
                with pytest.raises(InternalError, match=f"{entry} did something else than was listed"):
                    check_trace(changed(compiled.listing, entry, position), read_trace(trace))


def test_both_count_the_engines_requests() -> None:
    header = (RUNTIME_FOLDER / "cluster" / "tg_cluster.h").read_text(encoding="utf-8")
    (count,) = re.findall(r"TG_DMA_REQUESTS = (\d+)", header)
    assert int(count) == MOST_TRANSFERS


def test_the_queue_to_l3_is_the_drivers() -> None:
    """What its channels move, and what it keeps until they have moved that."""
    folder = TARGETS_FOLDER / "siracusa" / "chip"
    (waiting,) = re.findall(r"HYPER_WAITING = (\d+)", (folder / "tg_chip.c").read_text(encoding="utf-8"))
    (channels,) = re.findall(r"#define HYPER_CHANNELS (\d+)", (folder / "siracusa.h").read_text(encoding="utf-8"))
    engine = targets.get("siracusa").far_engine
    assert engine is not None and engine.queue_depth == int(waiting) + int(channels)


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
    levels = transfer_levels(operand, Nest("copy", axes, (operand,)), loops)
    parts = split_transfer(levels, sizes, longest_bytes, 4 * prod(sizes) > longest_bytes)
    assert sum(part.size_bytes for part in parts) == 4 * prod(sizes)
    assert all(0 < part.size_bytes <= longest_bytes for part in parts)
