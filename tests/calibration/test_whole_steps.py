"""Whole trainings: what the clock says of them beside what `iss:siracusa` measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.clock import Row, complaints, different, measure, slower_than_another
from tests.devices.siracusa import needs_compiler
from tilegrad import zoo
from tilegrad.calibration import observed
from tilegrad.calibration.cases import KIB, MODES, SIZES, Case

pytestmark = needs_compiler
# Estimates were fitted on the zoo as it was linked then; other code in the image moves cycles by a few per cent.
SLICE = (
    Case("simplemlp", "untiled", 240 * KIB),
    Case("simplemlp", "auto", 64 * KIB),
    Case("autoencoder_tiny", "double", 64 * KIB),
    Case("autoencoder_tiny", "auto", 128 * KIB, "sgd, accum 2"),
    Case("dscnn", "single", 64 * KIB),
)


@pytest.mark.parametrize("case", SLICE, ids=lambda case: case.name)
def test_estimates_are_what_iss_measures(case: Case) -> None:
    """Within 5 %, or 10 % of less than a million cycles, steps and updates."""
    rows = measure(case)
    assert rows and {row.model for row in rows} == {case.model}
    assert not list(complaints(rows))


def test_a_wrong_estimate_and_a_slow_schedule_are_told() -> None:
    rows = [
        Row("m", "sgd", "auto", 64, "step", 1_040_000, 1_000_000, "a"),
        Row("m", "sgd", "double", 64, "step", 1_060_000, 1_000_000, "b"),
        Row("m", "sgd", "single", 64, "step", 980_000, 980_000, "c"),
        Row("m", "sgd", "single", 32, "step", 800_000, 800_000, "d"),
        Row("n", "sgd", "auto", 64, "step", 109_000, 100_000, "e"),
        Row("n", "sgd", "untiled", 240, "step", 88_000, 99_500, "f"),
    ]
    assert [row.key for row, _ in slower_than_another(rows)] == [rows[0].key, rows[4].key]
    told = list(complaints(rows))
    assert len(told) == 3
    assert told[0] == "m, sgd, double, 64, step: +6.0 %" and told[1].startswith("n, sgd, untiled, 240, step: -11.6 %")
    assert told[2] == "m, sgd, 64K: auto is 2.0 % slower than single"


def test_programs_count_once_and_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` and `double` of a model that is all whole in L1, at two sizes: what ran before is not run again."""
    rows = [Row("m", "sgd", mode, 64, entry, 9, 10, "a") for mode in ("auto", "double") for entry in ("step", "update")]
    assert [row.entry for row in different(rows)] == ["step", "update"]
    first = measure(Case("simplemlp", "auto", 128 * KIB))
    monkeypatch.setattr(observed, "_run", None)
    assert [replace(row, l1_kib=128) for row in measure(Case("simplemlp", "auto", 240 * KIB))] == first


@pytest.mark.matrix
@pytest.mark.parametrize("model", zoo.names())
@pytest.mark.parametrize("size", SIZES)
def test_every_mode_of_every_model(model: str, size: int) -> None:
    """`auto` is at most 1 % slower than the best of the others, as measured."""
    rows = [row for mode in MODES for row in measure(Case(model, mode, size))]
    assert not list(complaints(rows))


@pytest.mark.matrix
@pytest.mark.parametrize("model", zoo.names())
@pytest.mark.parametrize("recipe", ["sgd, accum 2", "momentum", "momentum, accum 2", "adam", "adam, accum 2"])
def test_other_recipes(model: str, recipe: str) -> None:
    rows = [row for mode in MODES for row in measure(Case(model, mode, 128 * KIB, recipe))]
    assert not list(complaints(rows))
