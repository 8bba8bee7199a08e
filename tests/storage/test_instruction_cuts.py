"""The firmware of examples/power_cut on an emulated board whose power fails at a random instruction.

The board's NOR flash is QEMU's own, in a file. A run that was cut off, once or several times, and was started again
ends with the weights of one that was not, bit for bit: those of this machine.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilegrad.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "power_cut"
TOOLS = ("make", "qemu-system-riscv32", "riscv64-unknown-elf-gcc")
BANK_BYTES = 32 << 20
CUT_STATUS = 99
SECONDS = 240.0


def run(*command: str | Path, cwd: Path) -> str:
    status, text = attempt(*command, cwd=cwd)
    assert status == 0, f"{command}: status {status}\n{text}"
    return text


def attempt(*command: str | Path, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout + done.stderr


def weights_in(text: str) -> str:
    found = re.search(r"update \d+: weights (0x[0-9a-f]{8})", text)
    assert found is not None, text
    return found[1]


class Board:
    """The firmware, built once, and its flash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tilegrad = f"{sys.executable} -m tilegrad"
        run("make", "-C", EXAMPLE, f"OUT={folder}", f"TILEGRAD={tilegrad}", "export", cwd=folder)
        run("make", "-C", EXAMPLE, f"OUT={folder}", f"{folder}/riscv32/firmware.elf", cwd=folder)
        self.uninterrupted = weights_in(run("make", "-C", EXAMPLE, f"OUT={folder}", "run", cwd=folder))
        plugin = Path(__file__).parent / "cut.c"
        headers = ROOT / "tilegrad" / "runtime" / "qemu"
        flags = "-std=gnu99 -O2 -fPIC -shared -Wall -Wextra -Werror".split()
        run("gcc", *flags, f"-I{headers}", "-o", "cut.so", plugin, cwd=folder)

    def new_flash(self, name: str) -> Path:
        path = self.folder / f"{name}.bin"
        path.unlink(missing_ok=True)
        path.touch()
        os.truncate(path, BANK_BYTES)
        return path

    def start(self, flash: Path, plugin: str) -> str:
        status, text = self._emulate(flash, plugin)
        assert status == 0, text
        return text

    def is_cut(self, flash: Path, instruction: int) -> bool:
        """Power fails there, unless the firmware was done by then: it had little left to do."""
        status, text = self._emulate(flash, f"at={instruction}")
        assert status in (CUT_STATUS, 0), text
        return status == CUT_STATUS

    def _emulate(self, flash: Path, plugin: str) -> tuple[int, str]:
        return attempt(
            *"qemu-system-riscv32 -machine virt -bios none -display none -monitor none -serial stdio".split(),
            *("-device", "loader,file=riscv32/firmware.elf"),
            *("-drive", f"if=pflash,unit=1,format=raw,file={flash.name}"),
            *("-plugin", f"./cut.so,{plugin}"),
            cwd=self.folder,
        )


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"cuts at instructions were not tried: no {', '.join(missing)} here")
    return Board(tmp_path_factory.mktemp("power_cut"))


def check_cuts(board: Board, seed: int, count: int) -> dict[str, int]:
    """`count` cuts, up to three of them in one training. Returns how many there were of what."""
    draw = random.Random(seed)
    flash = board.new_flash(f"flash{seed}")
    text = board.start(flash, f"count=count{seed}")
    assert weights_in(text) == board.uninterrupted
    total = int((board.folder / f"count{seed}").read_text())
    done = went_on = trainings = 0
    while done < count:
        flash = board.new_flash(f"flash{seed}")
        for _ in range(draw.randint(1, 3)):
            done += board.is_cut(flash, draw.randint(1, total))
        text = board.start(flash, f"count=count{seed}")
        went_on += "goes on" in text
        trainings += 1
        assert weights_in(text) == board.uninterrupted, f"seed {seed}, cut {done}: {text}"
    assert went_on > 0
    saved = read_checkpoint(flash)
    assert saved.updates == 40 and saved.target == "riscv32"
    return {"cuts": done, "trainings": trainings, "went_on": went_on}


def test_a_cut_at_any_instruction_ends_with_the_same_weights(board: Board) -> None:
    check_cuts(board, 1, 8)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10, 50))
def test_a_thousand_cuts_at_instructions(
    board: Board, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """`--junitxml F -o junit_family=xunit1` has the figures that docs/storage.md tells."""
    for name, value in check_cuts(board, seed, 25).items():
        record_property(name, value)
