"""From counts to coefficients: non-negative least squares, one vector per instruction class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilegrad.calibration.counting import Counts, Sample
from tilegrad.costs.derived import Structure, derived_family, plain_structure, structures
from tilegrad.costs.kernel_cost import CLASSES
from tilegrad.costs.loops.base import Counter, Family, call_of
from tilegrad.ir.nest import Nest

Matrix = npt.NDArray[np.float64]
TOLERANCE = 1e-10
ROUNDS = 6
CHOSEN_BY = 100  # samples


def non_negative_least_squares(a: Matrix, b: Matrix) -> Matrix:
    """The x >= 0 that makes |a x - b| smallest (Lawson and Hanson's active sets)."""
    scale = np.sqrt((a * a).sum(axis=0))
    used = scale > 0
    a = a / np.where(used, scale, 1.0)
    gram, target = a.T @ a, a.T @ b
    x = np.zeros(a.shape[1])
    passive = np.zeros(a.shape[1], dtype=bool)
    for _ in range(10 * a.shape[1]):
        gradient = np.where(passive | ~used, -np.inf, target - gram @ x)
        chosen = int(np.argmax(gradient))
        if gradient[chosen] <= TOLERANCE * max(1.0, float(np.abs(target).max(initial=0.0))):
            break
        passive[chosen] = True
        while True:
            inside = np.flatnonzero(passive)
            solution = np.linalg.lstsq(gram[np.ix_(inside, inside)], target[inside], rcond=1e-12)[0]
            if solution.min() > 0:
                x[:] = 0.0
                x[inside] = solution
                break
            current = x[inside]
            falling = solution <= 0
            ratios = current[falling] / np.maximum(current[falling] - solution[falling], 1e-300)
            x[inside] = current + float(ratios.min()) * (solution - current)
            passive[inside[x[inside] <= 1e-14]] = False
            x[~passive] = 0.0
            if not passive.any():
                break
    return np.asarray(x / np.where(used, scale, 1.0))


Bind = Callable[[Nest], Counter]


def _trips(samples: Sequence[Sample], bind: Bind, loads: Sequence[float]) -> Matrix:
    calls = [(one.nest, call_of(one.nest, one.sizes, one.starts, one.cores, loads)) for one in samples]
    return np.array([bind(nest)(call) for nest, call in calls], dtype=np.float64)


@dataclass(frozen=True)
class Fit:
    """Coefficients by class, and how far the totals they predict are off, relative."""

    coefficients: Mapping[str, tuple[float, ...]]
    errors: tuple[float, ...]


def _coefficients(trips: Matrix, values: npt.ArrayLike, totals: Matrix) -> tuple[float, ...]:
    """Residuals are relative to a sample's instructions, whatever its size."""
    weights = 1.0 / totals
    found = non_negative_least_squares(trips * weights[:, None], np.array(values, dtype=np.float64) * weights)
    return tuple(float(f"{value:.4g}") for value in found)


def _fit(trips: Matrix, counts: Sequence[Counts], totals: Matrix, scale: Matrix) -> Fit:
    found = {name: _coefficients(trips, [c[name] for c in counts], scale) for name in CLASSES}
    errors = trips @ np.array(found["i_total"]) / totals - 1.0
    return Fit({name: values for name, values in found.items() if any(values)}, tuple(map(float, errors)))


def _totals(counts: Sequence[Counts]) -> Matrix:
    return np.array([c["i_total"] for c in counts], dtype=np.float64)


def _busiest_trips(samples: Sequence[Sample], bind: Bind, width: int, totals: Matrix) -> Matrix:
    """Which core is the busiest depends on what its trips take: where there is one core, or few, there is little to
    choose, and what is found there chooses among more, until the choice stays."""
    fewest = min(sample.cores for sample in samples)
    few = [i for i, sample in enumerate(samples) if sample.cores == fewest]
    trips = _trips([samples[i] for i in few], bind, (1.0,) * width)
    loads = _coefficients(trips, totals[few], totals[few])
    for _ in range(ROUNDS):
        before = trips
        trips = _trips(samples, bind, loads)
        if np.array_equal(trips, before):
            break
        loads = _coefficients(trips, totals, totals)
    return trips


def fit(samples: Sequence[Sample], counts: Sequence[Counts], family: Family) -> Fit:
    totals = _totals(counts)
    return _fit(_busiest_trips(samples, family.bind, len(family.names), totals), counts, totals, totals)


def fit_typical(samples: Sequence[Sample], counts: Sequence[Counts], family: Family) -> Fit:
    """For kernels of many kinds, where no coefficients fit: twice too much is as wrong as half."""
    trips = _trips(samples, family.bind, (1.0,) * len(family.names))
    scale = totals = _totals(counts)
    for _ in range(ROUNDS):
        predicted = trips @ np.array(_coefficients(trips, totals, scale))
        scale = np.sqrt(totals * predicted)
    return _fit(trips, counts, totals, scale)


def choose_structure(samples: Sequence[Sample], counts: Sequence[Counts]) -> Structure:
    """The one whose trips explain the counts best, variant by variant."""
    step = -(-len(samples) // CHOSEN_BY)
    samples, counts = samples[::step], counts[::step]
    totals, nest = _totals(counts), samples[0].nest
    best, least = plain_structure(nest), np.inf
    known: set[bytes] = set()
    for structure in structures(nest):
        family = derived_family(nest, structure)
        trips = _trips(samples, family.bind, (1.0,) * len(family.names))
        if trips.tobytes() in known:
            continue
        known.add(trips.tobytes())
        variants = np.array([family.variant(sample.nest) for sample in samples])
        error = 0.0
        for variant in set(variants):
            a = trips[variants == variant] / totals[variants == variant, None]
            error += float(np.abs(a @ non_negative_least_squares(a, np.ones(len(a))) - 1.0).sum())
        if error < least - 1e-6:
            best, least = structure, error
    return best
