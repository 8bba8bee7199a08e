"""Trips of kernels that follow indices or pads: gathers, pads, dropout."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

from tilegrad.calibration.sequence import takings
from tilegrad.costs.loops.base import Call, Counter, Family, Trips, bounds, heaviest, is_shared, share
from tilegrad.costs.loops.windows import busiest_sums
from tilegrad.ir.nest import Nest

MOST_ROWS_WALKED = 4096


def _gather(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        rows = share(c.n["o"] * c.n["j"], c.cores)
        return 1.0, is_shared(c.cores), rows, rows * c.n["i"]

    return trips


GATHER = Family(("call", "shared", "rows", "elements"), _gather)


def _gather_grad(nest: Nest) -> Counter:
    rows_in_all = nest.axis("r").extent

    def trips(c: Call) -> Trips:
        n = c.n
        units = tuple((1, number) for number in takings(rows_in_all, n["j"])[c.at["r"] : c.at["r"] + n["r"]])
        loads = 18.0 + 10.0 * n["j"] + (6.0 + 3.0 * n["i"]) * c.first, 11.0 + 7.0 * n["i"]
        rows, taken = busiest_sums(units, n["o"], c.cores, loads)
        started = rows * c.first
        return 1.0, is_shared(c.cores), rows, rows * n["j"], taken, taken * n["i"], started, started * n["i"]

    return trips


GATHER_GRAD = Family(
    (
        "call", "shared", "rows", "rows*j", "rows taken", "elements taken", "rows, first tile", "elements, first tile",
    ),
    _gather_grad,
)  # fmt: skip


def _gather_elements(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n = c.n
        rows = share(n["p0"] * n["p1"] * n["j"] * n["q0"], c.cores)
        return 1.0, is_shared(c.cores), rows, rows * n["q1"]

    return trips


GATHER_ELEMENTS = Family(("call", "shared", "rows", "elements"), _gather_elements)


def _gather_elements_grad(nest: Nest) -> Counter:
    rows_in_all = nest.axis("r").extent

    def trips(c: Call) -> Trips:
        n = c.n
        tile = takings(rows_in_all, n["j"])[c.at["r"] : c.at["r"] + n["r"]]
        units = tuple((1, number) for number in tile for _ in range(n["q0"]))
        loads = 22.0 + (16.0 + 27.0 * n["j"]) * n["q1"], 17.0 * n["q1"]
        rows, taken = busiest_sums(units, n["p0"] * n["p1"], c.cores, loads)
        elements = rows * n["q1"]
        return (
            1.0, is_shared(c.cores), rows, elements, elements * n["j"], taken * n["q1"], elements * (not c.first),
        )  # fmt: skip

    return trips


GATHER_ELEMENTS_GRAD = Family(
    ("call", "shared", "rows", "elements", "elements*j", "taken", "elements, continued"), _gather_elements_grad
)


_INSIDE, _BEFORE, _BETWEEN, _BEYOND = range(4)


@lru_cache(maxsize=4096)
def _places(start: int, size: int, turn: int, offset: int, every: int, extent: int) -> tuple[int, ...]:
    """Where each position of a padded dimension falls (`tg_pad_position`)."""
    found = []
    for i in range(start, start + size):
        t = turn * i + offset
        found.append(_BEFORE if t < 0 else _BETWEEN if t % every else _INSIDE if t // every < extent else _BEYOND)
    return tuple(found)


@lru_cache(maxsize=4096)
def _padded_rows(places: tuple[tuple[int, ...], ...], cores: int) -> tuple[tuple[int, ...], ...]:
    """Of every core, each once: rows, those inside, and how often a dimension's position is before, between or
    beyond."""
    units = tuple(product(*places))
    shares: dict[tuple[int, ...], None] = {}
    for core in range(cores):
        start, stop = bounds(len(units), core, cores)
        rows = units[start:stop]
        inside = sum(not any(row) for row in rows)
        elsewhere = [sum(row.count(kind) for row in rows) for kind in (1, 2, 3)]
        shares[(len(rows), inside, *elsewhere)] = None
    return tuple(shares)


def _pad(nest: Nest) -> Counter:
    x = nest.operands[0]
    assert x.index is not None
    dims = [
        (index.coefficient(f"d{d}"), index.offset, index.divisor, extent)
        for d, (index, extent) in enumerate(zip(x.index, x.shape, strict=True))
    ]
    is_plain = dims[5][0] == 1 and dims[5][2] == 1

    def of_share(c: Call, last: tuple[int, ...], rows: int, inside: int, *elsewhere: int) -> Trips:
        outside, length = rows - inside, len(last)
        head = 1.0, is_shared(c.cores), outside, outside * length, inside, *elsewhere
        if not is_plain:
            return *head, *(0,) * 6, *[inside * last.count(kind) for kind in range(4)]
        copied, before = last.count(_INSIDE), last.count(_BEFORE)
        after = length - copied - before
        parts = [inside * count for part in (before, copied, after) for count in (int(part > 0), part)]
        return *head, *parts, 0, 0, 0, 0

    def trips(c: Call) -> Trips:
        places = tuple(_places(c.at[f"d{d}"], c.n[f"d{d}"], *dims[d]) for d in range(6))
        number = prod(map(len, places[:5]))
        if number <= MOST_ROWS_WALKED:
            shares = _padded_rows(places[:5], c.cores)
        else:
            rows = share(number, c.cores)
            inside = round(rows * prod(found.count(_INSIDE) / len(found) for found in places[:5]))
            elsewhere = [
                round(rows * sum(found.count(kind) / len(found) for found in places[:5])) for kind in (1, 2, 3)
            ]
            shares = ((rows, inside, *elsewhere),)
        return heaviest([of_share(c, places[5], *found) for found in shares], c.loads)

    return trips


PAD = Family(
    (
        "call", "shared", "rows outside", "elements of those", "rows inside",
        *(f"positions {where}" for where in ("before", "between", "beyond")),
        *(f"{what}{part}" for part in ("filled before", "copied", "filled after") for what in ("rows with ", "")),
        *(f"strided elements {where}" for where in ("inside", "before", "between", "beyond")),
    ),
    _pad,
)  # fmt: skip


def _padded_dims(nest: Nest) -> list[bool]:
    return [bool(nest.constants[f"is_padded_{d}"]) for d in range(4)]


@lru_cache(maxsize=4096)
def _turned(start: int, size: int, before: int, extent: int, mode: int) -> tuple[tuple[bool, bool], ...]:
    """Of each position of a padded dimension: whether it is before the first element, and whether it is beyond the last
    one (where a reflection turns back)."""
    found = []
    for t in range(start - before, start - before + size):
        period = 2 * extent - 2
        found.append((t < 0, t % period >= extent if mode == 1 and period else t >= extent))
    return tuple(found)


@lru_cache(maxsize=4096)
def _mapped_rows(turned: tuple[tuple[tuple[bool, bool], ...] | int, ...], cores: int) -> tuple[int, ...]:
    """Rows of the busiest core, and how often their positions are before and beyond; a plain dimension is its size."""
    lists = [[(False, False)] * dim if isinstance(dim, int) else list(dim) for dim in turned]
    units = tuple(product(*lists))
    best = (0, 0, 0)
    for core in range(cores):
        start, stop = bounds(len(units), core, cores)
        rows = units[start:stop]
        found = (len(rows), sum(p[0] for row in rows for p in row), sum(p[1] for row in rows for p in row))
        best = max(best, found)
    return best


def _pad_mapped(nest: Nest) -> Counter:
    padded = _padded_dims(nest)
    outer, mode = sum(padded[:3]), int(nest.constants["mode"])
    extents, befores = nest.operands[0].shape, [int(nest.constants[f"before_{d}"]) for d in range(4)]

    def trips(c: Call) -> Trips:
        n = c.n
        turned = [
            _turned(c.at[f"d{d}"], n[f"d{d}"], befores[d], extents[d], mode) if padded[d] else n[f"d{d}"]
            for d in range(4)
        ]
        rows, before, beyond = _mapped_rows(tuple(turned[:3]), c.cores)
        last = turned[3]
        parts: tuple[float, ...] = (rows * n["d3"], 0, 0, 0, 0)
        if not isinstance(last, int):
            parts = (0, rows, rows * n["d3"], rows * sum(p[0] for p in last), rows * sum(p[1] for p in last))
        return 1.0, is_shared(c.cores), rows, rows * outer, before, beyond, *parts

    return trips


PAD_MAPPED = Family(
    (
        "call", "shared", "rows", "rows*padded dimensions", "positions before", "positions beyond",
        "plain elements", "mapped rows", "mapped elements", "mapped before", "mapped beyond",
    ),
    _pad_mapped,
    ("mode",),
)  # fmt: skip


def _source(t: int, extent: int, mode: int) -> int:
    """`tg_pad_source`: where a position comes from (reflect 1, edge 2, wrap 3)."""
    if mode == 2:
        return min(max(t, 0), extent - 1)
    if mode == 3:
        return t % extent
    if extent == 1:
        return 0
    t %= 2 * extent - 2
    return t if t < extent else 2 * extent - 2 - t


@lru_cache(maxsize=4096)
def _copies(extent: int, padded: int, before: int, mode: int) -> tuple[int, ...]:
    """How often each element of a padded dimension was copied."""
    found = [0] * extent
    for position in range(padded):
        found[_source(position - before, extent, mode)] += 1
    return tuple(found)


@lru_cache(maxsize=4096)
def _gathered(
    copies: tuple[tuple[int, ...], ...], padded: tuple[bool, ...], starts: tuple[int, ...], sizes: tuple[int, ...],
    cores: int,
) -> tuple[int, ...]:  # fmt: skip
    """Rows of the busiest core, and for each dimension how often its loop begins and goes round; a plain dimension's
    copies are one."""
    n0, n1, n2, n3 = sizes
    last = copies[3][starts[3] : starts[3] + n3]
    inner = sum(last) if padded[3] else n3
    best: tuple[int, ...] = (0,) * 9
    for core in range(cores):
        start, stop = bounds(n0 * n1 * n2, core, cores)
        sums = [stop - start, *(0,) * 8]
        for row in range(start, stop):
            at = row // n2 // n1, row // n2 % n1, row % n2
            times = n3
            for d in range(3):
                sums[1 + 2 * d] += times
                times *= copies[d][starts[d] + at[d]] if padded[d] else 1
                sums[2 + 2 * d] += times
            sums[7] += times
            sums[8] += times // n3 * inner
        if sum(sums) > sum(best):
            best = tuple(sums)
    return best


def _pad_grad(nest: Nest) -> Counter:
    padded = tuple(_padded_dims(nest))
    source, result = nest.operands[0].shape, nest.operands[1].shape
    mode = int(nest.constants["mode"])
    copies = tuple(_copies(result[d], source[d], int(nest.constants[f"before_{d}"]), mode) for d in range(4))

    def trips(c: Call) -> Trips:
        axes = [f"d{d}" for d in range(4)]
        starts, sizes = tuple(c.at[axis] for axis in axes), tuple(c.n[axis] for axis in axes)
        rows, *loops = _gathered(copies, padded, starts, sizes, c.cores)
        by_kind: list[float] = []
        for d in range(4):
            begun, turned = loops[2 * d], loops[2 * d + 1]
            by_kind += [begun * padded[d], turned * padded[d], begun * (not padded[d])]
        return 1.0, is_shared(c.cores), rows, rows * c.n["d3"], *by_kind

    return trips


PAD_GRAD = Family(
    (
        "call", "shared", "rows", "elements",
        *(f"{what} {d}" for d in range(4) for what in ("begun in", "copies in", "plain")),
    ),
    _pad_grad,
    ("mode",),
)  # fmt: skip


def _seeded_dropout(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        count, at = c.n["i"], c.at["i"]
        best, most = (0, 0), -1
        for core in range(c.cores):
            start, stop = bounds(count, core, c.cores)
            groups = (at + stop + 3) // 4 - (at + start) // 4
            if 10 * groups + (stop - start) > most and stop > start:
                most, best = 10 * groups + (stop - start), (stop - start, groups)
        return 1.0, is_shared(c.cores), *best

    return trips


SEEDED_DROPOUT = Family(("call", "shared", "elements", "groups of four"), _seeded_dropout)
