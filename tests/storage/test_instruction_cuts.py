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
from pathlib import Path

import pytest

from tilegrad.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "power_cut"
TOOLS = ("make", "qemu-system-riscv32", "riscv64-unknown-elf-gcc")
BANK_BYTES = 32 << 20
CUT_STATUS = 99
SECONDS = 240.0


def run(*command: str | Path, cwd: Path, expected: tuple[int, ...] = (0,)) -> str:
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
    assert done.returncode in expected, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


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
        return self._emulate(flash, plugin, (0,))

    def start_until(self, flash: Path, instruction: int) -> str:
        """Power fails there, unless the firmware was done by then: it had little left to do."""
        return self._emulate(flash, f"at={instruction}", (CUT_STATUS, 0))

    def _emulate(self, flash: Path, plugin: str, expected: tuple[int, ...]) -> str:
        return run(
            *"qemu-system-riscv32 -machine virt -bios none -display none -monitor none -serial stdio".split(),
            *("-device", "loader,file=riscv32/firmware.elf"),
            *("-drive", f"if=pflash,unit=1,format=raw,file={flash.name}"),
            *("-plugin", f"./cut.so,{plugin}"),
            cwd=self.folder,
            expected=expected,
        )


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"cuts at instructions were not tried: no {', '.join(missing)} here")
    return Board(tmp_path_factory.mktemp("power_cut"))


def check_cuts(board: Board, seed: int, count: int) -> None:
    """`count` cuts, up to three of them in one training."""
    draw = random.Random(seed)
    flash = board.new_flash(f"flash{seed}")
    text = board.start(flash, f"count=count{seed}")
    assert weights_in(text) == board.uninterrupted
    total = int((board.folder / f"count{seed}").read_text())
    done = went_on = 0
    while done < count:
        flash = board.new_flash(f"flash{seed}")
        for _ in range(min(draw.randint(1, 3), count - done)):
            at = draw.randint(1, total if done % 2 else total // 2)
            board.start_until(flash, at)
            done += 1
        text = board.start(flash, f"count=count{seed}")
        went_on += "goes on" in text
        assert weights_in(text) == board.uninterrupted, f"seed {seed}, cut {done}: {text}"
    assert went_on > 0
    saved = read_checkpoint(flash)
    assert saved.updates == 40 and saved.target == "riscv32"


def test_a_cut_at_any_instruction_ends_with_the_same_weights(board: Board) -> None:
    check_cuts(board, 1, 8)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_thousand_cuts_at_instructions(board: Board, seed: int) -> None:
    check_cuts(board, seed, 100)
