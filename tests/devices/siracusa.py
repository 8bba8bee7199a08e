"""The product's own model of Siracusa as a test runs it: as an adversary, also behind gvsoc's command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tilegrad.compiled import Compiled
from tilegrad.devices.iss import FAULT_STATUS, build_simulator
from tilegrad.devices.siracusa_build import build_image, folder_files, missing_compiler
from tilegrad.devices.siracusa_image import ImageRun, parse_console
from tilegrad.devices.siracusa_program import Expected

DRIVERS = Path(__file__).parent / "siracusa_drivers.c"
MOST_CYCLES = 2_000_000_000

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=f"gvsoc:siracusa: {missing_compiler()}")


@cache
def model_program(folder: Path) -> Path:
    return build_simulator(folder)


def build(
    compiled: Compiled,
    folder: Path,
    steps: int,
    expected: Expected | None = None,
    changes: Mapping[str, str] | None = None,
) -> Path:
    """An image in a folder; `changes` replace C by other C, old for new: seeded faults."""
    files = folder_files(compiled, steps, expected)
    for name in [name for name in files if name.startswith("chip/")]:
        text = files[name]
        for old, new in (changes or {}).items():
            text = text.replace(old.encode(), new.encode())
        files[name] = text
    return build_image(compiled, folder, files).path


def run(program: Path, image: Path, seed: int = 1, *options: str) -> subprocess.CompletedProcess[str]:
    """Whatever the chip leaves open is as bad as it can be: what is undefined is noise, and cores stop at random."""
    command = [str(program), str(image), "--seed", str(seed), "--adverse", "--limit", str(MOST_CYCLES), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def finished(program: Path, image: Path, seed: int = 1) -> ImageRun:
    done = run(program, image, seed)
    assert done.returncode != FAULT_STATUS, done.stderr
    return parse_console(done.stdout, done.returncode)


def fake_gvsoc(folder: Path, program: Path, body: str = "") -> Path:
    """A command that takes gvsoc's arguments and runs the model; `body` may do something else first."""
    script = folder / "gvsoc"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys, time\n"
        "assert sys.argv[1] == '--target=siracusa' and sys.argv[-1] == 'run'\n"
        "given = dict(zip(sys.argv[2:-1:2], sys.argv[3:-1:2]))\n"
        "assert os.path.isabs(given['--work']) and os.path.isdir(given['--work'])\n"
        "assert os.path.isabs(given['--binary'])\n"
        f"{body}\n"
        "print('a simulator says things of its own', flush=True)\n"
        f"os.execv({str(program)!r}, ['model', given['--binary']])\n"
    )
    script.chmod(0o755)
    return script


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found
