"""The cost formula against measurements that were taken on the chip's cycle model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilegrad.calibration import compare
from tilegrad.calibration.document import DOCUMENT, conduct_lines, kernel_lines
from tilegrad.costs.kernel_cost import cycles_of_mix
from tilegrad.costs.measured import load_measured
from tilegrad.targets.base import get

SIRACUSA = get("siracusa")


def test_kernels_of_the_calibration_set() -> None:
    rows = compare.kernel_rows(SIRACUSA)
    errors = [abs(row.error) for _, row in rows]
    assert len(rows) == 780
    assert sum(error <= 0.12 for error in errors) >= 0.9 * len(rows)
    assert max(errors) <= 0.30


def test_dma_figures() -> None:
    assert all(abs(row.error) <= 0.02 for row in compare.dma_rows(SIRACUSA))


def test_the_command_reports_and_judges(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main() == 0
    printed = capsys.readouterr().out
    assert "| all | 780 |" in printed
    assert "every figure is within its bound" in printed


def test_the_documented_tables_are_those_of_the_command() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for lines in compare.report(SIRACUSA)[0].values():
        assert "\n".join(lines) in text
    measured = load_measured(SIRACUSA.folder)
    assert measured is not None
    assert "\n".join(conduct_lines(measured)) in text and "\n".join(kernel_lines(measured)) in text


def test_a_wrong_rule_is_noticed() -> None:
    """The comparison has teeth: with free branches, or a slow L2 forgotten, it complains."""
    assert SIRACUSA.costs is not None
    free_branches = replace(SIRACUSA, costs=replace(SIRACUSA.costs, taken_branch_extra=0.0, load_use_extra=0.0))
    _, complaints = compare.report(free_branches)
    assert complaints
    memories = tuple(replace(m, core_extra_cycles=0) if m.name == "L2" else m for m in SIRACUSA.memories)
    _, complaints = compare.report(replace(SIRACUSA, memories=memories))
    assert complaints


def test_micro_benchmarks() -> None:
    """Figures measured one by one: 128 fmadd per core, and 8 divisions per core on one divider."""
    fmadd = {"i_total": 128.0, "i_fma": 128.0}
    assert cycles_of_mix(fmadd, SIRACUSA, "L1", 4) == pytest.approx(152, rel=0.15)
    assert cycles_of_mix(fmadd, SIRACUSA, "L1", 8) == pytest.approx(273, rel=0.15)
    divisions = {"i_total": 8.0, "i_fdiv_sqrt": 8.0, "all_fdiv_sqrt": 64.0}
    assert cycles_of_mix(divisions, SIRACUSA, "L1", 8) == pytest.approx(799, rel=0.25)
