"""A Cortex-M55 on the board mps3-an547: RAM in three banks.

Its vector unit flushes subnormals, so floating point stays scalar (`+nomve.fp`); integers may use vectors.
"""

from tilegrad.targets.board import KIB, MIB, Bank
from tilegrad.targets.cortex_m import cortex_m

TARGET = cortex_m(
    name="cortex_m55",
    summary="Cortex-M55 (mps3-an547): 1 core, 6.5 MB of RAM in three banks, portable kernels",
    code=Bank("ITCM", 0x0000_0000, 512 * KIB),
    banks=(
        Bank("DTCM", 0x2000_0000, 512 * KIB),
        Bank("SRAM", 0x0100_0000, 2 * MIB),
        Bank("ISRAM", 0x2100_0000, 4 * MIB),
    ),
    cpu="cortex-m55+nomve.fp",
    fpu="auto",
)
