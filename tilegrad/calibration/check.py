"""Predicted instruction counts against counted ones, on tiles that were not used for fitting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilegrad.calibration.counting import Sample
from tilegrad.calibration.document import percents
from tilegrad.calibration.table import collect, count_all
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.costs.loops import is_mirrored

TILES_PER_KERNEL = 50
LARGE_CALL = 2000  # instructions
NOBODY = "nobody_counted_this"


@dataclass(frozen=True)
class Bounds:
    """Of the errors of all tiles together: their mean, what a share of them is within, and what all are that take
    `LARGE_CALL` or more, and less."""

    mean: float
    usual: float
    share: float
    most: float
    most_small: float


# A product with one to three columns may take a shorter way than what its trips say; it has no time to be far off.
MIRRORED = Bounds(0.02, 0.05, 0.95, 0.35, 1.0)
# Reductions and gathers that branch on data, and tiles of a few elements, are far off: their cycles are few.
DERIVED = Bounds(0.06, 0.15, 0.90, 10.0, 10.0)


@dataclass(frozen=True)
class Prediction:
    """`guessed` is what the kernel would be taken for if nobody had counted it."""

    kernel: str
    tile: str
    counted: int
    predicted: float
    guessed: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.counted - 1.0)

    @property
    def guess_error(self) -> float:
        return abs(self.guessed / self.counted - 1.0)


def predictions(
    costs: KernelCosts, seed: int, per_kernel: int, wanted: Callable[[str], bool] = lambda _: True
) -> list[Prediction]:
    """Random tiles of every wanted kernel, counted and predicted."""
    by_kernel: dict[str, list[Sample]] = defaultdict(list)
    for (kernel, _), samples in collect(seed, per_kernel, wanted).items():
        by_kernel[kernel] += samples
    chosen = {
        kernel: samples[:: max(1, len(samples) // per_kernel)][:per_kernel] for kernel, samples in by_kernel.items()
    }
    result = []
    for kernel, items in count_all(chosen).items():
        for sample, counts in items:
            predicted, guessed = (
                costs.mix(nest, sample.sizes, sample.cores, sample.starts)["i_total"]
                for nest in (sample.nest, replace(sample.nest, kernel=NOBODY))
            )
            text = " ".join(f"{name} {r.start}:{r.stop}" for name, r in sample.tile.items())
            result.append(Prediction(kernel, text, counts["i_total"], predicted, guessed))
    return result


def complaints(found: Sequence[Prediction]) -> list[str]:
    """What is out of bounds."""
    told = []
    for word, bounds in (("mirrored", MIRRORED), ("derived", DERIVED)):
        own = [p for p in found if is_mirrored(p.kernel) is (bounds is MIRRORED)]
        errors = np.array([p.error for p in own] or [0.0])
        mean, within = 100 * errors.mean(), 100 * (errors <= bounds.usual).mean()
        if mean > 100 * bounds.mean:
            told.append(f"{word} kernels are {mean:.1f} % off on average")
        if within < 100 * bounds.share:
            told.append(f"only {within:.1f} % of the tiles of {word} kernels are within {100 * bounds.usual:.0f} %")
        for p in own:
            if p.error > (bounds.most if p.counted >= LARGE_CALL else bounds.most_small):
                told.append(f"{p.kernel} {p.tile}: {100 * p.error:.1f} % off")
    return told


def table_lines(found: Sequence[Prediction]) -> list[str]:
    """The distribution of errors, by how trips are known; and if nobody had counted the kernel."""
    derived = [p for p in found if not is_mirrored(p.kernel)]
    large = [p for p in derived if p.counted >= LARGE_CALL]
    groups = {
        "mirrored": [p.error for p in found if is_mirrored(p.kernel)],
        "derived": [p.error for p in derived],
        f"derived, calls of {LARGE_CALL:,} instructions or more": [p.error for p in large],
        "any, if it were uncounted": [p.guess_error for p in found],
    }
    lines = [
        "| trips | tiles | mean error | median | 90th percentile | 99th percentile | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, errors in groups.items():
        if errors:
            figures = (np.mean(errors), *np.percentile(errors, (50, 90, 99)), max(errors))
            lines.append(percents(name, figures, len(errors)))
    return lines
