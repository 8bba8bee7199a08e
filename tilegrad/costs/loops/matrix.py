"""Trips of matrix products (runtime/tg_gemm.h) and of the kernels that consist of them."""

from __future__ import annotations

from functools import lru_cache

from tilegrad.costs.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    bounds,
    has_operand,
    heaviest,
    is_shared,
    most_of,
    pieces,
    share,
    sum_of,
)
from tilegrad.ir.nest import Nest

_KINDS = ("eights", "fours", "ones")
# Of a loop that takes four k a turn, and then one: whether either runs, and how often.
_TURNS = ("", ", with fours", "*(k/4)", ", with a rest", "*(k%4)")
_NAMES = (
    "outer products", "outer products, shared", "outer rows", "outer elements, first", "outer elements, continued",
    "outer products, finished", "outer rows, finished", "outer elements, finished",
    "products", *(f"products with {what}{how}" for how in ("", ", shared") for what in ("blocks", "rows", "columns")),
    "strips", *(f"blocks{times}" for times in _TURNS), "blocks, continued", "strips, finished", "blocks, finished",
    *(f"{side} {what}" for side in ("row", "column") for what in ("calls", "divided", *(
        f"{kind}{times}" for kind in _KINDS for times in ("*calls", *_TURNS)
    ))),
    "edge elements, continued",
    *(f"{side} {what}, finished" for side in ("row", "column") for what in ("calls", "elements")),
)  # fmt: skip
_NOTHING = (0.0,) * len(_NAMES)


def _group(outputs: int, cores: int) -> int:
    """`tg_gemm_group`."""
    return 8 if outputs > 4 * cores else 4 if outputs > 2 * cores else 1


_NO_EDGE = (0,) * 7


def _edge_of(core: int, cores: int, lines: int, length: int) -> tuple[int, ...]:
    """A core's part of `lines` rows (or columns) of `length` outputs beside the blocks: its calls, then for each kind
    of group the calls that have one, and the groups."""
    if not lines or not length:
        return _NO_EDGE
    width = _group(lines * length, cores)
    groups = -(-length // width)
    start, stop = bounds(lines * groups, core, cores)
    found = [0] * 7
    while start < stop:
        at = start % groups
        count = min(groups - at, stop - start)
        outputs = min((at + count) * width, length) - at * width
        found[0] += 1
        for i, number in enumerate((outputs // 8, outputs % 8 // 4, outputs % 4)):
            found[1 + 2 * i] += number > 0
            found[2 + 2 * i] += number
        start += count
    return tuple(found)


@lru_cache(maxsize=65536)
def _works(m: int, n: int, cores: int) -> tuple[tuple[int, ...], ...]:
    """Strips and blocks, then either edge, of each core that may be the busiest."""
    across = n // 4
    found: dict[tuple[int, ...], None] = {}
    for core in range(cores):
        start, stop = bounds((m // 4) * across, core, cores)
        edges = *_edge_of(core, cores, m % 4, n), *_edge_of(core, cores, n % 4, m // 4 * 4)
        found[(pieces(start, stop, across), stop - start, *edges)] = None
    return most_of(tuple(found))


def gemm_trips(m: int, n: int, k: int, cores: int, is_continued: bool, is_finished: bool, loads: Trips) -> Trips:
    """Of `tg_gemm` on the busiest core."""
    if k == 1 and m > 1 and n > 1:
        rows = share(m, cores)
        elements = rows * n
        return (
            1.0, is_shared(cores), rows, elements * (not is_continued), elements * is_continued,
            float(is_finished), rows * is_finished, elements * is_finished, *_NOTHING[8:],
        )  # fmt: skip
    works = _works(m, n, cores)
    return heaviest([_work_trips(m, n, k, cores, is_continued, is_finished, work) for work in works], loads)


def _work_trips(
    m: int, n: int, k: int, cores: int, is_continued: bool, is_finished: bool, work: tuple[int, ...]
) -> Trips:
    strips, blocks, *edges = work
    fours, rest = divmod(k, 4)
    turns = 1, int(fours > 0), fours, int(rest > 0), rest
    parts = float(m >= 4 and n >= 4), float(m % 4 > 0), float(n % 4 > 0 and m >= 4)
    result = [
        1.0, *parts, *[part * is_shared(cores) for part in parts],
        strips, *[blocks * times for times in turns], blocks * is_continued,
        strips * is_finished, blocks * is_finished,
    ]  # fmt: skip
    elements = 0
    ends: list[float] = []
    for (edge_calls, *kinds), lines in ((edges[:7], m % 4), (edges[7:], n % 4)):
        result += [edge_calls, edge_calls * (lines > 1)]
        for with_some, count in zip(kinds[::2], kinds[1::2], strict=True):
            result += [with_some, *[count * times for times in turns]]
        of_edge = 8 * kinds[1] + 4 * kinds[3] + kinds[5]
        elements += of_edge
        ends += [edge_calls * is_finished, of_edge * is_finished]
    return *_NOTHING[:8], *result, elements * is_continued, *ends


def _gemm(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0 or has_operand(nest, "c") or nest.constants["activation"] != 0

    def trips(c: Call) -> Trips:
        n = c.n
        return gemm_trips(n["m"], n["n"], n["k"], c.cores, not c.first, has_end and c.last, c.loads)

    return trips


GEMM = Family(_NAMES, _gemm, ("alpha", "beta", "activation"))


def _matmul(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0
    is_sum = bool(nest.constants["is_sum"])

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        batches = n["g0"] * n["g1"] * n["g2"]
        shape = n["m"], n["n"], n["k"]
        loads = c.loads[3:]
        if is_sum and batches > 1:
            start = gemm_trips(*shape, cores, not c.first, False, loads)
            middle = gemm_trips(*shape, cores, True, False, loads)
            end = gemm_trips(*shape, cores, True, has_end and c.last, loads)
            return 1.0, is_shared(cores), batches, *sum_of((1, start), (batches - 2, middle), (1, end))
        # Cores share batches where that is even, otherwise the outputs of each.
        own, sharers = (batches // cores, 1) if batches % cores == 0 else (batches, cores)
        once = gemm_trips(*shape, sharers, not c.first, has_end and c.last, loads)
        return 1.0, is_shared(cores), own, *sum_of((own, once))

    return trips


MATMUL = Family(("call", "shared", "batches", *_NAMES), _matmul, ("alpha", "is_sum"))


def _pointwise(rows: str, columns: str, depth: str) -> Family:
    def bind(nest: Nest) -> Counter:
        has_end = has_operand(nest, "b")
        is_weight = nest.operands[-1].name == "dw"

        def trips(c: Call) -> Trips:
            n, cores = c.n, c.cores
            shape = n[rows], n[columns], n[depth]
            loads = c.loads[2:]
            images = n["n"] * n["g"]
            total = gemm_trips(*shape, cores, not c.first, has_end and c.last, loads)
            if is_weight and c.first:  # the sum over images goes on behind the first
                others = gemm_trips(*shape, cores, True, False, loads)
                return 1.0, images, *sum_of((n["g"], total), (images - n["g"], others))
            return 1.0, images, *sum_of((images, total))

        return trips

    return Family(("call", "images", *_NAMES), bind)


POINTWISE = _pointwise("o", "p", "i")
POINTWISE_DX = _pointwise("i", "p", "o")
POINTWISE_DW = _pointwise("o", "i", "p")
