"""A Cortex-M55 on the board mps3-an547: RAM in three banks.

Its vector unit flushes subnormals, so floating point stays scalar (`+nomve.fp`); integers may use vectors.
"""

from tilegrad.targets.base import RAM, Memory, Target
from tilegrad.targets.board import KIB, MIB, Bank, Board

BOARD = Board(
    code=Bank("ITCM", 0x0000_0000, 512 * KIB),
    banks=(
        Bank("DTCM", 0x2000_0000, 512 * KIB),
        Bank("SRAM", 0x0100_0000, 2 * MIB),
        Bank("ISRAM", 0x2100_0000, 4 * MIB),
    ),
    stack_bytes=4096,
    start="start_cortex_m.c",
    tools=(("arm-none-eabi-gcc", "gcc-arm-none-eabi"),),
    flags=("-O2", "-mcpu=cortex-m55+nomve.fp", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto"),
    link_flags=("-lgcc",),
)

TARGET = Target(
    name="cortex_m55",
    summary="Cortex-M55 (mps3-an547): 1 core, 6.5 MB of RAM in three banks, portable kernels",
    memories=(Memory(RAM, capacity_bytes=BOARD.ram_bytes, alignment_bytes=8),),
    home=RAM,
    compute=RAM,
    runtime="mcu",
    board=BOARD,
)
