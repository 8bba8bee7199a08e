"""Trips of kernels that follow indices or pads: gathers, pads, dropout."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

from tilegrad.calibration.loops.base import Call, Counter, Family, Trips, bounds, is_shared, share
from tilegrad.calibration.loops.windows import busiest_window
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
        rows = share(n["o"] * n["r"], c.cores)
        taken = rows * n["j"] / rows_in_all
        return 1.0, is_shared(c.cores), rows, rows * n["j"], taken, taken * n["i"], rows * n["i"] * c.first

    return trips


GATHER_GRAD = Family(
    ("call", "shared", "rows", "rows*j", "rows taken, expected", "elements taken, expected", "elements, first tile"),
    _gather_grad,
)


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
        rows = share(n["p0"] * n["p1"] * n["r"] * n["q0"], c.cores)
        elements = rows * n["q1"]
        return 1.0, is_shared(c.cores), rows, elements, elements * n["j"], elements * n["j"] / rows_in_all

    return trips


GATHER_ELEMENTS_GRAD = Family(
    ("call", "shared", "rows", "elements", "elements*j", "taken, expected"), _gather_elements_grad
)


@lru_cache(maxsize=4096)
def _inside(start: int, size: int, turn: int, offset: int, every: int, extent: int) -> tuple[int, ...]:
    """Whether each position of a padded dimension is an element."""
    found = []
    for i in range(start, start + size):
        t = turn * i + offset
        found.append(int(t >= 0 and t % every == 0 and t // every < extent))
    return tuple(found)


def _pad(nest: Nest) -> Counter:
    x = nest.operands[0]
    assert x.index is not None
    dims = [
        (index.coefficient(f"d{d}"), index.offset, index.divisor, extent)
        for d, (index, extent) in enumerate(zip(x.index, x.shape, strict=True))
    ]
    is_plain = dims[5][0] == 1 and dims[5][2] == 1

    def trips(c: Call) -> Trips:
        flags = [_inside(c.at[f"d{d}"], c.n[f"d{d}"], *dims[d]) for d in range(6)]
        rows = prod(map(len, flags[:5]))
        if rows <= MOST_ROWS_WALKED:
            counts = (*busiest_window(tuple(map(min, product(*flags[:5]))), 1, c.cores), 0)
            outside, inside = counts[0], counts[1]
        else:
            inside = round(share(rows, c.cores) * prod(sum(f) / len(f) for f in flags[:5]))
            outside = share(rows, c.cores) - inside
        length, copied = len(flags[5]), sum(flags[5])
        if not is_plain:
            return 1.0, is_shared(c.cores), outside, outside * length, 0, 0, 0, inside, inside * length
        return (
            1.0, is_shared(c.cores), outside, outside * length,
            inside, inside * copied, inside * (length - copied), 0, 0,
        )  # fmt: skip

    return trips


PAD = Family(
    (
        "call", "shared", "rows outside", "elements of those", "rows inside", "elements copied", "elements filled",
        "strided rows", "strided elements",
    ),
    _pad,
)  # fmt: skip


def _padded_dims(nest: Nest) -> list[bool]:
    return [bool(nest.constants[f"is_padded_{d}"]) for d in range(4)]


def _pad_mapped(nest: Nest) -> Counter:
    padded = _padded_dims(nest)
    outer, inner = sum(padded[:3]), float(padded[3])

    def trips(c: Call) -> Trips:
        n = c.n
        rows = share(n["d0"] * n["d1"] * n["d2"], c.cores)
        elements = rows * n["d3"]
        return 1.0, is_shared(c.cores), rows, rows * outer, elements * (1 - inner), elements * inner

    return trips


PAD_MAPPED = Family(
    ("call", "shared", "rows", "rows*padded dimensions", "plain elements", "mapped elements"), _pad_mapped, ("mode",)
)


def _pad_grad(nest: Nest) -> Counter:
    padded = _padded_dims(nest)
    source, result = nest.operands[0].shape, nest.operands[1].shape

    def trips(c: Call) -> Trips:
        n = c.n
        rows = share(n["d0"] * n["d1"] * n["d2"], c.cores)
        elements = rows * n["d3"]
        total = prod(source) / prod(result)
        return 1.0, is_shared(c.cores), rows, elements, *[elements * flag for flag in padded], elements * total

    return trips


PAD_GRAD = Family(
    ("call", "shared", "rows", "elements", *(f"elements*dimension {d}" for d in range(4)), "gathered, on average"),
    _pad_grad,
    ("mode",),
)


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
