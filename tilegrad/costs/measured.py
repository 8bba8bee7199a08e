"""What was measured of a chip beyond counted instructions: how kernels and the conductor really take their time.

Counts of instructions say how a kernel's time grows with its tile. What they leave out was measured on the chip's cycle
model, in whole trainings: cores that meet at a bank or at an FPU more often than on average (`factor`), the way from
the conductor to the cores and back with code that others displaced (`call`), and code that is not in the instruction
cache because others ran since (`cold`). `python -m tilegrad.calibration.chip` measures them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tilegrad.costs.conduct import Act, Conduct, PairCost

FILE = "measured.json"
_OF_TRANSFERS = ("crowded", "opposed", "far_crowded")
_FORM = ", "


def form_name(kernel: str, form: str) -> str:
    """What a kernel's loops are called where they are not those that all its tiles go to."""
    return f"{kernel}{_FORM}{form}" if form else kernel


@dataclass(frozen=True, slots=True)
class KernelScale:
    """A call takes `factor` times its estimate, `call` cycles more, and `cold` if all of its code is to be fetched.
    `calls` were measured."""

    factor: float = 1.0
    call: float = 0.0
    cold: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class Measured:
    """`kernels` by name (with the form of their loops, where they have several) and by memory that their operands are
    in; `others` are those that were never measured, by memory. `source` says where it was measured."""

    source: str
    kernels: Mapping[tuple[str, str], KernelScale]
    others: Mapping[str, KernelScale]
    conduct: Conduct = field(default_factory=Conduct)

    def scale(self, kernel: str, level: str) -> KernelScale:
        """Of a form that was never measured: what the kernel takes in the others."""
        for name in (kernel, kernel.partition(_FORM)[0]):
            if (name, level) in self.kernels:
                return self.kernels[name, level]
        return self.others.get(level, KernelScale())


@cache
def load_measured(folder: Path) -> Measured | None:
    """None: nothing was measured of this chip."""
    path = folder / FILE
    return from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def from_json(table: Mapping[str, Any]) -> Measured:
    kernels = {
        (kernel, level): KernelScale(**scale)
        for level, of_level in table["kernels"].items()
        for kernel, scale in of_level.items()
    }
    others = {level: KernelScale(**scale) for level, scale in table["others"].items()}
    conduct = table["conduct"]
    pairs = {(Act(a), Act(b)): PairCost(*cycles) for a, then in conduct["pairs"].items() for b, cycles in then.items()}
    acts = {Act(name): cycles for name, cycles in conduct["acts"].items()}
    ways = ((conduct[part]["inward"], conduct[part]["outward"]) for part in _OF_TRANSFERS)
    found = Conduct(pairs, acts, conduct["move_cycles"], conduct["calls"], *ways)
    return Measured(table["source"], kernels, others, found)


def as_json(measured: Measured) -> dict[str, Any]:
    conduct = measured.conduct
    kernels: dict[str, dict[str, Any]] = {level: {} for level in sorted({level for _, level in measured.kernels})}
    for (kernel, level), scale in sorted(measured.kernels.items()):
        kernels[level][kernel] = asdict(scale)
    pairs: dict[str, dict[str, PairCost]] = {}
    for before, act, cost in sorted((before.value, act.value, cost) for (before, act), cost in conduct.pairs.items()):
        pairs.setdefault(before, {})[act] = cost
    return {
        "source": measured.source,
        "kernels": kernels,
        "others": {level: asdict(scale) for level, scale in sorted(measured.others.items())},
        "conduct": {
            "calls": dict(sorted(conduct.calls.items())),
            **{part: dict(zip(("inward", "outward"), getattr(conduct, part), strict=True)) for part in _OF_TRANSFERS},
            "move_cycles": conduct.move_cycles,
            "acts": dict(sorted((act.value, cycles) for act, cycles in conduct.acts.items())),
            "pairs": pairs,
        },
    }
