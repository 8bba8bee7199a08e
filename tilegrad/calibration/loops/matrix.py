"""Trips of matrix products (runtime/tg_gemm.h) and of the kernels that consist of them."""

from __future__ import annotations

from functools import lru_cache
from operator import mul

from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, bounds, is_absent, is_shared, share
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


# What the groups of an edge take about, to find the busiest core: for eight, four and one output whether there are any,
# each, whether k has turns of four, those turns, and the k left over. By the form that is called (`TG_GEMM_FORM`).
_GROUP_LOADS = {
    "nn": ((47, 32, 4, 75, 18), (0, 20, 17, 42, 13), (16, 12, 4, 19, 5)),
    "nt": ((68, 56, 16, 79, 20), (0, 25, 13, 46, 9), (16, 15, 3, 16, 4)),
    "tn": ((47, 37, 5, 78, 18), (0, 20, 17, 45, 14), (23, 11, 4, 22, 6)),
    "tt": ((80, 66, 22, 82, 20), (0, 25, 40, 43, 10), (20, 13, 2, 19, 5)),
}
# The columns beside the blocks are rows of the transposed product.
_TRANSPOSED = {"nn": "tt", "nt": "nt", "tn": "tn", "tt": "nn"}


@lru_cache(maxsize=4096)
def _group_loads(form: str, k: int, is_finished: bool) -> tuple[int, ...]:
    """Of each kind of group: any of it, and each."""
    turns, rest = divmod(k, 4)
    found: list[int] = []
    for width, (any_of_it, each, with_turns, turn, step) in zip((8, 4, 1), _GROUP_LOADS[form], strict=True):
        found += [any_of_it, each + with_turns * (turns > 0) + turn * turns + step * rest + 6 * width * is_finished]
    return tuple(found)


@lru_cache(maxsize=65536)
def _busiest(form: str, m: int, n: int, k: int, cores: int, is_finished: bool) -> tuple[int, ...]:
    """Strips and blocks, then either edge, of the core with most work."""
    across = n // 4
    loads = [_group_loads(name, k, is_finished) for name in (form, _TRANSPOSED[form])]
    best: tuple[int, ...] = ()
    most = -1.0
    for core in range(cores):
        start, stop = bounds((m // 4) * across, core, cores)
        strips = (stop - 1) // across - start // across + 1 if stop > start else 0
        edges = _edge_of(core, cores, m % 4, n), _edge_of(core, cores, n % 4, m // 4 * 4)
        load = (26.5 * k + 75 + 100 * is_finished) * (stop - start) + 140 * strips
        for (calls, *kinds), of_kind in zip(edges, loads, strict=True):
            load += 90 * calls + sum(map(mul, kinds, of_kind))
        if load > most:
            most, best = load, (strips, stop - start, *edges[0], *edges[1])
    return best


def gemm_trips(form: str, m: int, n: int, k: int, cores: int, is_continued: bool, is_finished: bool) -> Trips:
    """Of `tg_gemm` on the busiest core; the form says whether a and b are transposed."""
    if k == 1 and m > 1 and n > 1:
        rows = share(m, cores)
        elements = rows * n
        return (
            1.0, is_shared(cores), rows, elements * (not is_continued), elements * is_continued,
            float(is_finished), rows * is_finished, elements * is_finished, *_NOTHING[8:],
        )  # fmt: skip
    strips, blocks, *edges = _busiest(form, m, n, k, cores, is_finished)
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
    has_end = nest.constants["alpha"] != 1.0 or not is_absent(nest, "c") or nest.constants["activation"] != 0
    form = nest.kernel[-2:]

    def trips(c: Call) -> Trips:
        n = c.n
        return gemm_trips(form, n["m"], n["n"], n["k"], c.cores, not c.first, has_end and c.last)

    return trips


GEMM = Family(_NAMES, _gemm, ("alpha", "beta", "activation"))


def _times(times: float, trips: Trips) -> list[float]:
    return [times * value for value in trips]


def _matmul(nest: Nest) -> Counter:
    has_end = nest.constants["alpha"] != 1.0
    form = nest.kernel[-2:]
    is_sum = bool(nest.constants["is_sum"])

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        batches = n["g0"] * n["g1"] * n["g2"]
        shape = form, n["m"], n["n"], n["k"]
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


def _pointwise(form: str, rows: str, columns: str, depth: str) -> Family:
    def bind(nest: Nest) -> Counter:
        has_end = any(operand.name == "b" and operand.value is not None for operand in nest.operands)
        is_weight = nest.operands[-1].name == "dw"

        def trips(c: Call) -> Trips:
            n, cores = c.n, c.cores
            shape = form, n[rows], n[columns], n[depth]
            images = n["n"] * n["g"]
            total = gemm_trips(*shape, cores, not c.first, has_end and c.last)
            if is_weight and n["n"] > 1 and c.first:
                others = gemm_trips(*shape, cores, True, False)
                total = [a + (n["n"] - 1) * b for a, b in zip(total, others, strict=True)]
                return 1.0, images, *_times(n["g"], total)
            return 1.0, images, *_times(images, total)

        return trips

    return Family(("call", "images", *_NAMES), bind)


POINTWISE = _pointwise("nn", "o", "p", "i")
POINTWISE_DX = _pointwise("tn", "i", "p", "o")
POINTWISE_DW = _pointwise("nt", "o", "i", "p")
