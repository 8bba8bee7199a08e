"""A Cortex-M7 class microcontroller: RAM that the core addresses at full speed, and flash that it reads."""

from tilegrad.targets.base import FLASH, RAM, Memory, Target

KIB = 1024

TARGET = Target(
    name="mcu",
    summary="microcontroller: 1 core, 1 MB of flat RAM, 2 MB of flash, portable kernels",
    memories=(
        Memory(RAM, capacity_bytes=1024 * KIB, alignment_bytes=8),
        Memory(FLASH, capacity_bytes=2048 * KIB, alignment_bytes=8),
    ),
    home=RAM,
    compute=RAM,
)
