"""Trips of matrix products (runtime/tg_gemm.h) and of the kernels that consist of them."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, bounds, is_absent, is_shared, share
from tilegrad.ir.nest import Nest

_NAMES = (
    "outer products", "outer products, shared", "outer rows", "outer elements, first", "outer elements, continued",
    "outer products, finished", "outer rows, finished", "outer elements, finished",
    "products", "products, shared", "with row units", "with column units",
    "blocks", "blocks*k", "blocks, continued", "blocks, finished",
    "row units", "eights", "eights*(k/4)", "eights*(k%4)", "fours", "fours*k", "ones", "ones*k",
    "column units", "column eights", "column eights*(k/4)", "column eights*(k%4)", "column fours", "column fours*k",
    "edge elements, continued", "edge elements, finished", "edge units, finished",
)  # fmt: skip
_NOTHING = (0.0,) * len(_NAMES)


def _units_of(core: int, cores: int, count: int, groups: int) -> tuple[int, int]:
    """The units of a core, and how many of them are the last of their `groups`."""
    start, stop = bounds(count, core, cores)
    return stop - start, stop // groups - start // groups


def _edges_of(core: int, cores: int, m: int, n: int) -> tuple[int, int, int, int, int, int]:
    """What a core has right of and below the blocks: row units, eights, fours, ones; column units, fours of those."""
    units = eights = fours = ones = column_units = column_fours = 0
    if m % 4:
        groups, width = -(-n // 8), (n - 1) % 8 + 1
        units, lasts = _units_of(core, cores, m % 4 * groups, groups)
        eights = units
        if width < 8:
            eights, fours, ones = units - lasts, lasts * (width // 4), lasts * (width % 4)
    if n % 4 and m >= 4:
        groups = -(-(m // 4) // 2)
        column_units, column_fours = _units_of(core, cores, n % 4 * groups, groups)
        column_fours *= m // 4 % 2
    return units, eights, fours, ones, column_units, column_fours


@lru_cache(maxsize=65536)
def _busiest(m: int, n: int, cores: int) -> tuple[int, ...]:
    """Blocks and edges of the core with most work: a ragged group takes longer than a whole one."""
    blocks = (m // 4) * (n // 4)
    best: tuple[int, ...] = ()
    most = -1.0
    for core in range(cores):
        start, stop = bounds(blocks, core, cores)
        edges = _edges_of(core, cores, m, n)
        units, eights, fours, ones, column_units, column_fours = edges
        column_eights = column_units - column_fours
        load = 28.0 * (stop - start) + 22 * (eights + column_eights) + 13 * (fours + column_fours) + 7 * ones + units
        if load > most:
            most, best = load, (stop - start, *edges)
    return best


def gemm_trips(m: int, n: int, k: int, cores: int, is_continued: bool, is_finished: bool) -> Trips:
    """Of `tg_gemm` on the busiest core."""
    if k == 1 and m > 1 and n > 1:
        rows = share(m, cores)
        elements = rows * n
        return (
            1.0, is_shared(cores), rows, elements * (not is_continued), elements * is_continued,
            float(is_finished), rows * is_finished, elements * is_finished, *_NOTHING[8:],
        )  # fmt: skip
    blocks, units, eights, fours, ones, column_units, column_fours = _busiest(m, n, cores)
    column_eights = column_units - column_fours
    edges = 8 * (eights + column_eights) + 4 * (fours + column_fours) + ones
    steps, rest = divmod(k, 4)
    return (
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        1.0, is_shared(cores), float(units > 0), float(column_units > 0),
        blocks, blocks * k, blocks * is_continued, blocks * is_finished,
        units, eights, eights * steps, eights * rest, fours, fours * k, ones, ones * k,
        column_units, column_eights, column_eights * steps, column_eights * rest, column_fours, column_fours * k,
        edges * is_continued, edges * is_finished, (units + column_units) * is_finished,
    )  # fmt: skip


def _gemm(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0 or not is_absent(nest, "c")

    def trips(c: Call) -> Trips:
        n = c.n
        return gemm_trips(n["m"], n["n"], n["k"], c.cores, not c.first, has_end and c.last)

    return trips


GEMM = Family(_NAMES, _gemm, ("alpha", "beta"))


def _times(times: float, trips: Trips) -> list[float]:
    return [times * value for value in trips]


def _matmul(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0
    is_sum = bool(nest.constants["is_sum"])

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        batches = n["g0"] * n["g1"] * n["g2"]
        shape = n["m"], n["n"], n["k"]
        if is_sum and batches > 1:
            start = gemm_trips(*shape, cores, not c.first, False)
            middle = _times(batches - 2, gemm_trips(*shape, cores, True, False))
            end = gemm_trips(*shape, cores, True, has_end and c.last)
            total = [a + b + d for a, b, d in zip(start, middle, end, strict=True)]
            return 1.0, is_shared(cores), batches, *total
        if cores > 1 and batches % cores == 0:
            own = batches // cores
            return 1.0, is_shared(cores), own, *_times(own, gemm_trips(*shape, 1, not c.first, has_end and c.last))
        once = gemm_trips(*shape, cores, not c.first, has_end and c.last)
        return 1.0, is_shared(cores), batches, *_times(batches, once)

    return trips


MATMUL = Family(("call", "shared", "batches", *_NAMES), _matmul, ("alpha", "is_sum"))


def _pointwise(rows: str, columns: str, depth: str) -> Family:
    def bind(nest: Nest) -> Counter:
        has_end = any(operand.name == "b" and operand.value is not None for operand in nest.operands)
        is_weight = nest.operands[-1].name == "dw"

        def trips(c: Call) -> Trips:
            n, cores = c.n, c.cores
            shape = n[rows], n[columns], n[depth]
            images = n["n"] * n["g"]
            total = gemm_trips(*shape, cores, not c.first, has_end and c.last)
            if is_weight and n["n"] > 1 and c.first:
                others = gemm_trips(*shape, cores, True, False)
                total = [a + (n["n"] - 1) * b for a, b in zip(total, others, strict=True)]
                return 1.0, images, *_times(n["g"], total)
            return 1.0, images, *_times(images, total)

        return trips

    return Family(("call", "images", *_NAMES), bind)


POINTWISE = _pointwise("o", "p", "i")
POINTWISE_DX = _pointwise("i", "p", "o")
POINTWISE_DW = _pointwise("o", "i", "p")
