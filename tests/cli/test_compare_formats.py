"""Comparisons for other people's pages, and what changed since an earlier one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

FAST = ("compare", "simplemlp", "--no-verify", "--steps", "1")


def test_formats_and_changes(tilegrad: CommandLine, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert tilegrad(*FAST, "--json", old).status == 0
    document = json.loads(old.read_text())
    rows = list(csv.DictReader(io.StringIO(tilegrad(*FAST, "--format", "csv").out)))
    assert [row["mode"] for row in rows] == ["untiled", "single", "double"]
    assert [int(row["cycles"]) for row in rows] == [sum(row["cycles"].values()) for row in document["rows"]]
    same = tilegrad(*FAST, "--against", old)
    assert same.out.count("the same") == 3
    document["rows"][1]["cycles"]["step"] *= 2
    old.write_text(json.dumps(document))
    shown = tilegrad(*FAST, "--format", "markdown", "--against", old).out
    assert "| -50.0 % |" in shown and shown.splitlines()[1].startswith("| --- | ---: |")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a comparison"),
        ('{"model": "mlp", "rows": []}', "is of another model"),
    ],
)
def test_refused(tilegrad: CommandLine, tmp_path: Path, content: str | None, message: str) -> None:
    old = tmp_path / "old.json"
    if content is not None:
        old.write_text(content)
    answer = tilegrad(*FAST, "--against", old)
    assert answer.status == 2 and message in answer.err
    assert tilegrad(*FAST, "--format", "html").status == 2
