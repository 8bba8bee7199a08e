"""The microbenchmarks of benchmarks/iss_micro.py: what single instructions, accesses and fetches take on the chip."""

from __future__ import annotations

import pytest

from benchmarks.iss import MICRO_TOLERANCE, MICRO_TOLERANCES
from benchmarks.iss_micro import Found, Row, measure
from tests.devices.siracusa import needs_compiler
from tilegrad.devices.iss import build_simulator

pytestmark = needs_compiler
Measured = list[tuple[Row, Found]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("micro")
    return measure(build_simulator(folder), folder)


@pytest.mark.parametrize("table", ["access_costs", "instructions", "cold_calls", "l2_behind_dma"])
def test_rows(table: str, measured: Measured) -> None:
    """What was measured is among what calls take here, within 2 %: code that fills the private cache takes what its
    replacement happens to leave there. Nearly everywhere all calls take the same."""
    rows = [(row, found) for row, found in measured if row.table == table]
    assert len(rows) >= 14
    wrong = [
        f"{row.what}, {row.who}: {found.least:g} to {found.most:g} for {row.cycles:g}"
        for row, found in rows
        if abs(found.beyond(row)) > MICRO_TOLERANCE
    ]
    assert not wrong, "\n".join(wrong)
    spread = [found.most / found.least - 1 for _, found in rows]
    assert max(spread) < 0.13 and sum(share > 0.02 for share in spread) <= len(rows) / 2
    assert sum(abs(found.error(row)) for row, found in rows) / len(rows) < 0.015


def test_instruction_caches(measured: Measured) -> None:
    """Within 3 % of some run of the same code, and of the middle one but for one in twenty, near the cache's size: what
    replacement leaves there is chance."""
    runs = [(row, found) for row, found in measured if row.table == "icache_runs"]
    errors = [abs(found.error(row)) for row, found in runs]
    assert len(errors) == 66 and all(abs(found.beyond(row)) <= MICRO_TOLERANCES["icache_runs"] for row, found in runs)
    assert sum(error > MICRO_TOLERANCES["icache_runs"] for error in errors) <= 3 and max(errors) < 0.06
    assert sum(errors) / len(errors) < 0.01
