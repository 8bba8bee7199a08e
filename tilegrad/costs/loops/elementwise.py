"""Trips of kernels that go over elements once: maps, broadcasts, copies, outer products."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilegrad.costs.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    bounds,
    in_fours,
    in_turns,
    is_shared,
    share,
)
from tilegrad.ir.nest import Nest, Operand


def _map(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        eights, rest = in_turns(1.0, share(c.n["i"], c.cores), 8)
        is_even = float(c.cores > 1 and c.n["i"] % c.cores == 0)
        return 1.0, is_shared(c.cores), is_even, float(eights > 0), eights, float(rest > 0), rest

    return trips


def _stream(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        largest = share(c.n["i"], c.cores)
        # Eight elements of a turn take as long as six of the rest; the first turn has registers to save.
        shares = [divmod(count, 8) for count in (largest, largest - (c.n["i"] % c.cores > 0))]
        eights, rest = max(shares, key=lambda found: 2.3 * (found[0] > 0) + 6.0 * found[0] + found[1])
        is_even = float(c.cores > 1 and c.n["i"] % c.cores == 0)
        return 1.0, is_shared(c.cores), is_even, float(eights > 0), eights, float(rest > 0), rest

    return trips


_MAP_NAMES = ("call", "shared", "shared evenly", "with eights", "eights", "with a rest", "rest")
_MAP_CONSTANTS = ("weight_decay", "nesterov", "decoupled", "type", "from_type", "to_type")
MAP = Family(_MAP_NAMES, _map, _MAP_CONSTANTS)
STREAM = Family(_MAP_NAMES, _stream, _MAP_CONSTANTS)


def _plain_map(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        elements = share(c.n["i"], c.cores)
        return 1.0, is_shared(c.cores), float(elements > 0), elements

    return trips


PLAIN_MAP = Family(("call", "shared", "with elements", "elements"), _plain_map)


def _stride(operand: Operand, axis: str) -> int:
    """Along the last view dimension that an axis moves; 0 where it moves none, -1 where not by one."""
    for index in operand.index or ():
        if index.coefficient(axis):
            return index.coefficient(axis)
    return 0


def _last_step(operand: Operand, axis: str, c: Call) -> int:
    """The operand's element stride along an axis, in the box of a tile."""
    step = 1
    for index in reversed(operand.index or ()):
        if index.coefficient(axis):
            return index.coefficient(axis) * step
        span = 1 + sum(abs(coefficient) * (c.n[name] - 1) for name, coefficient in index.terms)
        step *= -(-span // index.divisor)
    return 0


def _broadcast_pattern(nest: Nest) -> str:
    return "".join(str(_stride(operand, "d5")) for operand in nest.operands if operand.value is not None)


def _element_load(nest: Nest) -> float:
    """What an element takes about, where a row takes 100."""
    if nest.kernel.startswith("pow_"):
        return 250.0
    return 45.0 if nest.kernel.endswith("_integer") else 9.0


def _broadcast(nest: Nest) -> Counter:
    element_load = _element_load(nest)

    def trips(c: Call) -> Trips:
        n = c.n
        run, carry = n["d5"], n["d4"]
        rows = prod([n["d0"], n["d1"], n["d2"], n["d3"], carry])
        total, cores = rows * run, c.cores
        limits = (carry, carry * n["d3"], carry * n["d3"] * n["d2"], carry * n["d3"] * n["d2"] * n["d1"])
        best, most = (0, 0, 0), -1.0
        for core in range(cores):
            start, stop = bounds(total, core, cores)
            if stop == start:
                break
            low, high = start // run, (stop - 1) // run + 1
            carries = sum([max(0, high - max(low, limit)) for limit in limits if limit < rows])
            load = 100.0 * (high - low) + 5.0 * carries + element_load * (stop - start)
            if load > most:
                most, best = load, (high - low, carries, stop - start)
        return 1.0, is_shared(cores), *best

    return trips


_BROADCAST_NAMES = ("call", "shared", "rows", "carries", "elements")
BROADCAST = Family(_BROADCAST_NAMES, _broadcast, ("type",), _broadcast_pattern)
# Its constant `alpha` holds the type of the exponent.
MIXED_POWER = Family(_BROADCAST_NAMES, _broadcast, ("type", "alpha"), _broadcast_pattern)


@lru_cache(maxsize=65536)
def _carries(rows: int, n6: int, n5: int, n4: int, count: int, cores: int) -> tuple[int, int, int, int]:
    """Rows of the busiest core, and how often its loops 6, 5 and 4 come to their ends."""
    best, most = (0, 0, 0, 0), -1
    for core in range(cores):
        start, stop = bounds(rows, core, cores)
        ends = [stop // length - start // length for length in (n6, n6 * n5, n6 * n5 * n4)]
        load = (stop - start) * (15 + 6 * count) + 7 * ends[0] + 14 * ends[1] + 45 * ends[2]
        if load > most:
            most, best = load, (stop - start, ends[0], ends[1], ends[2])
    return best


def _copy(nest: Nest) -> Counter:
    x, y = nest.operands[0], nest.operands[1]

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        rows = prod([n["d0"], n["d1"], n["d2"], n["d3"], n["d4"], n["d5"], n["d6"]])
        count = n["d7"]
        is_by_rows = rows >= cores
        if not is_by_rows:
            count = share(count, cores)
        rows, *carries = _carries(rows, n["d6"], n["d5"], n["d4"], count, cores if is_by_rows else 1)
        is_half = _last_step(x, "d7", c) == 1
        is_unit = is_half and _last_step(y, "d7", c) == 1
        unit, strided = (rows, 0) if is_unit else (0, rows)
        return (
            1.0, is_shared(cores), float(is_by_rows), float(not is_unit), unit, strided, strided * is_half, *carries,
            unit * count, strided * count,
        )  # fmt: skip

    return trips


COPY = Family(
    (
        "call", "shared", "by rows", "strided", "unit rows", "strided rows", "rows strided in y", "carries 6",
        "carries 5", "carries 4", "unit elements", "strided elements",
    ),
    _copy,
)  # fmt: skip


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
