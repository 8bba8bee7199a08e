"""The examples work as their README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_from_python(tmp_path: Path) -> None:
    text = run(sys.executable, EXAMPLES / "train_from_python.py", cwd=tmp_path)
    assert "8 of 8 centres are recognised" in text and "fc1.weight: (128, 784)" in text
    assert list(tmp_path.iterdir()) == []


def test_train_a_torch_module(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    text = run(sys.executable, EXAMPLES / "train_a_torch_module.py", cwd=tmp_path)
    assert "verified against PyTorch" in text and ": True" in text


def test_custom_operator(tmp_path: Path) -> None:
    text = run(sys.executable, EXAMPLES / "custom_operator" / "train.py", cwd=tmp_path)
    assert "difference to the model in standard operators: 0.0e+00" in text
    assert list(tmp_path.iterdir()) == []


def test_firmware(tmp_path: Path) -> None:
    tilegrad = f"{sys.executable} -m tilegrad"
    text = run(
        "make", "-C", EXAMPLES / "firmware", f"OUT={tmp_path / 'build'}", f"TILEGRAD={tilegrad}", "run", cwd=tmp_path
    )
    assert "bytes of arena" in text


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"`{path.name}" in listed
