"""One flat memory, one core. A cache line of alignment lets vector kernels load whole lines."""

from tilegrad.targets.base import Memory, Target

TARGET = Target(
    name="host",
    summary="this machine: one flat memory, one core, vector kernels",
    memories=(Memory("RAM", capacity_bytes=None, alignment_bytes=64),),
    home="RAM",
    compute="RAM",
    fuses_update=False,
)
