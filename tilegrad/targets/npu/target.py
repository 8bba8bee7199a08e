"""An accelerator of many blocks, each with a matrix engine and two vector lanes, over one global memory.

No chip: figures are those of a design, nothing was measured, and every estimate says that it is uncalibrated.
"""

from tilegrad.targets.base import CONTROLLER, L1, L2, ComputeEngine, CoreCosts, DmaEngine, DmaTiming, Memory, Target

KIB = 1024
BLOCK_BYTES_PER_CYCLE = 64  # of one block, each way
LATENCY_CYCLES = 300.0  # of global memory

TARGET = Target(
    name="npu",
    summary="24 blocks, each with a matrix engine (512 KB) and two vector lanes (192 KB each), global memory",
    memories=(
        # The largest of a block's scratchpads: engines say what of it is theirs.
        Memory(L1, capacity_bytes=512 * KIB, alignment_bytes=64, core_extra_cycles=0),
        Memory(L2, capacity_bytes=1024 * KIB * KIB, alignment_bytes=64, core_extra_cycles=300, bytes_per_cycle=800.0),
    ),
    home=L2,
    compute=L1,
    engines=(
        DmaEngine(
            name="dma",
            near=L1,
            far=L2,
            inward=DmaTiming(setup_cycles=LATENCY_CYCLES, cycles_per_byte=1 / BLOCK_BYTES_PER_CYCLE),
            outward=DmaTiming(setup_cycles=LATENCY_CYCLES, cycles_per_byte=1 / BLOCK_BYTES_PER_CYCLE),
            enqueue_cycles=4,
            queue_depth=8,
            longest_bytes=1 << 24,
            has_2d=True,
            duplex=True,
            overlaps_setup=True,
        ),
    ),
    compute_engines=(
        ComputeEngine("matrix", scratch_bytes=512 * KIB, macs_per_cycle=256.0),
        ComputeEngine("vector", scratch_bytes=192 * KIB, elements_per_cycle=64.0, lanes=2),
    ),
    clusters=24,
    signal_cycles=60,
    conductor=CONTROLLER,
    clock_hz=1_000_000_000,
    costs=CoreCosts(),
    is_calibrated=False,
    runtime="siracusa",  # the tile runtime's header
)
