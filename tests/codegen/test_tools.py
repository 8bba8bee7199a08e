"""The generated C under the tools that its readers use: formatters, linters, analyzers, and strict warnings."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import tilegrad as tg
from tilegrad.build.folder import write_files
from tilegrad.build.riscv import COMPILER
from tilegrad.devices.siracusa_build import CLUSTER_FLAGS, folder_files

ROOT = Path(__file__).parents[2]
KINDS = ("host", "cortex_m7", "siracusa")
"""One memory, a board, and a cluster with a scratchpad."""

LARGE = [(name, kind) for name in ("resnet8", "cct") for kind in ("host", "siracusa")]
OVER_BLOCKS = (("autoencoder_tiny", "mppa"), ("autoencoder_tiny", "npu"))
PROJECTS = [("simplemlp", kind) for kind in KINDS] + [
    pytest.param(*project, marks=pytest.mark.slow) for project in (*LARGE, *OVER_BLOCKS)
]
every_project = pytest.mark.parametrize(("name", "target"), PROJECTS)
WARNINGS = tuple("-Wall -Wextra -Wconversion -Wsign-conversion -Wstrict-aliasing=2 -Wshadow -Werror".split())
FLAGS = ("-std=c99", "-I.", "-DTG_STATIC_INSTANCE")
ANALYZER = ("gcc", *FLAGS, "-O1", "-fanalyzer", "-Werror", "-o", "checked.o", "-c")
SECONDS = 280.0


def needs(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{len(PROJECTS)} projects were not checked with {tool}: it is not installed")


@cache
def files_of(name: str, target: str) -> dict[str, bytes]:
    """The small one with everything that can be asked for: storage and a guard."""
    extras = {"storage": "64K"} if name == "simplemlp" else {}
    recipe = tg.Recipe(guard=tg.Guard(loss=100.0) if extras else None)
    return dict(tg.compile(tg.load(name), recipe, target=target, weights_as_c=True, **extras).project.files)


def written(name: str, target: str, folder: Path) -> list[str]:
    """The project with our settings beside it; its C files, those of a board apart: they are for its own compiler."""
    files = files_of(name, target)
    write_files(folder, files)
    for settings in (".clang-format", ".clang-tidy"):
        shutil.copy(ROOT / settings, folder)
    return [path for path in files if path.endswith(".c") and not path.startswith("bare/")]


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@every_project
def test_what_is_generated_is_formatted(tmp_path: Path, name: str, target: str) -> None:
    needs("clang-format")
    written(name, target, tmp_path)
    paths = [path for path in files_of(name, target) if path.endswith((".c", ".h")) and not path.startswith("kernels/")]
    assert run(["clang-format", "--dry-run", "-Werror", "--style=file", *paths], tmp_path) == ""


@every_project
def test_no_warning_of_the_strict_kind(tmp_path: Path, name: str, target: str) -> None:
    needs("gcc")
    paths = written(name, target, tmp_path)
    assert run(["gcc", *FLAGS, "-O2", "-fsyntax-only", *WARNINGS, *paths], tmp_path) == ""


def test_no_warning_of_the_strict_kind_on_the_chip(tmp_path: Path) -> None:
    """An image for the chip, its drivers and its program, with the compiler and the flags that make it."""
    needs(COMPILER)
    files = folder_files(tg.compile("simplemlp", target="siracusa"), steps=1, expected=None)
    write_files(tmp_path, files)
    paths = [path for path in files if path.endswith(".c")]
    assert {"chip/program.c", "chip/image.c", "tg_tile.c", "model.c"} <= set(paths)
    for path in paths:
        assert run([COMPILER, *CLUSTER_FLAGS, *WARNINGS, "-fsyntax-only", path], tmp_path) == "", path


def test_an_image_is_formatted(tmp_path: Path) -> None:
    needs("clang-format")
    files = folder_files(tg.compile("simplemlp", target="siracusa"), steps=1, expected=None)
    write_files(tmp_path, files)
    shutil.copy(ROOT / ".clang-format", tmp_path)
    paths = [path for path in files if path.endswith((".c", ".h")) and not path.startswith("kernels/")]
    assert {"chip/image.c", "chip/image.h", "chip/program.c"} <= set(paths)
    assert run(["clang-format", "--dry-run", "-Werror", "--style=file", *paths], tmp_path) == ""


@every_project
def test_clean_under_clang_tidy(tmp_path: Path, name: str, target: str) -> None:
    needs("clang-tidy")
    paths = written(name, target, tmp_path)
    assert run(["clang-tidy", "--quiet", *paths, "--", *FLAGS], tmp_path) == ""


@every_project
def test_clean_under_the_analyzer(tmp_path: Path, name: str, target: str) -> None:
    """Weights and kernels apart: those have no pointers that they did not get."""
    needs("gcc")
    paths = [path for path in written(name, target, tmp_path) if "/" not in path and path != "weights.c"]
    for path in paths:
        assert run([*ANALYZER, path], tmp_path) == "", path


@pytest.mark.parametrize(
    ("tool", "spoilt"),
    [
        ("clang-format", b"int spoilt( void );\n"),
        ("clang-tidy", b"int spoilt(int a)\n{\n    return a ? a : sizeof(sizeof(a));\n}\n"),
        ("gcc", b"short spoilt(int a)\n{\n    return a;\n}\n"),
        ("the analyzer", b"int spoilt(int a)\n{\n    int *p = 0;\n    return a ? *p : 0;\n}\n"),
    ],
)
def test_the_tools_would_have_found_something(tmp_path: Path, tool: str, spoilt: bytes) -> None:
    needs("gcc" if tool == "the analyzer" else tool)
    written("simplemlp", "host", tmp_path)
    (tmp_path / "spoilt.c").write_bytes(spoilt)
    commands = {
        "clang-format": ["clang-format", "--dry-run", "-Werror", "--style=file", "spoilt.c"],
        "clang-tidy": ["clang-tidy", "--quiet", "spoilt.c", "--", *FLAGS],
        "gcc": ["gcc", *FLAGS, "-fsyntax-only", *WARNINGS, "spoilt.c"],
        "the analyzer": [*ANALYZER, "spoilt.c"],
    }
    assert "spoilt" in run(commands[tool], tmp_path)
