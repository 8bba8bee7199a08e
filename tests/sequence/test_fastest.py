"""Whole programs are compared where nests alone cannot tell what is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedule.programs import KIB, compiled_for, host_state, sim_state, siracusa
from tilegrad.compiled import Compiled
from tilegrad.errors import DoesNotFit
from tilegrad.frontend import load
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.pipeline import compile_model
from tilegrad.place.plan import plan_memory
from tilegrad.recipe import Adam, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence import fastest
from tilegrad.targets.base import Target


def training_cycles(compiled: Compiled) -> float:
    return compiled.program.recipe.accumulate * compiled.timing["step"].cycles + compiled.timing["update"].cycles


def has_panels(schedule: Schedule) -> bool:
    return any(entry.panels for entry in schedule.entries.values())


def adam(options: ScheduleOptions, l2_bytes: int | None = None) -> Compiled:
    """The largest layer takes two thirds of L2, with its moments."""
    return compile_model(load("mlp"), Recipe(optimizer=Adam()), siracusa(l2_bytes=l2_bytes), options=options)


def test_what_fits_into_l2_whole_is_there_whole_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = adam(ScheduleOptions(buffering="double"))
    cut = schedule_program(compiled.program, compiled.target, compiled.options)
    assert has_panels(cut) and not has_panels(compiled.plan.schedule)
    monkeypatch.setattr(fastest, "MOST_WHOLE_SHARE", fastest.WHOLE_SHARE)
    assert training_cycles(compiled) < 0.9 * training_cycles(adam(compiled.options))


def test_what_does_not_fit_into_l2_is_still_cut() -> None:
    assert has_panels(adam(ScheduleOptions(), 1024 * KIB).plan.schedule)


def test_an_update_that_divides_stays_in_l2() -> None:
    """Cores wait for their divider, wherever operands are."""
    recipe, target = Recipe(optimizer=Adam(), accumulate=2), siracusa(32 * KIB)
    auto, double = (
        compile_model(load("autoencoder_tiny"), recipe, target, options=ScheduleOptions(buffering=buffering))
        for buffering in ("auto", "double")
    )
    tiled = {name: entry.is_tiled for name, entry in auto.plan.schedule.entries.items()}
    assert tiled == {"infer": True, "step": True, "update": False}
    assert auto.timing["update"].cycles < 0.99 * double.timing["update"].cycles
    sgd = compile_model(load("autoencoder_tiny"), replace(recipe, optimizer=Recipe().optimizer), target)
    assert sgd.plan.schedule.entries["update"].is_tiled


@pytest.mark.slow
def test_a_long_update_from_l3_may_have_all_of_l2() -> None:
    """Moments of `autoencoder` come from L3: its update takes twice as long as two steps, which make way for it."""
    recipe = Recipe(optimizer=Adam(), accumulate=2)
    auto, untiled = (
        compile_model(load("autoencoder"), recipe, siracusa(64 * KIB), options=ScheduleOptions(is_tiled=is_tiled))
        for is_tiled in (True, False)
    )
    assert {name: entry.is_tiled for name, entry in auto.plan.schedule.entries.items()} == {
        "infer": True, "step": False, "update": False,
    }  # fmt: skip
    assert training_cycles(auto) == training_cycles(untiled)


def test_entries_in_tiles_and_others_give_the_bits_of_the_host() -> None:
    compiled = compiled_for("odd_cnn", siracusa(8 * KIB))
    assert {entry.is_tiled for entry in compiled.plan.schedule.entries.values()} == {True, False}
    assert sim_state(compiled, 2) == host_state("odd_cnn", 2)


@dataclass(frozen=True)
class Way:
    """A schedule as far as `_fastest` looks: what each entry takes, whether it fits, and which move something to L3."""

    cycles: Mapping[str, float]
    fits: bool = True
    staged: tuple[str, ...] = ()
    step: object = None

    @property
    def entries(self) -> Mapping[str, Any]:
        return {
            name: SimpleNamespace(launches=(name,), name=name) if name != "step" else self._step for name in self.cycles
        }

    @property
    def _step(self) -> object:
        return self.step or SHARED_STEP

    @property
    def program(self) -> Any:
        return SimpleNamespace(calls=lambda name: 2 if name == "step" else 1)


SHARED_STEP = SimpleNamespace(launches=("step",))


def chosen(monkeypatch: pytest.MonkeyPatch, ways: Sequence[Way], entry: str | None = None) -> int:
    def plan_memory(way: Way, home: str) -> Any:
        if not way.fits:
            raise DoesNotFit("it does not")
        return SimpleNamespace(way=way, entries={n: SimpleNamespace(staging=n in way.staged) for n in way.cycles})

    def unproved(plan: Any, entries: Sequence[str]) -> Any:
        return {name: SimpleNamespace(cycles=plan.way.cycles[name]) for name in entries}

    monkeypatch.setattr(fastest, "plan_memory", plan_memory)
    monkeypatch.setattr(fastest, "unproved", unproved)
    monkeypatch.setattr(fastest, "time_listing", lambda listing: listing)
    best = fastest._fastest(list(ways), ScheduleOptions(), entry)  # type: ignore[arg-type]
    return [way is best for way in ways].index(True)


def test_what_is_little_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps and an update: 2000 + 100. Less than 0.97 of that is below 2037."""
    first = Way({"step": 1000, "update": 100})
    assert chosen(monkeypatch, [first, Way({"step": 970, "update": 98})]) == 0  # 2038
    assert chosen(monkeypatch, [first, Way({"step": 970, "update": 96})]) == 1  # 2036
    assert chosen(monkeypatch, [first, Way({"step": 10, "update": 10}, fits=False)]) == 0
    assert chosen(monkeypatch, [replace(first, fits=False), Way({"step": 1100, "update": 100})]) == 1
    # The third is faster than the second, but by little.
    assert chosen(monkeypatch, [first, Way({"step": 500, "update": 0}), Way({"step": 490, "update": 0})]) == 1


def test_an_update_is_compared_alone_where_nothing_goes_to_l3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 cycles, less than 0.985 is below 98.5; of 2100, with two steps, below 2068.5."""
    first, faster = Way({"step": 1000, "update": 100}), Way({"step": 1000, "update": 98})
    assert chosen(monkeypatch, [first, faster], "update") == 1
    assert chosen(monkeypatch, [first, Way({"step": 1000, "update": 99})], "update") == 0
    # A step in another way is not looked at then, however fast.
    other_step = SimpleNamespace(launches=("step",))
    assert chosen(monkeypatch, [first, Way({"step": 1, "update": 1}, step=other_step)], "update") == 0
    # Where one entry has something in L3, all of them count: 98 of 100 are 2098 of 2100.
    staged = replace(first, staged=("step",))
    assert chosen(monkeypatch, [staged, faster], "update") == 0
    assert chosen(monkeypatch, [staged, Way({"step": 900, "update": 100}, step=other_step)], "update") == 1


def test_an_untiled_update_is_cut_as_the_rest_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as much of L2 for whole operands as what was found to be faster has."""
    shares: list[float] = []

    def noted(
        program: Program, target: Target, options: ScheduleOptions, share: float = fastest.WHOLE_SHARE
    ) -> Schedule:
        if not options.is_tiled:
            shares.append(share)
        return schedule_program(program, target, options, share)

    monkeypatch.setattr(fastest, "schedule_program", noted)
    recipe = Recipe(optimizer=Adam(), accumulate=2)
    for l2_bytes, share in ((None, fastest.MOST_WHOLE_SHARE), (1024 * KIB, fastest.WHOLE_SHARE)):
        shares.clear()
        made = compile_model(load("mlp"), recipe, siracusa(l2_bytes=l2_bytes))
        assert has_panels(made.plan.schedule) == (share == fastest.WHOLE_SHARE)
        assert shares == [share]


def test_moves_are_planned_in_other_ways_where_cores_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def noted(schedule: Schedule, home: str) -> Plan:
        planned.append(schedule.queued_moves)
        return plan_memory(schedule, home)

    monkeypatch.setattr(fastest, "plan_memory", noted)

    def ways(buffering: str, l2_bytes: int | None) -> set[int]:
        planned.clear()
        options = ScheduleOptions(buffering=buffering)
        compile_model(load("mlp"), Recipe(), siracusa(32 * KIB, l2_bytes=l2_bytes), options=options)
        return set(planned)

    usual = Schedule.queued_moves
    assert ways("auto", 64 * KIB) == {usual, fastest.FEW_MOVES, 34}
    assert ways("single", 64 * KIB) == set()  # whatever is moved is waited for
    assert ways("auto", None) == {usual}  # nothing is moved
    monkeypatch.setattr(fastest, "WAITS_FOR_L3", 1.0)
    assert ways("auto", 64 * KIB) == {usual}
    monkeypatch.setattr(fastest, "MANY_TILES", 0)
    assert ways("auto", 64 * KIB) == set()  # one way is enough


def test_a_plan_counts_on_as_many_moves_as_its_schedule_says() -> None:
    schedule = compile_model(load("mlp"), Recipe(), siracusa(32 * KIB, l2_bytes=64 * KIB)).plan.schedule
    usual, one_by_one = (
        plan_memory(replace(schedule, queued_moves=count), "auto").entries["step"].staging
        for count in (Schedule.queued_moves, 1)
    )
    assert usual != one_by_one
