"""Figures measured on the chip's open-source cycle model (see docs/cost-model.md)."""

from tilegrad.targets.base import CONTROLLER, L1, L2, L3, CoreCosts, DmaEngine, DmaTiming, Memory, Target

KIB = 1024
# 256 KB of scratchpad, of which the nine stacks and the runtime's own at its top take 16 KB.
L1_ARENA_BYTES = 240 * KIB
# The shared part of L2, less the image: code and constant tables. The largest zoo model takes 194 KB of it.
L2_SHARED_BYTES = 0x1F0000
IMAGE_BYTES = 208 * KIB
# HyperRAM timings were taken in fabric-controller cycles; the cluster's clock runs this much faster.
CLUSTER_PER_FC_CYCLE = 1.4407

TARGET = Target(
    name="siracusa",
    summary="PULP cluster: 8 + 1 cores, 4 shared FPUs, 256 KB L1, 2 MB L2, 8 MB HyperRAM",
    memories=(
        Memory(L1, capacity_bytes=L1_ARENA_BYTES, alignment_bytes=8, core_extra_cycles=0),
        Memory(L2, capacity_bytes=L2_SHARED_BYTES - IMAGE_BYTES, alignment_bytes=8, core_extra_cycles=14),
        Memory(L3, capacity_bytes=8 * KIB * KIB, alignment_bytes=8, core_extra_cycles=None),
    ),
    home=L2,
    compute=L1,
    engines=(
        DmaEngine(
            name="mchan",
            near=L1,
            far=L2,
            inward=DmaTiming(setup_cycles=15.0, cycles_per_byte=1 / 8, cycles_per_extra_row=0.03),
            outward=DmaTiming(setup_cycles=15.0, cycles_per_byte=1.031 / 8, cycles_per_extra_row=0.03),
            enqueue_cycles=5,
            queue_depth=8,
            longest_bytes=131071,
            has_2d=True,
            duplex=True,
            overlaps_setup=True,
        ),
        DmaEngine(
            name="hyper",
            near=L2,
            far=L3,
            inward=DmaTiming(
                setup_cycles=32.5 * CLUSTER_PER_FC_CYCLE, cycles_per_byte=0.6943 * CLUSTER_PER_FC_CYCLE
            ),
            outward=DmaTiming(
                setup_cycles=24.5 * CLUSTER_PER_FC_CYCLE, cycles_per_byte=1.2502 * CLUSTER_PER_FC_CYCLE
            ),
            enqueue_cycles=241,  # registers behind a slow bus
            queue_depth=34,  # HYPER_WAITING and HYPER_CHANNELS of chip/tg_chip.c
            longest_bytes=1 << 20,
            has_2d=False,
            duplex=False,
            overlaps_setup=False,
        ),
    ),
    cores=8,
    fpus=4,
    conductor=CONTROLLER,
    clock_hz=360_000_000,
    costs=CoreCosts(),
)
