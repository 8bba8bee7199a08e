"""No model brings tilegrad down: each ends with exit status 0 or 2, one message, and within its bounds.

At least 300 damaged models and 60 made by hand, each in a process of its own that may use so much processor time and
so much memory and no more (`hostile_runner`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.errors.hostile import EITHER, REFUSED, SOUND, Maker
from tests.errors.mutants import mutants
from tests.support.often import first_always
from tilegrad.bounds import MAX_FOLDED_TOTAL_BYTES

PARTS = 4
RESIDENT_BYTES = 2**29 + MAX_FOLDED_TOTAL_BYTES
ROOT = Path(__file__).parents[2]


def run(commands: Mapping[str, list[str]], folder: Path) -> dict[str, dict[str, Any]]:
    listed = folder / "commands.json"
    listed.write_text(json.dumps(list(commands.values())))
    done = subprocess.run(
        [sys.executable, "-m", "tests.errors.hostile_runner", str(listed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(zip(commands, map(json.loads, done.stdout.splitlines()), strict=True))


def complaint(result: Mapping[str, Any], allowed: tuple[int, ...]) -> str | None:
    """What is wrong with how a command ended, or None."""
    said, status = str(result["stderr"]), result["status"]
    if status not in allowed:
        return f"exit status {status}, not {allowed}: {said[-300:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-300:]}"
    messages = sum(line.startswith("error:") for line in said.splitlines())  # a long path is on the next line
    if messages != (status != 0):
        return f"exit status {status} with {messages} messages: {said[-300:]}"
    if result["resident_bytes"] > RESIDENT_BYTES:
        return f"{result['resident_bytes']} bytes of memory"
    return None


def complaints(commands: Mapping[str, list[str]], folder: Path, allowed: tuple[int, ...]) -> dict[str, str]:
    results = run(commands, folder)
    return {name: text for name, result in results.items() if (text := complaint(result, allowed)) is not None}


def part(makers: Mapping[str, Maker], number: int, folder: Path) -> dict[str, Path]:
    """Every fourth model, each in a folder of its own."""
    paths = {}
    for name in sorted(makers)[number::PARTS]:
        own = folder / name
        own.mkdir()
        paths[name] = makers[name](own)
    return paths


def test_there_are_enough() -> None:
    assert len(REFUSED) + len(SOUND) + len(EITHER) >= 60
    assert len({data for _, data in mutants()}) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_what_cannot_be_used_is_refused(number: int, tmp_path: Path) -> None:
    paths = part(REFUSED, number, tmp_path)
    targets = cycle(("host", "siracusa"))
    commands = {name: ["inspect", str(path), "--target", next(targets)] for name, path in paths.items()}
    assert complaints(commands, tmp_path, (2,)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_what_is_odd_but_sound_is_read(number: int, tmp_path: Path) -> None:
    paths = part(SOUND, number, tmp_path)
    commands = {name: ["inspect", str(path), "--target", "host"] for name, path in paths.items()}
    assert complaints(commands, tmp_path, (0,)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "siracusa"])
def test_what_may_be_read_or_refused_ends_well(target: str, tmp_path: Path) -> None:
    paths = {name: path for number in range(PARTS) for name, path in part(EITHER, number, tmp_path).items()}
    commands = {name: ["inspect", str(path), "--target", target] for name, path in paths.items()}
    assert complaints(commands, tmp_path, (0, 2)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("number", first_always(range(PARTS), 2))
def test_damaged_models_are_read_or_refused(number: int, tmp_path: Path) -> None:
    commands = {}
    for name, data in list(mutants())[number::PARTS]:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        commands[name] = ["compile", str(path), "--target", "host", "-o", str(tmp_path / name)]
    assert complaints(commands, tmp_path, (0, 2)) == {}


@pytest.mark.slow
def test_functions_that_mean_2_to_the_40_nodes_are_refused_by_name(tmp_path: Path) -> None:
    path = REFUSED["functions_twice_40_deep"](tmp_path)
    result = run({"it": ["inspect", str(path)]}, tmp_path)["it"]
    assert "node 'call'" in result["stderr"] and "at most 50,000 nodes when inlined" in result["stderr"]
