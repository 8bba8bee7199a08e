"""Estimated cycles of one update of each zoo model on `sim:siracusa`, and how much of the transfers they hide.

The figures are estimates from counted instructions (docs/cost-model.md), the same on every run and every machine.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import truth
from tilegrad import zoo
from tilegrad.api import Recipe, load, open_device
from tilegrad.pipeline import compile_model
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.timing import EntryTiming
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1
from tilegrad.training.train import Run, train

RESULTS = Path(__file__).parent / "CLUSTER.md"
KIB = 1024
L1_KIB = (128, 240)
MODES = ("single", "double", "auto")
FIRST = "## Estimated: every mode"
HEADER = f"""{FIRST}

`sim:siracusa`, 8 cores, batch 1, SGD, frozen BatchNorm statistics, home auto. Estimated cycles of `step` and `update`
together, estimated MAC per cycle, and the estimated share of the hideable DMA time during which cores compute
(hideable: the smaller of a hop's DMA time and the compute time). {L1_KIB[1]} KB of L1 are all that the chip has for
tensors.
"""


def run_of(model: str, l1_kib: int, mode: str) -> Run:
    target = targets.get("siracusa").with_capacity(L1, l1_kib * KIB)
    compiled = compile_model(load(model), Recipe(), target, options=ScheduleOptions(buffering=mode))
    with open_device("sim:siracusa") as device:
        return train(compiled, device, steps=1, verify=False, keep_gradients=False)


def hidden_text(timing: EntryTiming) -> str:
    shares = []
    for hop in timing.hops.values():
        hideable = min(hop.busy_cycles, timing.compute_cycles)
        shares.append(f"{100 * hop.hidden_cycles / hideable:.0f} %" if hideable else "-")
    return " / ".join(shares)


def table(l1_kib: int) -> list[str]:
    lines = [
        f"### L1 of {l1_kib} KB",
        "",
        "| model | single, estimated | double, estimated | auto, estimated | MAC/cycle, double, estimated "
        "| hidden by double, L2-L1 / L3-L2, estimated |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for model in zoo.names():
        runs = {mode: run_of(model, l1_kib, mode) for mode in MODES}
        cycles = [f"{sum(entry.cycles for name, entry in run.estimates.items() if name != 'infer'):,.0f}"
                  for run in runs.values()]  # fmt: skip
        double = runs["double"]
        hidden = hidden_text(double.estimates["step"])
        lines.append(f"| `{model}` | {' | '.join(cycles)} | {double.macs_per_cycle:.2f} | {hidden} |")
    return lines


def main() -> None:
    parts = [HEADER.rstrip("\n"), *("\n".join(table(l1_kib)) for l1_kib in L1_KIB)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    before, _, _ = RESULTS.read_text(encoding="utf-8").partition(FIRST)  # measurements, which are not made here
    RESULTS.write_text(truth.filled(before + text, "benchmarks/CLUSTER.md"), encoding="utf-8")
    print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
