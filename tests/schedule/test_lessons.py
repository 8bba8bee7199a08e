"""What went wrong in comparable schedulers (see LESSONS.md), as tests of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.schedule.programs import KIB, compiled_for, quick_sim, run_once, siracusa
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import KernelCosts, Span
from tilegrad.ir.nest import Access, AxisKind
from tilegrad.ir.schedule import Launch, Schedule, Tiling
from tilegrad.schedule import schedule as schedule_module
from tilegrad.schedule import tiling as tiling_module
from tilegrad.schedule.candidates import columns_of
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import Searched
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.sequence.timing import time_listing


def tilings_of(schedule: Schedule) -> list[tuple[Launch, int, Tiling]]:
    return [
        (launch, k, tiling)
        for entry in schedule.entries.values()
        for launch in entry.launches
        for k, tiling in enumerate(launch.tilings)
        if tiling is not None
    ]


def estimated_cycles(schedule: Schedule) -> float:
    return sum(tiling.estimate.cycles for _, _, tiling in tilings_of(schedule))


def slow_down(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    real = KernelCosts.span

    def slower(self: KernelCosts, nest: Any, *call: Any) -> Span:
        span = real(self, nest, *call)
        return replace(span, cycles=100 * span.cycles) if nest.kernel == kernel else span  # the conductor hides less

    monkeypatch.setattr(KernelCosts, "span", slower)
    monkeypatch.setattr(schedule_module, "searched", lambda target, buffering: Searched(target))


def test_every_operators_cost_counts() -> None:
    """The solver was given the first pattern's objective only. Here a slower kernel, any one, is a dearer plan."""
    name, target, options = "simplemlp", siracusa(2 * KIB), ScheduleOptions()
    base = compiled_for(name, target, options)
    kernels = {launch.nests[k].kernel for launch, k, _ in tilings_of(base.plan.schedule)}
    assert len(kernels) > 2
    before = estimated_cycles(base.plan.schedule)
    for kernel in sorted(kernels):
        with pytest.MonkeyPatch.context() as patch:
            slow_down(patch, kernel)
            assert estimated_cycles(compiled_for(name, target, options).plan.schedule) > before, kernel


def test_what_was_searched_before_changes_nothing() -> None:
    """Tilings are remembered from program to program of one process: the C is that of a process that remembers none."""
    known = schedule_module.searched
    known.cache_clear()
    first = compiled_for("simplemlp", siracusa(2 * KIB), ScheduleOptions(fuses_update=False))
    assert len(known(first.target, "auto").choices) > 5
    fused = compiled_for("simplemlp", siracusa(2 * KIB), ScheduleOptions(fuses_update=True))
    known.cache_clear()
    alone = compiled_for("simplemlp", siracusa(2 * KIB), ScheduleOptions(fuses_update=True))
    assert fused.project.files == alone.project.files != first.project.files


def test_every_operators_cost_is_in_the_reported_cycles() -> None:
    """The same for what is reported of a run."""
    compiled = compiled_for("attention", siracusa(2 * KIB), ScheduleOptions(buffering="double"))
    before = time_listing(compiled.listing)
    assert set(before) == {"step", "update", "infer"}
    for entry, timing in before.items():
        kernels = {nest.kernel for nest in timing.nests}
        assert timing.tile_count == sum(nest.tile_count for nest in timing.nests)
        for kernel in sorted(kernels):
            with pytest.MonkeyPatch.context() as patch:
                slow_down(patch, kernel)
                assert time_listing(compiled.listing)[entry].cycles > timing.cycles, kernel


def test_a_run_shows_the_cycles_of_the_listing() -> None:
    compiled = compiled_for("attention", siracusa(2 * KIB), ScheduleOptions(buffering="double"))
    with quick_sim() as device:
        session = device.load(compiled)
        run_once(session)
        assert session.timings() == time_listing(compiled.listing)


def is_cut(tiling: Tiling) -> bool:
    return tiling.tile_count > 1


def test_double_buffering_is_refused_for_nothing() -> None:
    """In-place updates, accumulation, several results, scalar results, several consumers: all double buffered."""
    compiled = compiled_for("odd_cnn", siracusa(2 * KIB), ScheduleOptions(buffering="double"))
    doubled = {
        (launch.node.op, launch.nests[k].kernel)
        for launch, k, tiling in tilings_of(compiled.plan.schedule)
        if tiling.is_double and is_cut(tiling)
    }
    operators = {operator for operator, _ in doubled}
    assert {"Adam", "InPlaceAccumulatorV2", "Conv", "ConvGrad", "MaxPool", "MaxPoolGrad", "Add"} <= operators
    assert any(
        tiling.is_double and sum(o.access is Access.WRITE and o.value is not None for o in launch.nests[k].operands) > 1
        for launch, k, tiling in tilings_of(compiled.plan.schedule)
    )
    for launch, k, tiling in tilings_of(compiled.plan.schedule):
        moving = {
            operand.name
            for operand in launch.nests[k].operands
            if any(index.coefficient(loop.axis) for index in operand.index or () for loop in tiling.loops)
        }
        if tiling.is_double:
            assert all((slot.count == 2) is (name in moving) for name, slot in tiling.slots.items())
        else:
            assert all(slot.count == 1 for slot in tiling.slots.values())


def test_auto_never_doubles_a_single_tile() -> None:
    for name in ("odd_cnn", "attention", "simplemlp"):
        for l1_bytes in (2 * KIB, 128 * KIB):
            schedule = compiled_for(name, siracusa(l1_bytes), ScheduleOptions(buffering="auto")).plan.schedule
            assert all(is_cut(tiling) for _, _, tiling in tilings_of(schedule) if tiling.is_double)


def test_auto_chooses_among_all_that_double_and_single_do() -> None:
    """So that it is no slower than either. tests/devices/test_sim.py compares the cycles of runs."""
    for name in ("odd_cnn", "attention"):
        target = siracusa(2 * KIB)
        schedule = compiled_for(name, target, ScheduleOptions()).plan.schedule
        for launch, k, _ in tilings_of(schedule):
            nest = launch.nests[k]
            choices = {}
            for mode in ("auto", "single", "double"):
                search = TilingSearch(TilingOptions(target, mode, KernelCosts(target)), launch.node.op, nest)
                choices[mode] = [(one.loops, one.is_double) for one, _ in search.choices(launch.node.name)]
            assert set(choices["double"]) <= set(choices["auto"]) and choices["single"][0] in choices["auto"]


def test_reductions_over_tiles_are_innermost() -> None:
    """A scalar written once per tile is the last tile's. A reduction continues, and leaves when it is complete."""
    cut = 0
    for name in ("odd_cnn", "attention"):
        for launch, k, tiling in tilings_of(compiled_for(name, siracusa(2 * KIB)).plan.schedule):
            kinds = [launch.nests[k].axis(loop.axis).kind for loop in tiling.loops]
            assert kinds == sorted(kinds, key=lambda kind: kind is AxisKind.REDUCTION)
            cut += AxisKind.REDUCTION in kinds
    assert cut


@pytest.mark.parametrize("buffering", ["auto", "single", "double"])
def test_tiled_programs_never_compute_from_l2(buffering: str) -> None:
    """But for an update that `auto` leaves there: an entry is in tiles, or nothing of it is."""
    for name in ("odd_cnn", "attention"):
        schedule = compiled_for(name, siracusa(2 * KIB), ScheduleOptions(buffering=buffering)).plan.schedule
        for entry in schedule.entries.values():
            in_tiles = [tiling is not None for launch in entry.launches for tiling in launch.tilings]
            assert all(in_tiles) or (buffering == "auto" and entry is schedule.entries["update"] and not any(in_tiles))
            assert all(len(launch.tilings) == len(launch.nests) for launch in entry.launches)


def _c_of(compiled: Compiled) -> Mapping[str, bytes]:
    return compiled.project.files


def test_the_same_input_gives_the_same_c() -> None:
    for options in (ScheduleOptions(buffering="double", home="L3"), ScheduleOptions(is_tiled=False)):
        first, second = (compiled_for("attention", siracusa(2 * KIB), options) for _ in range(2))
        assert _c_of(first) == _c_of(second)


def test_generated_code_is_silent() -> None:
    """No debug print in what runs on the chip; only the simulator speaks, and only of hazards."""
    files = _c_of(compiled_for("attention", siracusa(2 * KIB)))
    for name, content in files.items():
        if name.endswith((".c", ".h")) and name not in ("tg_sim.c", "main.c"):
            assert b"printf" not in content, name


def search_work(name: str, l1_bytes: int) -> tuple[int, int]:
    """Tile sizes that a schedule's search looks at, and those that it keeps because they fit."""
    seen = kept = 0
    real = tiling_module.best_rows

    def counted(*arguments: Any) -> Any:
        nonlocal seen, kept
        found = real(*arguments)
        seen += columns_of(*arguments[:4]).length
        kept += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling_module, "best_rows", counted)
        patch.setattr(schedule_module, "searched", lambda target, buffering: Searched(target))
        compiled_for(name, siracusa(l1_bytes))
    return seen, kept


@pytest.mark.parametrize("name", ["odd_cnn", pytest.param("mobilenetv1", marks=pytest.mark.matrix)])
def test_the_search_does_not_grow_with_the_scratchpad(name: str) -> None:
    """A solver took 7 GB where the scratchpad was large. Of the zoo, mobilenetv1 has the most to search."""
    large, usual = search_work(name, 4096 * KIB), search_work(name, 128 * KIB)
    assert all(0 < more <= 1.1 * less for more, less in zip(large, usual, strict=True))


PLAN = """
import re, sys
from pathlib import Path
from tests.schedule.programs import compiled_for, siracusa
compiled_for(sys.argv[1], siracusa(int(sys.argv[2])))
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("l1_kib", [8, pytest.param(4096, marks=pytest.mark.matrix)])
def test_planning_takes_little_memory_for_any_scratchpad(l1_kib: int) -> None:
    """At most 700 MB, the interpreter included, for the largest program: gradients in memory, no update fused."""
    command = [sys.executable, "-c", PLAN, "mobilenetv1", str(l1_kib * KIB)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(done.stdout) <= 700 * 1024
