"""Predicted instruction counts against counted ones, on tiles that were not used for fitting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilegrad.calibration.samples import Sample
from tilegrad.calibration.table import Key, collect, count_all
from tilegrad.costs.kernel_cost import KernelCosts

TILES_PER_KERNEL = 50
BOUND = 0.05


@dataclass(frozen=True)
class Prediction:
    kernel: str
    variant: str
    cores: int
    tile: str
    counted: int
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.counted - 1.0

    @property
    def is_within(self) -> bool:
        return abs(self.error) <= BOUND


def predictions(
    costs: KernelCosts, seed: int, per_kernel: int, wanted: Callable[[str], bool] = lambda _: True
) -> list[Prediction]:
    """Random tiles of every wanted kernel, counted and predicted."""
    chosen: dict[Key, list[Sample]] = {}
    by_kernel: dict[str, list[tuple[Key, Sample]]] = defaultdict(list)
    for key, samples in collect(seed, per_kernel, wanted).items():
        by_kernel[key[0]] += [(key, sample) for sample in samples]
    for pairs in by_kernel.values():
        step = max(1, len(pairs) // per_kernel)
        for key, sample in pairs[::step][:per_kernel]:
            chosen.setdefault(key, []).append(sample)
    result = []
    for (kernel, variant), items in count_all(chosen).items():
        for sample, counts in items:
            tile = sample.case.tile
            sizes, starts = {n: r.size for n, r in tile.items()}, {n: r.start for n, r in tile.items()}
            predicted = costs.mix(sample.case.nest, sizes, sample.case.cores, starts).i_total
            text = " ".join(f"{name} {r.start}:{r.stop}" for name, r in tile.items())
            result.append(Prediction(kernel, variant, sample.case.cores, text, counts.total, predicted))
    return result


def summary(found: list[Prediction]) -> Mapping[str, tuple[int, int, float, float]]:
    """By kernel: tiles, tiles within the bound, mean and largest error."""
    by_kernel: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in found:
        by_kernel[prediction.kernel].append(prediction)
    result = {}
    for kernel, predicted in sorted(by_kernel.items()):
        errors = [abs(p.error) for p in predicted]
        result[kernel] = (len(predicted), sum(p.is_within for p in predicted), sum(errors) / len(errors), max(errors))
    return result


def table_lines(found: list[Prediction]) -> list[str]:
    """Of the kernels that have a tile out of bounds, and of all together."""
    lines = ["| kernel | tiles | within 5 % | mean error | largest error |", "|---|---|---|---|---|"]
    by_kernel = summary(found)
    errors = [abs(p.error) for p in found]
    whole = len(found), sum(p.is_within for p in found), sum(errors) / len(errors), max(errors)
    outside = {kernel: row for kernel, row in by_kernel.items() if row[1] < row[0]}
    for name, (tiles, within, mean, largest) in {**outside, f"all {len(by_kernel)}": whole}.items():
        lines.append(f"| {name} | {tiles} | {within} | {100 * mean:.1f} % | {100 * largest:.1f} % |")
    return lines
