"""Trips of rank-one updates and of the dense layer's gradient that goes with one."""

from __future__ import annotations

from tilegrad.costs.loops.base import Call, Counter, Family, Trips, bounds, in_fours, is_shared, share
from tilegrad.ir.nest import Nest


def heaviest_run(units: int, length: int, cores: int) -> tuple[int, int]:
    """The largest share of units in rows of `length` that touches most rows."""
    best, most = (0, 0), -1
    for core in range(cores):
        start, stop = bounds(units, core, cores)
        pieces = (stop - 1) // length - start // length + 1 if stop > start else 0
        if 100 * (stop - start) + pieces > most:
            most, best = 100 * (stop - start) + pieces, (start, stop)
    return best


def _outer(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        m, n, cores = c.n["m"], c.n["n"], c.cores
        quads, rows = n // 4, m // 4
        start, stop = heaviest_run(rows * quads, quads, cores)
        strips = (stop - 1) // quads - start // quads + 1 if stop > start else 0
        below, beside = share(n, cores) if m % 4 else 0, share(4 * rows, cores) if n % 4 else 0
        return (
            1.0, is_shared(cores), strips, stop - start,
            float(m % 4 > 0), is_shared(cores) * (m % 4 > 0), below > 0 and m % 4, *in_fours(m % 4, below),
            float(n % 4 > 0), is_shared(cores) * (n % 4 > 0), float(beside > 0), beside, beside * (n % 4),
        )  # fmt: skip

    return trips


OUTER = Family(
    (
        "call", "shared", "strips", "blocks", "rows below", "rows below, shared", "rows", "rows*(columns/4)",
        "rows*(columns%4)", "columns beside", "columns beside, shared", "with rows beside", "rows beside",
        "elements beside",
    ),
    _outer,
)  # fmt: skip


def _dense_grad(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        rows, blocks, rest = c.n["m"], share(c.n["n"] // 8, c.cores), share(c.n["n"] % 8, c.cores)
        of_blocks, of_rest = (
            (float(count > 0), count, count * rows, count * c.first, count * (not c.first), count * c.last)
            for count in (blocks, rest)
        )
        return 1.0, is_shared(c.cores), *of_blocks, *of_rest

    return trips


DENSE_GRAD = Family(
    (
        "call", "shared",
        *(what for kind in ("blocks", "columns") for what in (
            f"with {kind}", kind, f"{kind}*rows", f"{kind}, first tile", f"{kind}, continued", f"{kind}, last tile",
        )),
    ),
    _dense_grad,
    ("relu",),
)  # fmt: skip
