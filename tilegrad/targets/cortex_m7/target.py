"""A Cortex-M7 on the board mps2-an500: single-precision fma in hardware, RAM in two banks."""

from tilegrad.targets.board import MIB, Bank
from tilegrad.targets.cortex_m import cortex_m

TARGET = cortex_m(
    name="cortex_m7",
    summary="Cortex-M7 (mps2-an500): 1 core, 20 MB of RAM in two banks, portable kernels",
    code=Bank("CODE", 0x0000_0000, 4 * MIB),
    banks=(Bank("SSRAM", 0x2000_0000, 4 * MIB), Bank("PSRAM", 0x6000_0000, 16 * MIB)),
    cpu="cortex-m7",
    fpu="fpv5-d16",
)
