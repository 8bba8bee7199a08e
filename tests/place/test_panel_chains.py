"""Operators whose panels take turns: less goes to L3 and back, with the same bits; a turn that is not one is found."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.place.test_panels import checked
from tests.schedule.programs import KIB, quick_sim, siracusa
from tests.support.models import model, node, value, weights
from tilegrad import frontend, pipeline
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.errors import InternalError
from tilegrad.frontend import ImportedModel
from tilegrad.ir.schedule import EntrySchedule, Launch, Rows
from tilegrad.pipeline import compile_model
from tilegrad.place import levels
from tilegrad.place.prefetch import with_transfers
from tilegrad.place.tensors import EntryHomes
from tilegrad.recipe import Recipe
from tilegrad.schedule import panel_chains
from tilegrad.sequence import fastest
from tilegrad.sequence.timing import time_listing
from tilegrad.targets.base import get
from tilegrad.training.train import train


def wide() -> ImportedModel:
    """A convolution, a Relu and a pooling on an activation of 16 KB."""
    nodes = [
        node("Conv", "x w1 b1", "c1", "/conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1", "/relu1"),
        node("MaxPool", "r1", "p1", "/pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 w2", "c2", "/conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "c2", "g", "/mean"),
        node("Flatten", "g", "f", "/flatten"),
        node("Gemm", "f w3", "y", "/fc"),
    ]
    tensors = {
        "w1": weights(16, 3, 3, 3, seed=1) * 0.3,
        "b1": weights(16, seed=2),
        "w2": weights(24, 16, 3, 3, seed=3) * 0.2,
        "w3": weights(24, 5, seed=4),
    }
    return frontend.load(model(nodes, [value("x", ["batch", 3, 16, 16])], [value("y", ["batch", 5])], tensors))


@cache
def compiled() -> Compiled:
    return compile_model(wide(), Recipe(), siracusa(8 * KIB, l2_bytes=16 * KIB))


def turns(schedule: EntrySchedule) -> dict[tuple[int, int], list[Launch]]:
    found: dict[tuple[int, int], list[Launch]] = {}
    for launch in schedule.launches:
        if launch.part is not None and launch.part.turn is not None:
            found.setdefault(launch.part.turn, []).append(launch)
    return found


def moved_bytes(one: Compiled) -> int:
    return time_listing(one.listing)["step"].hops["L3-L2"].size_bytes


@pytest.mark.slow
def test_a_chain_moves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "with_epilogues", lambda program, *given: program)
    chained = compile_model(wide(), Recipe(), siracusa(8 * KIB, l2_bytes=16 * KIB))
    first = turns(chained.plan.schedule.entries["infer"])[0, 0]
    assert [launch.node.op for launch in first][:2] == ["Conv", "Relu"]
    monkeypatch.setattr(panel_chains, "MOST_LINKS", 0)
    monkeypatch.setattr(panel_chains._Chains, "_best", lambda self, waiting: ())
    alone = compile_model(wide(), Recipe(), siracusa(8 * KIB, l2_bytes=16 * KIB))
    assert not turns(alone.plan.schedule.entries["step"])
    assert moved_bytes(chained) < 0.8 * moved_bytes(alone)


@pytest.mark.slow
def test_a_chain_has_the_bits_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first plan that fits is taken, as for thousands of launches."""
    monkeypatch.setattr(pipeline, "with_epilogues", lambda program, *given: program)  # which plans parts of it
    host = compile_model(wide(), Recipe(), get("host"))
    chosen, planned = compiled(), list[str]()

    def counted(*given: Any) -> tuple[EntryHomes, float]:
        planned.append("one")
        return with_transfers(*given)

    monkeypatch.setattr(levels, "MANY_LAUNCHES", 0)
    monkeypatch.setattr(fastest, "MANY_LAUNCHES", 0)
    monkeypatch.setattr(levels, "with_transfers", counted)
    first = compile_model(wide(), Recipe(), siracusa(8 * KIB, l2_bytes=16 * KIB))
    assert len(planned) == len(first.plan.entries)
    with quick_sim() as sim, HostDevice() as device:
        runs = [train(one, sim, steps=2, verify=False) for one in (chosen, first)]
        wanted = train(host, device, steps=2, verify=False)
    assert all((run.losses, run.weights_sha256) == (wanted.losses, wanted.weights_sha256) for run in runs)


@pytest.mark.slow
def test_a_reader_that_has_its_turn_first_is_found() -> None:
    plan = compiled().plan
    schedule = plan.schedule.entries["step"]
    launches = list(schedule.launches)
    number = next(
        i
        for i, (one, other) in enumerate(pairwise(launches))
        if one.part and other.part and one.part.turn and one.part.turn == other.part.turn
    )
    launches[number : number + 2] = launches[number + 1], launches[number]
    changed = replace(schedule, launches=tuple(launches))
    entries = {**plan.schedule.entries, "step": changed}
    with pytest.raises(InternalError, match=r"is not in L2 when launch|should be"):
        checked(replace(plan, schedule=replace(plan.schedule, entries=entries)))


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (Rows(0, 16, ()), Rows(16, 16, ()), False),
        (Rows(0, 20, ()), Rows(16, 16, ()), True),
        (Rows(0, 8, ((4, 32),)), Rows(8, 8, ((4, 32),)), False),
        (Rows(0, 12, ((4, 32),)), Rows(8, 8, ((4, 32),)), True),
        (Rows(24, 8, ((4, 32),)), Rows(32, 8, ((4, 32),)), False),
        (Rows(24, 16, ((4, 32),)), Rows(32, 8, ((4, 32),)), True),
        (Rows(0, 8, ((4, 32),)), Rows(8, 8, ((4, 24),)), True),
        (Rows(0, 8, ((4, 32), (2, 256))), Rows(16, 8, ((4, 32), (2, 256))), False),
    ],
)
def test_rows_that_meet(one: Rows, other: Rows, meets: bool) -> None:
    assert one.meets(other) is meets and other.meets(one) is meets
