"""Whole programs are compared where nests alone cannot tell what is faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schedule.programs import KIB, compiled_for, host_state, sim_state, siracusa
from tilegrad.compiled import Compiled
from tilegrad.frontend import load
from tilegrad.ir.schedule import Schedule
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Adam, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence import fastest


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
