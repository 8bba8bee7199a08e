"""Trips of reductions over one axis (ops/reduce.c) and of the gradients of their extrema."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.calibration.sequence import negatives, records
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, bounds, is_shared, share
from tilegrad.ir.nest import Nest

# What a step of four rows and one of an element take about, to find the busiest core: by the kernel's last word.
_STEP_LOADS = {
    "i64": (33.0, 13.0), "max": (25.0, 11.0), "min": (25.0, 11.0), "l1": (23.0, 9.5), "i32": (13.0, 12.0),
    "bool": (23.0, 12.5),
}  # fmt: skip


@lru_cache(maxsize=65536)
def _reduce_share(outer: int, inner: int, length: int, loads: tuple[float, float], cores: int) -> tuple[int, int, int]:
    """Of the busiest core: blocks of four rows, runs, and the elements of runs."""
    of_four, of_one = loads
    best, most = (0, 0, 0), -1.0
    for core in range(cores):
        start, stop = bounds(outer * inner, core, cores)
        count = stop - start
        if inner == 1:
            found = count // 4, count % 4, count % 4
        else:
            found = 0, (stop - 1) // inner - start // inner + 1 if count else 0, count
        quads, runs, elements = found
        load = quads * (37 + of_four * length) + runs * (25 + 6 * length) + elements * (3 + of_one * length)
        if load > most:
            most, best = load, found
    return best


def _marked(kernel: str, length: int, is_continued: bool) -> int:
    """At how many of `length` steps the kernel's branch is taken (calibration/content.py: outputs are alike)."""
    if kernel == "reduce_l1":
        return negatives(length)
    if not kernel.startswith(("reduce_max", "reduce_min")):
        return 0
    levels = 2 if kernel.endswith("bool") else 0
    return records(length, levels, "min" in kernel, is_continued, kernel.endswith(("bool", "i32")))


def _reduce(nest: Nest) -> Counter:
    kernel = nest.kernel
    loads = _STEP_LOADS.get(kernel.rsplit("_", 1)[-1], (13.0, 7.0))

    def trips(c: Call) -> Trips:
        length = c.n["r"]
        quads, runs, elements = _reduce_share(c.n["o"], c.n["i"], length, loads, c.cores)
        marked = _marked(kernel, length, not c.first)
        return (
            1.0, is_shared(c.cores), quads, quads * (length - marked), quads * marked, quads * c.first, quads * c.last,
            runs, runs * length, runs * c.first, runs * c.last,
            elements * (length - marked), elements * marked, elements * c.first, elements * c.last,
        )  # fmt: skip

    return trips


REDUCE = Family(
    (
        "call", "shared", "quads", "quads*r", "quads*r, branching", "quads, first tile", "quads, last tile",
        "runs", "runs*r", "runs, first tile", "runs, last tile",
        "elements*r", "elements*r, branching", "elements, first tile", "elements, last tile",
    ),
    _reduce,
)  # fmt: skip


def _extremum_grad(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        outputs = share(c.n["o"] * c.n["i"], c.cores)
        steps = outputs * c.n["r"]
        if c.n["i"] == 1:
            return 1.0, is_shared(c.cores), outputs, steps, 0, 0
        return 1.0, is_shared(c.cores), 0, 0, outputs, steps

    return trips


EXTREMUM_GRAD = Family(
    ("call", "shared", "outputs", "outputs*r", "strided outputs", "strided outputs*r"), _extremum_grad
)
