"""What the Cortex-M boards have in common: how they start, are compiled for, and run portable kernels on one core."""

from __future__ import annotations

from tilegrad.targets.base import FLASH, RAM, Memory, Target
from tilegrad.targets.board import Bank, Board


def cortex_m(name: str, summary: str, code: Bank, banks: tuple[Bank, ...], cpu: str, fpu: str) -> Target:
    """`cpu` and `fpu` are what the compiler calls them."""
    board = Board(
        code=code,
        banks=banks,
        stack_bytes=4096,
        start="start_cortex_m.c",
        tools=(("arm-none-eabi-gcc", "gcc-arm-none-eabi"),),
        flags=("-O2", f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", f"-mfpu={fpu}"),
        link_flags=("-lgcc",),
    )
    return Target(
        name=name,
        summary=summary,
        memories=(
            Memory(RAM, capacity_bytes=board.ram_bytes, alignment_bytes=8),
            Memory(FLASH, capacity_bytes=board.flash_bytes, alignment_bytes=8),
        ),
        home=RAM,
        compute=RAM,
        runtime="mcu",
        board=board,
    )
