"""The examples work as their README says."""

from __future__ import annotations

import importlib.util
import re
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make export` left: the only step that needs Python."""
    folder = tmp_path_factory.mktemp("firmware")
    tilegrad = f"{sys.executable} -m tilegrad"
    run("make", "-C", EXAMPLES / "firmware", f"OUT={folder}", f"TILEGRAD={tilegrad}", "export", cwd=folder)
    return folder


def firmware(goal: str, folder: Path) -> list[str]:
    """What the firmware printed; make's own lines and the compiler's are left out."""
    text = run("make", "-C", EXAMPLES / "firmware", f"OUT={folder}", "TILEGRAD=false", goal, cwd=folder)
    return [line for line in text.splitlines() if line.startswith(("mean loss", "RAM:"))]


def test_firmware(exported: Path) -> None:
    printed = firmware("run", exported)
    assert len(printed) == 2 and "bytes of arena" in printed[1]


@pytest.mark.parametrize(
    ("goal", "tools"),
    [
        ("run-m7", ("arm-none-eabi-gcc", "qemu-system-arm")),
        ("run-riscv", ("riscv64-unknown-elf-gcc", "qemu-system-riscv32")),
    ],
)
def test_firmware_has_the_same_bits_on_a_board(goal: str, tools: tuple[str, ...], exported: Path) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}")
    printed = firmware(goal, exported)
    assert len(printed) == 2 and printed[0] == firmware("run", exported)[0]


def test_firmware_asks_for_the_export(tmp_path: Path) -> None:
    command = ["make", "-C", str(EXAMPLES / "firmware"), f"OUT={tmp_path}", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "run make export once" in done.stderr


def test_a_product_learns_its_owner_on_a_board(tmp_path: Path) -> None:
    """The other data, part and device are run where the example's README is (tests/docs)."""
    missing = [tool for tool in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(tool) is None]
    missing += [name for name in ("onnxruntime", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}")
    arguments = "digits --person 3 --train lora:4 --device qemu:mps2-an500 --slice 96 --epochs 4".split()
    text = run(sys.executable, EXAMPLES / "product_loop" / "loop.py", *arguments, "-o", tmp_path / "out", cwd=tmp_path)
    assert "-- power cut --" in text and "goes on at update" in text
    assert text.endswith("the same bits as the firmware's\n")
    right = [int(found) for found in re.findall(r"(?:before|after): (\d+) of 96 are right", text)]
    assert len(right) == 2 and right[1] > right[0]
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"`{path.name}" in listed
