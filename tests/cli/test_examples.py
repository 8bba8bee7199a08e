"""The examples work as their README says."""

from __future__ import annotations

import shutil
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


def firmware(goal: str, folder: Path) -> list[str]:
    """What the firmware printed; make's own lines and the compiler's are left out."""
    tilegrad = f"{sys.executable} -m tilegrad"
    text = run("make", "-C", EXAMPLES / "firmware", f"OUT={folder}", f"TILEGRAD={tilegrad}", goal, cwd=folder)
    return [line for line in text.splitlines() if line.startswith(("mean loss", "RAM:"))]


def test_firmware(tmp_path: Path) -> None:
    printed = firmware("run", tmp_path)
    assert len(printed) == 2 and "bytes of arena" in printed[1]


@pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None,
    reason="no Cortex-M compiler or no qemu-system-arm",
)
def test_firmware_has_the_same_bits_on_a_cortex_m7(tmp_path: Path) -> None:
    printed = firmware("run-m7", tmp_path)
    assert len(printed) == 2 and printed == firmware("run", tmp_path)


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"`{path.name}" in listed
