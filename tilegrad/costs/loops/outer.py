"""Trips of rank-one updates and of the dense layer's gradient that goes with one."""

from __future__ import annotations

from tilegrad.costs.loops.base import Call, Counter, Family, Trips, is_shared, share, shares_in_runs
from tilegrad.ir.nest import Nest


def _outer(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        m, n, cores = c.n["m"], c.n["n"], c.cores
        (rows, rows_below), (quads, columns_beside) = divmod(m, 4), divmod(n, 4)
        blocks, strips = max(shares_in_runs(rows * quads, quads, cores), default=(0, 0))
        below, beside = share(n, cores) if rows_below else 0, share(4 * rows, cores) if columns_beside else 0
        return (
            1.0, is_shared(cores), strips, blocks,
            rows_below > 0, is_shared(cores) * (rows_below > 0), rows_below * (below > 0),
            rows_below * (below // 4), rows_below * (below % 4),
            columns_beside > 0, is_shared(cores) * (columns_beside > 0), beside > 0, beside, beside * columns_beside,
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
