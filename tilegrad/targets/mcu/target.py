"""A Cortex-M7 class microcontroller: everything in one memory that the core addresses at full speed."""

from tilegrad.targets.base import RAM, Memory, Target

KIB = 1024

TARGET = Target(
    name="mcu",
    summary="microcontroller: 1 core, 1 MB of flat RAM, portable kernels",
    memories=(Memory(RAM, capacity_bytes=1024 * KIB, alignment_bytes=8),),
    home=RAM,
    compute=RAM,
)
