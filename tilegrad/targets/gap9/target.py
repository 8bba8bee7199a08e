"""GAP9's cluster, by its public figures: eight workers and a controller, 128 KB of scratchpad, 1.5 MB of L2.

Nothing of it was measured: engines and costs are Siracusa's, a relative, so every estimate says that it is
uncalibrated.
"""

from dataclasses import replace

from tilegrad.targets.base import L1, L2
from tilegrad.targets.siracusa.target import KIB
from tilegrad.targets.siracusa.target import TARGET as SIRACUSA

# Of 128 KB, as on Siracusa: nine stacks and the runtime's own at its top.
L1_ARENA_BYTES = 112 * KIB
# Of 1.5 MB, less the image: code and constant tables.
L2_ARENA_BYTES = 1328 * KIB

TARGET = replace(
    SIRACUSA.with_capacity(L1, L1_ARENA_BYTES).with_capacity(L2, L2_ARENA_BYTES),
    name="gap9",
    summary="GAP9's cluster: 8 + 1 cores, 4 shared FPUs, 128 KB L1, 1.5 MB L2, 8 MB of external RAM",
    is_calibrated=False,
    runtime="siracusa",
)
