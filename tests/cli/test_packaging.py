"""An installed tilegrad has everything it needs: kernels, the C runtime, targets, goldens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("tilegrad/")}
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
        scripts = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tilegrad").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert wanted - packed == set()
    assert {"tilegrad/ops/gemm.c", "tilegrad/runtime/main.c", "tilegrad/targets/host/tg_rt.h"} <= packed
    assert "tilegrad = tilegrad.launch:run" in scripts
    assert "Requires-Dist: torch==2.13.0; extra == 'torch'" in metadata
    required = {
        re.split(r"[<>=;]", line.split()[1])[0]
        for line in metadata.splitlines()
        if "Requires-Dist" in line and "extra" not in line
    }
    assert required == {"flatbuffers", "ml-dtypes", "numpy", "onnx", "rich", "safetensors", "tomli", "typer"}


@pytest.mark.matrix
def test_the_wheel_works_without_a_checkout(tmp_path: Path) -> None:
    """In an empty environment, in an empty folder, with what pip brings along and nothing of this repository."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    binaries = tmp_path / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, check=False, timeout=280, env=environment
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    run(str(binaries / "pip"), "install", "-q", str(wheel))
    tilegrad = str(binaries / "tilegrad")
    assert "verified against" in run(tilegrad, "train", "simplemlp")
    assert "sim:siracusa" in run(str(binaries / "python"), "-m", "tilegrad", "devices")
    assert "3 points" in run(tilegrad, "explore", "simplemlp", "--vary", "cores=1,2,4", "--jobs", "1")
    run(tilegrad, "report", "simplemlp", "--no-verify", "-o", "report.html")
    assert [path.name for path in folder.iterdir()] == ["report.html"]


def test_no_committed_file_names_this_machine() -> None:
    """Absolute paths of the machine that this was written on have no place in the project."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    forbidden = (str(ROOT) + "/", str(Path.home()) + "/.cache")
    found = []
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or path.suffix in (".onnx", ".npz", ".png"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [(name, word) for word in forbidden if word in text]
    assert found == []
