"""docs/json.md lists exactly the fields that commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.docs.documents import ROOT, run_line

TEXT = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
ARGUMENTS = {
    "train": "simplemlp --steps 1",
    "compile": "simplemlp -o out",
    "compare": "autoencoder_tiny",
    "report": "simplemlp --no-verify",
    "check": "budget.toml",
    "run": "program",
    "explore": "simplemlp --vary cores=8 --jobs 1",
    "evaluate": "simplemlp --data samples.npz",
}
ON_A_MODEL = ("infer", "inspect", "gradcheck")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def told_fields(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    rows = re.findall(r"^\|(.*?)\|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.slow
@pytest.mark.parametrize("command", [title for title in SECTIONS if title != "Shared"])
def test_fields(command: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.zeros((3, 64), np.float32), y=np.arange(3))
    (tmp_path / "budget.toml").write_text('[a]\nmodel = "simplemlp"\n[a.limits]\nL2 = "1M"\n')
    if command == "run":
        run_line("tilegrad compile simplemlp --device host*1 -o program", tmp_path)
    arguments = ARGUMENTS.get(command, "simplemlp" if command in ON_A_MODEL else "")
    run_line(f"tilegrad {command} {arguments} --json result.json", tmp_path)
    printed = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert set(printed) == told_fields(SECTIONS[command])


def test_every_command_is_told() -> None:
    from tilegrad.cli import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert names - {"completion"} == set(SECTIONS) - {"Shared"}  # a script for a shell, no JSON


def test_error_fields(tmp_path: Path) -> None:
    run_line("tilegrad train no-such-model --json result.json # exit status 2", tmp_path)
    printed = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    section = TEXT[: TEXT.index("## Shared")]
    assert set(printed["error"]) == told_fields(section) - {"error"}
