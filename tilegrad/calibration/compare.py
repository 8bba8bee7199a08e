"""`python -m tilegrad.calibration.compare`: the cost model against measurements on the chip's cycle model.

The calibration set (siracusa_cycles.csv) has kernels of ours with their instruction counts and their cycles, measured
on the open-source cycle model of the chip; the formula of costs/kernel_cost.py must reproduce the cycles from the
counts. The figures of the DMA engines are measured too, and must follow from the target's description.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilegrad.calibration.document import percents
from tilegrad.costs.kernel_cost import CLASSES, cycles_of_mix
from tilegrad.targets.base import L1, L2, L3, Target, get

MEASUREMENTS = Path(__file__).parent / "siracusa_cycles.csv"
MOST_KERNEL_ERROR, USUAL_KERNEL_ERROR, USUAL_SHARE = 0.30, 0.12, 0.90
MOST_DMA_ERROR = 0.02

# The cycle model's clocks: HyperRAM transfers were measured in cycles of the fabric controller, without set-up.
CLUSTER_PER_FC_CYCLE = 1.4407
HYPER_SETUP_FC_CYCLES = (151, 183)


@dataclass(frozen=True)
class Row:
    """One line of a comparison."""

    name: str
    measured: float
    estimated: float

    @property
    def error(self) -> float:
        return self.estimated / self.measured - 1.0


def kernel_rows(target: Target) -> list[tuple[str, Row]]:
    """(level and cores, row) of every measured kernel call but the empty one."""
    result = []
    with MEASUREMENTS.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            if line["kernel"] == "nop":
                continue
            counts = {name: float(line[name]) for name in (*CLASSES, "all_fdiv_sqrt")}
            level, cores = line["level"], int(line["cores"])
            estimated = cycles_of_mix(counts, target, level, cores)
            shape = " ".join(f"{key}{line[key]}" for key in ("m", "n", "k", "c", "h", "w", "oc") if line[key])
            row = Row(f"{line['kernel']} {shape}", float(line["cycles_median"]), estimated)
            result.append((f"{level}, {cores} core{'s' if cores > 1 else ''}", row))
    return result


# Bytes and rows, then measured cluster cycles.
_MCHAN_INWARD = (
    (64, 1, 23), (1024, 1, 143), (4096, 1, 527), (16384, 1, 2063), (65536, 1, 8207), (4096, 64, 529), (16384, 64, 2065),
)  # fmt: skip
_MCHAN_OUTWARD = ((65536, 1, 8462),)
# Bytes, then measured cycles of the fabric controller, transfer only.
_HYPER_INWARD = ((64, 76), (1024, 752), (4096, 2880), (16384, 11402), (65536, 45524))
_HYPER_OUTWARD = ((64, 104), (1024, 1308), (4096, 5148), (16384, 20511), (65536, 81952))


def dma_rows(target: Target) -> list[Row]:
    mchan, hyper = target.engine(L2, L1), target.engine(L3, L2)
    rows = []
    for way, timing, figures in (("in", mchan.inward, _MCHAN_INWARD), ("out", mchan.outward, _MCHAN_OUTWARD)):
        for size, lines, cycles in figures:
            shape = f"{size} B" if lines == 1 else f"{lines} x {size // lines} B"
            rows.append(Row(f"L2-L1 {way}, {shape}", cycles, timing.cycles(size, lines)))
    setup = sum(HYPER_SETUP_FC_CYCLES) / 2
    for way, timing, sizes in (("in", hyper.inward, _HYPER_INWARD), ("out", hyper.outward, _HYPER_OUTWARD)):
        for size, cycles in sizes:
            measured, estimated = (cycles + setup) * CLUSTER_PER_FC_CYCLE, hyper.enqueue_cycles + timing.cycles(size)
            rows.append(Row(f"L3-L2 {way}, {size} B", measured, estimated))
    return rows


def _kernel_table(rows: Iterable[tuple[str, Row]]) -> list[str]:
    groups: dict[str, list[float]] = defaultdict(list)
    for group, row in rows:
        groups[group].append(row.error)
    groups["all"] = [error for errors in groups.values() for error in errors]
    lines = [
        "| level, cores | rows | mean abs | median abs | 90th percentile | largest | bias | within 12 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, errors in groups.items():
        sizes, ninetieth = np.abs(errors), np.percentile(np.abs(errors), 90, method="higher")
        within = (sizes <= USUAL_KERNEL_ERROR).mean()
        figures = sizes.mean(), np.median(sizes), ninetieth, sizes.max(), sum(errors) / len(errors), within
        lines.append(percents(group, figures, len(errors)))
    return lines


def report(target: Target) -> tuple[dict[str, list[str]], list[str]]:
    """The tables of kernels and transfers, and what is out of bounds."""
    kernels, transfers = kernel_rows(target), dma_rows(target)
    judged = [(f"{row.name} ({group})", row.error, MOST_KERNEL_ERROR) for group, row in kernels]
    judged += [(row.name, row.error, MOST_DMA_ERROR) for row in transfers]
    complaints = [f"{name}: {100 * error:+.1f} %" for name, error, most in judged if abs(error) > most]
    usual = sum(abs(row.error) <= USUAL_KERNEL_ERROR for _, row in kernels) / len(kernels)
    if usual < USUAL_SHARE:
        complaints.append(f"only {100 * usual:.1f} % of the kernel calls are within {100 * USUAL_KERNEL_ERROR:.0f} %")
    lines = ["| transfer | measured | estimated | error |", "|---|---|---|---|"]
    for row in transfers:
        lines.append(f"| {row.name} | {row.measured:.0f} | {row.estimated:.0f} | {100 * row.error:+.1f} % |")
    return {"kernels": _kernel_table(kernels), "transfers": lines}, complaints


def main() -> int:
    tables, complaints = report(get("siracusa"))
    for lines in tables.values():
        print("\n".join(lines))
        print()
    print("\n".join(complaints) if complaints else "every figure is within its bound")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
