"""A Cortex-M7 on the board mps2-an500: single-precision fma in hardware, RAM in two banks."""

from tilegrad.targets.base import RAM, Memory, Target
from tilegrad.targets.board import MIB, Bank, Board

BOARD = Board(
    code=Bank("CODE", 0x0000_0000, 4 * MIB),
    banks=(Bank("SSRAM", 0x2000_0000, 4 * MIB), Bank("PSRAM", 0x6000_0000, 16 * MIB)),
    stack_bytes=4096,
    start="start_cortex_m.c",
    tools=(("arm-none-eabi-gcc", "gcc-arm-none-eabi"),),
    flags=("-O2", "-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
    link_flags=("-lgcc",),
)

TARGET = Target(
    name="cortex_m7",
    summary="Cortex-M7 (mps2-an500): 1 core, 20 MB of RAM in two banks, portable kernels",
    memories=(Memory(RAM, capacity_bytes=BOARD.ram_bytes, alignment_bytes=8),),
    home=RAM,
    compute=RAM,
    runtime="mcu",
    board=BOARD,
)
