"""A chip with one hop and no L3, as Python: two cores, 32 KB of scratchpad, 256 KB of RAM.

    tilegrad train autoencoder_tiny --target examples/target/one_hop.py

A .py target is code: it runs with your rights, and may compute what it says.
"""

import tilegrad as tg

KIB = 1024
BUS_BYTES_PER_CYCLE = 4

TIMING = tg.DmaTiming(setup_cycles=30, cycles_per_byte=1 / BUS_BYTES_PER_CYCLE)

TARGET = tg.Target(
    name="one_hop",
    summary="two cores, 32 KB L1, 256 KB L2, one DMA engine without 2-D transfers",
    memories=(
        tg.Memory("L1", capacity_bytes=32 * KIB, alignment_bytes=8),
        tg.Memory("L2", capacity_bytes=256 * KIB, alignment_bytes=8, core_extra_cycles=6),
    ),
    home="L2",
    compute="L1",
    engines=(
        tg.DmaEngine(
            name="dma", near="L1", far="L2", inward=TIMING, outward=TIMING, enqueue_cycles=12, queue_depth=2,
            longest_bytes=4096, has_2d=False, duplex=False, overlaps_setup=False,
        ),
    ),
    cores=2,
    fpus=2,
)  # fmt: skip
