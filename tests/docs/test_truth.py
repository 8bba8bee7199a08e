"""Figures of a chip: each says whether it was measured or estimated, and the tables are what the measurements say."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from benchmarks import clock, truth
from tests.docs.documents import ROOT
from tilegrad import zoo


@pytest.mark.parametrize("document", truth.DOCUMENTS)
def test_the_tables_are_those_of_the_measurements(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert truth.filled(text, document) == text, "python -m benchmarks.truth"


def test_every_model_was_measured() -> None:
    """On the chip's cycle model, with the simulator's bits, and on iss as it is made now."""
    rows = [row for row in truth.read(truth.MODELS) if row["variant"] == "as_is"]
    assert {row["model"] for row in rows} == set(zoo.names()) and all(row["verdict"] == "same" for row in rows)
    assert "| - |" not in "".join(truth.model_table())


def test_what_was_measured_on_iss_is_as_near_as_wanted() -> None:
    """Of the trainings that documents show; tests/calibration measures some of them again. And `auto` is as fast as any
    other mode."""
    rows = clock.read()
    assert len(clock.different(rows)) > 800 and not list(clock.complaints(rows))
    far = {row.key for row in rows if not row.is_near}
    assert len(far) < 0.012 * len(rows) and {entry for *_, entry in far} <= {"update"}, far


@pytest.mark.parametrize("document", ["README.md", "benchmarks/CLUSTER.md"])
def test_cycles_in_tables_say_what_they_are(document: str) -> None:
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    for header, rule in pairwise(lines):
        if header.startswith("|") and rule.startswith("|--"):
            for cell in header.strip("|").split("|"):
                if re.search(r"cycles|MAC/cycle|hidden", cell):
                    assert re.search(r"estimated|measured", cell), header


def test_what_the_clock_knows_is_said() -> None:
    text = (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8")
    for words in ("from act to act", "instruction cache", "crowded", "queue", "constants in L2", "uncalibrated"):
        assert words in text, words
