"""Trips of matrix products (runtime/tg_gemm.h) and of the kernels that consist of them."""

from __future__ import annotations

from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, is_absent, is_shared, share
from tilegrad.ir.nest import Nest

_NAMES = (
    "outer rows", "outer elements, first", "outer elements, continued", "outer elements, finished",
    "blocks", "blocks*k", "blocks, continued", "blocks, finished",
    "row units", "eights", "eights*(k/4)", "eights*(k%4)", "fours", "fours*k", "ones", "ones*k",
    "column units", "column eights", "column eights*(k/4)", "column eights*(k%4)", "column fours", "column fours*k",
    "edge elements, continued", "edge elements, finished", "edge units, finished",
)  # fmt: skip
_NOTHING = (0.0,) * len(_NAMES)


def gemm_trips(m: int, n: int, k: int, cores: int, is_continued: bool, is_finished: bool) -> Trips:
    """Of `tg_gemm` on the first core, which has the largest share of everything."""
    if k == 1 and m > 1 and n > 1:
        rows = share(m, cores)
        elements = rows * n
        return (
            rows, elements * (not is_continued), elements * is_continued, elements * is_finished, *_NOTHING[4:],
        )
    m_blocks, n_blocks = m // 4, n // 4
    blocks = share(m_blocks * n_blocks, cores)
    eights = fours = ones = units = 0
    if m % 4:
        groups = -(-n // 8)
        units = share(m % 4 * groups, cores)
        lasts = units // groups
        eights, width = units - lasts, n - 8 * (groups - 1)
        if width == 8:
            eights = units
        else:
            fours, ones = lasts * (width // 4), lasts * (width % 4)
    column_eights = column_fours = column_units = 0
    if n % 4 and m_blocks:
        groups = -(-m_blocks // 2)
        column_units = share(n % 4 * groups, cores)
        column_fours = column_units // groups if m_blocks % 2 else 0
        column_eights = column_units - column_fours
    edges = 8 * (eights + column_eights) + 4 * (fours + column_fours) + ones
    steps, rest = divmod(k, 4)
    return (
        0.0, 0.0, 0.0, 0.0,
        blocks, blocks * k, blocks * is_continued, blocks * is_finished,
        units, eights, eights * steps, eights * rest, fours, fours * k, ones, ones * k,
        column_units, column_eights, column_eights * steps, column_eights * rest, column_fours, column_fours * k,
        edges * is_continued, edges * is_finished, (units + column_units) * is_finished,
    )  # fmt: skip


def _gemm(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0 or not is_absent(nest, "c")

    def trips(c: Call) -> Trips:
        n = c.n
        return (1.0, is_shared(c.cores), *gemm_trips(n["m"], n["n"], n["k"], c.cores, not c.first, has_end and c.last))

    return trips


GEMM = Family(("call", "shared", *_NAMES), _gemm, ("alpha", "beta"))


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
            return 1.0, is_shared(cores), batches * is_shared(cores), batches, *total
        if cores > 1 and batches % cores == 0:
            own = batches // cores
            return 1.0, is_shared(cores), 0.0, own, *_times(own, gemm_trips(*shape, 1, not c.first, has_end and c.last))
        once = gemm_trips(*shape, cores, not c.first, has_end and c.last)
        return 1.0, is_shared(cores), batches * is_shared(cores), batches, *_times(batches, once)

    return trips


MATMUL = Family(("call", "shared", "batches, shared", "batches", *_NAMES), _matmul, ("alpha", "is_sum"))


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
                return 1.0, is_shared(cores), images * is_shared(cores), images, *_times(n["g"], total)
            return 1.0, is_shared(cores), images * is_shared(cores), images, *_times(images, total)

        return trips

    return Family(("call", "shared", "images, shared", "images", *_NAMES), bind)


POINTWISE = _pointwise("o", "p", "i")
POINTWISE_DX = _pointwise("i", "p", "o")
POINTWISE_DW = _pointwise("o", "i", "p")
