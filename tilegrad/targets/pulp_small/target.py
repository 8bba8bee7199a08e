"""Siracusa's cluster with half the scratchpad and less L2: what a cheaper sibling would look like.

Nothing of it was measured, so every estimate says that it is uncalibrated: costs are Siracusa's.
"""

from dataclasses import replace

from tilegrad.targets.base import L1, L2, WORKER
from tilegrad.targets.siracusa.target import KIB
from tilegrad.targets.siracusa.target import TARGET as SIRACUSA

TARGET = replace(
    SIRACUSA.with_capacity(L1, 112 * KIB).with_capacity(L2, 1408 * KIB),
    name="pulp_small",
    summary="PULP-like cluster: 8 cores, 4 shared FPUs, 128 KB L1, 1.5 MB L2, 8 MB HyperRAM",
    conductor=WORKER,
    is_calibrated=False,
    runtime="siracusa",
)
