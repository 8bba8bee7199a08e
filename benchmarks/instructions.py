"""Instructions of one training step on emulated boards, by operator, and how harts share them.

The counts are exact and the same on every run and every machine with the same compiler: QEMU counts each instruction of
each hart. Instructions per multiply-accumulate are of the `step` entry on one hart of `qemu:riscv32`, batch 1.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegrad.api import Recipe, load, open_device
from tilegrad.compiled import Compiled
from tilegrad.data.samples import make_batches
from tilegrad.devices.qemu import MACHINES, QemuDevice, QemuSession
from tilegrad.devices.qemu_counts import Counts
from tilegrad.pipeline import compile_model
from tilegrad.targets import base as targets

RESULTS = Path(__file__).parent / "INSTRUCTIONS.md"
DEVICE = "qemu:riscv32"
MOST_PER_MAC = {"resnet8": 2.2, "dscnn": 2.8, "autoencoder": 3.5}
"""What must not be exceeded; naive code needs over 6."""

HARTS = 8
SMALLEST_SHARE = 0.002
"""Rows below this share of the instructions are summed up."""


@dataclass(frozen=True)
class Row:
    """One kernel, the operators that call it, and its share of a step."""

    operators: str
    kernel: str
    macs: int
    instructions: int


def compiled_for(model: str, cores: int, device: str = DEVICE) -> Compiled:
    return compile_model(load(model), Recipe(), targets.get(QemuDevice.target_of(device)).with_cores(cores))


def counts_of(compiled: Compiled, device_name: str = DEVICE) -> Counts:
    """Of one step, on a machine started for it."""
    with open_device(device_name) as device:
        session = device.load(compiled)
        assert isinstance(session, QemuSession)
        session.launch("step", make_batches(compiled, None).batch(0))
        return session.counts()


def rows_of(compiled: Compiled, counts: Counts) -> list[Row]:
    macs: dict[str, int] = defaultdict(int)
    operators: dict[str, dict[str, None]] = defaultdict(dict)
    for launch in compiled.plan.schedule.entries["step"].launches:
        for nest in launch.nests:
            macs[nest.kernel] += nest.macs
            operators[nest.kernel][launch.node.op] = None
    rows = [
        Row(", ".join(operators[kernel]), kernel, macs[kernel], sum(by_core))
        for kernel, by_core in counts.kernels.items()
        if kernel in operators
    ]
    rest = counts.total - sum(row.instructions for row in rows)
    return [*sorted(rows, key=lambda row: -row.instructions), Row("between kernels", "", 0, rest)]


def table(compiled: Compiled, counts: Counts) -> str:
    lines = ["| operator | kernel | MACs | instructions | share | per MAC |", "|---|---|---:|---:|---:|---:|"]
    small = Row("the rest", "", 0, 0)

    def line(row: Row) -> str:
        per_mac = f"{row.instructions / row.macs:.2f}" if row.macs else ""
        kernel = f"`{row.kernel}`" if row.kernel else ""
        macs = f"{row.macs:,}" if row.macs else ""
        share = row.instructions / counts.total
        return f"| {row.operators} | {kernel} | {macs} | {row.instructions:,} | {share:.1%} | {per_mac} |"

    for row in rows_of(compiled, counts):
        if row.instructions < SMALLEST_SHARE * counts.total:
            small = Row(small.operators, "", small.macs + row.macs, small.instructions + row.instructions)
        else:
            lines.append(line(row))
    macs = compiled.plan.schedule.macs("step")
    return "\n".join([*lines, line(small), line(Row("**step**", "", macs, counts.total))])


def section(model: str) -> tuple[str, bool]:
    """A model's part of the report, and whether it is within what must not be exceeded."""
    alone = compiled_for(model, 1)
    one = counts_of(alone)
    many = counts_of(compiled_for(model, HARTS))
    per_mac = one.total / alone.plan.schedule.macs("step")
    most = MOST_PER_MAC.get(model)
    is_within = most is None or per_mac <= most
    bound = "" if most is None else f" (at most {most})"
    text = (
        f"## {model}\n\n"
        f"{one.total:,} instructions, **{per_mac:.2f} per MAC**{bound}. On {HARTS} harts the busiest executes "
        f"{many.busiest:,}: {one.busiest / many.busiest:.2f} times fewer.\n\n{table(alone, one)}\n"
    )
    return text, is_within


def boards(models: Sequence[str]) -> str:
    """Instructions per MAC of a step on one core of every board that is here."""
    here = [name for name in MACHINES if QemuDevice.missing(name) is None]
    lines = [f"| model | {' | '.join(f'`{name}`' for name in here)} |", "|---|" + "---:|" * len(here)]
    for model in models:
        cells = []
        for name in here:
            compiled = compiled_for(model, 1, name)
            cells.append(f"{counts_of(compiled, name).total / compiled.plan.schedule.macs('step'):.2f}")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "## One core of each board, instructions per MAC\n\n" + "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MOST_PER_MAC))
    options = parser.parse_args(arguments)
    reason = QemuDevice.missing(DEVICE)
    if reason is not None:
        print(f"left out: {DEVICE} cannot be used here: {reason}")
        return 0
    parts, over = [], []
    for model in options.models:
        text, is_within = section(model)
        print(text, flush=True)
        parts.append(text)
        over += [] if is_within else [model]
    parts.append(boards(options.models))
    print(parts[-1], flush=True)
    if options.models == list(MOST_PER_MAC):
        title = "# Instructions of one training step on RISC-V\n\n"
        RESULTS.write_text(title + f"{(__doc__ or '').strip()}\n\n" + "\n".join(parts), encoding="utf-8")
        print(f"written to {RESULTS.name}")
    for model in over:
        print(f"{model} takes more instructions than it may")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
