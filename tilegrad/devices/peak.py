"""The most that a device can do in a second or a cycle: what a measured step is held against by people who tune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilegrad.build.toolchain import Toolchain, build
from tilegrad.build.tools import Tools
from tilegrad.build.workspace import Workspace
from tilegrad.errors import DeviceError
from tilegrad.targets.base import Target

_RUNS = 5
_RUN_SECONDS = 60
_PROGRAM = b"""/* Multiply-adds of one core, and bytes that it reads: the most per second. */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { LANES = 256, ROUNDS = 400000, WORDS = 1 << 22 };
static float sums[LANES];
static float words[WORDS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    (void)argv;
    float a = 0.5f + (float)argc, local[LANES];
    for (int i = 0; i < LANES; i++)
        local[i] = (float)i;
    double start = now();
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < LANES; i++)
            local[i] = __builtin_fmaf(a, local[i], 1.0f);
    double macs = (double)ROUNDS * LANES / (now() - start);
    for (int i = 0; i < WORDS; i++)
        words[i] = (float)(i & 15);
    start = now();
    for (int i = 0; i < WORDS; i += LANES)
        for (int k = 0; k < LANES; k++)
            sums[k] += words[i + k];
    double bytes = (double)sizeof words / (now() - start);
    float total = 0.0f;
    for (int i = 0; i < LANES; i++)
        total += sums[i] + local[i];
    printf("%.9g %.9g %g\\n", macs, bytes, (double)total);
    return 0;
}
"""


@dataclass(frozen=True)
class Peak:
    """`how` says where it is from. None is what the device does not have; bytes are by hop (`L2-L1`, or `RAM`)."""

    how: str
    macs_per_second: float | None = None
    macs_per_cycle: float | None = None
    bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    bytes_per_cycle: Mapping[str, float] = field(default_factory=dict)


def described_peak(target: Target) -> Peak:
    """Of a chip with a scratchpad, from its description: multiply-adds of all FPUs, bytes of each engine."""
    macs = float(min(target.fpus, target.cores))
    moved = {engine.hop: 1.0 / engine.inward.cycles_per_byte for engine in target.engines}
    clock = target.clock_hz
    return Peak(
        f"the description of {target.name}",
        macs * clock if clock else None,
        macs,
        {hop: each * clock for hop, each in moved.items()} if clock else {},
        moved,
    )


def measured_peak(toolchain: Toolchain) -> Peak:
    """Of one core of this machine, the best of a few runs."""
    workspace = Workspace()
    with workspace.kept_on_failure() as folder:
        files = {"peak.c": _PROGRAM}
        (folder / "peak.c").write_bytes(_PROGRAM)
        program = build(toolchain, folder, files, "peak")
        runs = [_run(program, folder) for _ in range(_RUNS)]
    workspace.close()
    return Peak(
        "measured on one core of this machine",
        max(macs for macs, _ in runs),
        None,
        {"RAM": max(moved for _, moved in runs)},
    )


def _run(program: Path, folder: Path) -> tuple[float, float]:
    done = Tools(_RUN_SECONDS).run([str(program)], folder)
    if done.returncode != 0:
        raise DeviceError(f"the program that measures the peak ended with {done.returncode}", stage="measure")
    macs, moved, _ = map(float, done.stdout.split())
    return macs, moved
