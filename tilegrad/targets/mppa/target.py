"""A many-cluster accelerator card, of which blocks of a launch take all clusters (docs/blocks.md).

Nothing here was measured on the chip: its tools are not public. Bandwidths are round numbers in the order of the
published ones, and kernels cost what they cost on an RV32 core of Siracusa. So every estimate says that it is
uncalibrated. Sizes and core counts are the chip's.
"""

from tilegrad.targets.base import L1, L2, L3, CoreCosts, DmaEngine, DmaTiming, Memory, Target

MIB = 1024 * 1024

TARGET = Target(
    name="mppa",
    summary="Kalray MPPA: 5 clusters of 16 cores, 4 MB SMEM each, DDR",
    memories=(
        # SMEM, all of it: code, stacks and the vendor's runtime would take a part (--l1).
        Memory(L1, capacity_bytes=4 * MIB, alignment_bytes=64, core_extra_cycles=0),
        # DDR of the card: cores reach it through a small cache; 32 bytes per cycle are for all clusters together.
        Memory(L2, capacity_bytes=1024 * MIB, alignment_bytes=64, core_extra_cycles=30, bytes_per_cycle=32.0),
        # The memory of the machine that the card is in, over PCIe: cores cannot address it.
        Memory(L3, capacity_bytes=1024 * MIB, alignment_bytes=64, core_extra_cycles=None),
    ),
    home=L2,
    compute=L1,
    engines=(
        DmaEngine(
            name="dma",
            near=L1,
            far=L2,
            inward=DmaTiming(setup_cycles=200.0, cycles_per_byte=1 / 16, cycles_per_extra_row=4.0),
            outward=DmaTiming(setup_cycles=200.0, cycles_per_byte=1 / 16, cycles_per_extra_row=4.0),
            enqueue_cycles=20,
            queue_depth=8,
            longest_bytes=16 * MIB,
            has_2d=True,
            duplex=True,
            overlaps_setup=True,
        ),
        DmaEngine(
            name="pcie",
            near=L2,
            far=L3,
            inward=DmaTiming(setup_cycles=2000.0, cycles_per_byte=1 / 4),
            outward=DmaTiming(setup_cycles=2000.0, cycles_per_byte=1 / 4),
            enqueue_cycles=100,
            queue_depth=2,
            longest_bytes=16 * MIB,
            has_2d=False,
            duplex=True,
            overlaps_setup=False,
        ),
    ),
    cores=16,
    clusters=5,
    signal_cycles=200,  # a store to another cluster and back, as a transfer's set-up
    fpus=16,
    clock_hz=1_000_000_000,
    costs=CoreCosts(),
    is_calibrated=False,
    runtime="siracusa",  # the tile runtime's header and the table of kernel costs
)
