"""`tilegrad check`: a budget that holds, one that does not, what changed, and files that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

GOOD = """
[small]
model = "simplemlp"
l1 = "64K"
lr = 0.05
[small.limits]
L2 = "8K"
step_cycles = 10_000_000
loss = 3.0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "budget.toml"
    path.write_text(text)
    return path


def test_within_then_over(tilegrad: CommandLine, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    first = tilegrad("check", path, "--update", "--json", tmp_path / "out.json")
    assert first.status == 0, first.err
    figures = {one["figure"]: one for one in json.loads((tmp_path / "out.json").read_text())["figures"]}
    recorded = json.loads((tmp_path / "budget.recorded.json").read_text())["small"]
    assert recorded == {name: one["value"] for name, one in figures.items()}
    again = tilegrad("check", path)
    assert again.status == 0 and again.out.count("same") == 3
    (tmp_path / "budget.recorded.json").write_text(json.dumps({"small": {"L2": figures["L2"]["value"] * 2}}))
    over = tilegrad("check", written(tmp_path, GOOD.replace("10_000_000", "100")))
    assert over.status == 1 and "-50.0 %" in over.out and "OVER" in over.out
    assert "small leaves its budget" in over.err and "step_cycles of at most 100" in over.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no budget in it"),
        ("[a", "not TOML"),
        ("[a]\nl1 = '64K'", "[a] names no model"),
        ("[a]\nmodel = 'simplemlp'", "[a] has no limits"),
        (GOOD.replace("l1", "l7"), "[small] has no option 'l7'"),
        (GOOD.replace("lr = 0.05", "lr = 'much'"), "'lr' cannot be used"),
        (GOOD.replace("lr = 0.05", "batch = 2.5"), "'batch' cannot be used"),
        (GOOD.replace("L2 =", "L9 ="), "has no 'L9'"),
        (GOOD.replace('"8K"', '"8 apples"'), "is not a size"),
        (GOOD.replace("loss = 3.0", "flash = 3"), "'flash' is not known on sim:siracusa"),
        (GOOD.replace('"simplemlp"', '"simplemlq"'), "simplemlq"),
        (GOOD.replace('"64K"', '"1"'), "does not fit"),
    ],
)
def test_refused(tilegrad: CommandLine, tmp_path: Path, text: str, message: str) -> None:
    answer = tilegrad("check", written(tmp_path, text), "--update")
    assert answer.status == 2 and message in answer.err, answer.err
    assert not (tmp_path / "budget.recorded.json").exists()


def test_no_file(tilegrad: CommandLine, tmp_path: Path) -> None:
    assert tilegrad("check", tmp_path / "none.toml").status == 2
