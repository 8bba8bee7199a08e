"""One global memory, whose size only the device knows. Buffers start at 128 bytes, so that wide loads are aligned."""

from tilegrad.targets.base import OPENCL_C, Memory, Target

TARGET = Target(
    name="opencl",
    summary="an accelerator reached through OpenCL: one global memory, a work item is a core",
    memories=(Memory("RAM", capacity_bytes=None, alignment_bytes=128),),
    home="RAM",
    compute="RAM",
    fuses_update=False,
    language=OPENCL_C,
)
