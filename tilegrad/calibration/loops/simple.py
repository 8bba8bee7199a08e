"""Trips of kernels whose loops are few: elementwise, broadcasts, copies, reductions, normalisations, losses."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilegrad.calibration.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    bounds,
    in_blocks,
    is_shared,
    most_runs,
    share,
)
from tilegrad.ir.nest import Nest, Operand


def in_turns(times: float, length: int, width: int) -> tuple[float, float]:
    """A loop of `length` that runs `times` times, `width` elements a turn: its turns, and the elements left over."""
    return times * (length // width), times * (length % width)


def in_fours(times: float, length: int) -> tuple[float, float]:
    return in_turns(times, length, 4)


def with_fours(times: float, length: int) -> tuple[float, float, float, float]:
    """The same, with whether either loop runs at all."""
    return times * (length >= 4), times * (length // 4), times * (length % 4 > 0), times * (length % 4)


def heaviest_run(units: int, length: int, cores: int) -> tuple[int, int]:
    """The largest share of units in rows of `length` that touches most rows."""
    best, most = (0, 0), -1
    for core in range(cores):
        start, stop = bounds(units, core, cores)
        pieces = (stop - 1) // length - start // length + 1 if stop > start else 0
        if 100 * (stop - start) + pieces > most:
            most, best = 100 * (stop - start) + pieces, (start, stop)
    return best


def _map(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        eights, rest = in_turns(1.0, share(c.n["i"], c.cores), 8)
        return 1.0, is_shared(c.cores), float(eights > 0), eights, float(rest > 0), rest

    return trips


MAP = Family(
    ("call", "shared", "with eights", "eights", "with a rest", "rest"),
    _map,
    ("weight_decay", "nesterov", "decoupled", "type", "from_type", "to_type"),
)


def _plain_map(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        elements = share(c.n["i"], c.cores)
        return 1.0, is_shared(c.cores), float(elements > 0), elements

    return trips


PLAIN_MAP = Family(("call", "shared", "with elements", "elements"), _plain_map)


def _units(*axes: str, inner: tuple[str, ...] = (), names_last: bool = False) -> Family:
    """A loop over units (the product of `axes`), shared by the cores, with loops over `inner` inside, each in full."""

    def bind(nest: Nest) -> Counter:
        def trips(c: Call) -> Trips:
            n = c.n
            units = share(prod([n[axis] for axis in axes]), c.cores)
            result = [1.0, is_shared(c.cores), units]
            for axis in inner:
                units *= n[axis]
                result.append(units)
            if names_last:
                largest = result[2]
                result += [largest * c.last, largest * (not c.first)]
            return result

        return trips

    names = ("call", "shared", "units", *(f"units*{'*'.join(inner[: i + 1])}" for i in range(len(inner))))
    ends = ("units, last tile", "units, continued") if names_last else ()
    return Family((*names, *ends), bind, ("is_variance", "finish", "has_ignored"))


def _outer(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        m, n, cores = c.n["m"], c.n["n"], c.cores
        quads, rows = n // 4, m // 4
        start, stop = heaviest_run(rows * quads, quads, cores)
        strips = (stop - 1) // quads - start // quads + 1 if stop > start else 0
        below, beside = share(n, cores) if m % 4 else 0, share(4 * rows, cores) if n % 4 else 0
        return (
            1.0, is_shared(cores), strips, stop - start,
            float(below > 0), below > 0 and m % 4, *in_fours(m % 4, below),
            float(beside > 0), beside, beside * (n % 4),
        )  # fmt: skip

    return trips


OUTER = Family(
    (
        "call", "shared", "strips", "blocks", "rows below", "rows", "rows*(columns/4)", "rows*(columns%4)",
        "columns beside", "rows beside", "elements beside",
    ),
    _outer,
)  # fmt: skip


def _dense_grad(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        rows, blocks, rest = c.n["m"], share(c.n["n"] // 8, c.cores), share(c.n["n"] % 8, c.cores)
        is_continued = not c.first
        return (
            1.0, is_shared(c.cores), blocks, blocks * rows, blocks * is_continued, rest, rest * rows,
            rest * is_continued,
        )  # fmt: skip

    return trips


DENSE_GRAD = Family(
    (
        "call", "shared", "blocks", "blocks*rows", "blocks, continued", "columns", "columns*rows", "columns, continued",
    ),
    _dense_grad,
)  # fmt: skip
CONV_DB = _units("c", inner=("n", "p"), names_last=True)
GLOBAL_POOL = _units("c", inner=("p",), names_last=True)
NORMALIZE_PARAMETERS = _units("c", inner=("o",), names_last=True)
MOMENTS = _units("o", "g", inner=("d",))
STATISTIC = _units("g", inner=("o",))
ROWS_OF_CLASSES = _units("n", "s", inner=("c",))


def _one_core(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        return 1.0, c.n["i"], float(c.last), float(not c.first)

    return trips


ONE_CORE = Family(("call", "elements", "last tile", "continued"), _one_core, ("has_ignored",))


def _mean_loss(nest: Nest) -> Counter:
    elements = prod(nest.operands[0].shape)

    def trips(c: Call) -> Trips:
        blocks = share(c.n["b"], c.cores)
        return 1.0, is_shared(c.cores), blocks, min(blocks * c.n["j"], elements - c.at["b"] * c.n["j"])

    return trips


MEAN_LOSS = Family(("call", "shared", "blocks", "elements"), _mean_loss)


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


def _broadcast(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n = c.n
        run, carry = n["d5"], n["d4"]
        rows = prod([n["d0"], n["d1"], n["d2"], n["d3"], carry])
        total, cores = rows * run, c.cores
        limits = (carry, carry * n["d3"], carry * n["d3"] * n["d2"], carry * n["d3"] * n["d2"] * n["d1"])
        best, most = (0, 0, 0), -1
        for core in range(cores):
            start, stop = bounds(total, core, cores)
            if stop == start:
                break
            low, high = start // run, (stop - 1) // run + 1
            carries = sum([max(0, high - max(low, limit)) for limit in limits if limit < rows])
            load = 75 * (high - low) + 5 * carries + 7 * (stop - start)
            if load > most:
                most, best = load, (high - low, carries, stop - start)
        return 1.0, is_shared(cores), *best

    return trips


BROADCAST = Family(
    ("call", "shared", "rows", "carries", "elements"), _broadcast, ("type", "exponent_type"), _broadcast_pattern
)


@lru_cache(maxsize=65536)
def _carries(rows: int, n6: int, n5: int, n4: int, count: int, cores: int) -> tuple[int, int, int, int]:
    """Rows of the busiest core, and how often its loops 6, 5 and 4 come to their ends."""
    best, most = (0, 0, 0, 0), -1
    for core in range(cores):
        start, stop = bounds(rows, core, cores)
        ends = [stop // length - start // length for length in (n6, n6 * n5, n6 * n5 * n4)]
        load = (stop - start) * (14 + 6 * count) + 7 * ends[0] + 10 * ends[1] + 25 * ends[2]
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
        is_unit = _last_step(x, "d7", c) == 1 and _last_step(y, "d7", c) == 1
        unit, strided = (rows, 0) if is_unit else (0, rows)
        return 1.0, is_shared(cores), float(is_by_rows), unit, strided, *carries, unit * count, strided * count

    return trips


COPY = Family(
    (
        "call", "shared", "by rows", "unit rows", "strided rows", "carries 6", "carries 5", "carries 4",
        "unit elements", "strided elements",
    ),
    _copy,
)  # fmt: skip


def _reduce(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        outer, inner, length = n["o"], n["i"], n["r"]
        largest = share(outer * inner, cores)
        starts, ends = largest * c.first, largest * c.last
        if inner == 1:
            quads, rest = in_blocks(outer, cores, 4, 1.8)
            return 1.0, is_shared(cores), quads, quads * length, rest, rest * length, 0, 0, 0, 0, starts, ends
        runs = most_runs(outer * inner, inner, cores)
        return (
            1.0,
            is_shared(cores),
            0,
            0,
            0,
            0,
            runs,
            runs * length,
            largest * length,
            largest,
            starts,
            ends,
        )

    return trips


REDUCE = Family(
    (
        "call", "shared", "quads", "quads*r", "single rows", "single rows*r", "runs", "runs*r", "elements*r",
        "elements", "started", "finished",
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


def _normalize(nest: Nest) -> Counter:
    has_shift = any(operand.name == "shift" and operand.value is not None for operand in nest.operands)

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        rows = share(n["o"] * n["g"] * n["d"], cores)
        if not has_shift and n["s"] == 1 and n["d"] == 1:
            return 1.0, is_shared(cores), *(0,) * 6, most_runs(n["o"] * n["g"], n["g"], cores), rows
        fours, eights = in_fours(rows, n["s"]), in_turns(rows, n["s"], 8)
        turns = (*fours, 0, 0) if has_shift else (0, 0, *eights)
        return 1.0, is_shared(cores), rows, rows * (n["s"] >= (4 if has_shift else 8)), *turns, 0, 0

    return trips


NORMALIZE = Family(
    (
        "call", "shared", "rows", "rows with turns", "fours", "rest of four", "eights", "rest of eight",
        "flat runs", "flat elements",
    ),
    _normalize,
)  # fmt: skip


@lru_cache(maxsize=65536)
def _rows_in_blocks(rows: int, run: int, block: int, length: int, cores: int) -> tuple[int, int, int]:
    """The busiest core's runs, blocks of `block` rows within runs, and rows left over."""
    best = (0, 0, 0)
    most = -1.0
    for core in range(cores):
        start, stop = bounds(rows, core, cores)
        blocks = rest = pieces = 0
        while start < stop:
            piece = min(stop - start, run - start % run)
            repeats = (stop - start) // run if start % run == 0 and stop - start >= run else 1
            blocks += repeats * (piece // block)
            rest += repeats * (piece % block)
            pieces += repeats
            start += repeats * piece
        load = blocks * block * (5.0 + 4.2 * length) + rest * (11.0 + 5.0 * length) + 60.0 * pieces
        if load > most:
            most, best = load, (pieces, blocks, rest)
    return best


_ENDS = ("runs, first tile", "rows, first tile", "runs, last tile", "rows, last tile")


def _row_statistics(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n, length = c.n, c.n["k"]
        runs, blocks, rest = _rows_in_blocks(n["o"] * n["g"], n["g"], 4, length, c.cores)
        rows = 4 * blocks + rest
        return (
            1.0, is_shared(c.cores), runs, blocks, *with_fours(blocks, length), rest, *with_fours(rest, length),
            runs * c.first, rows * c.first, runs * c.last, rows * c.last,
        )  # fmt: skip

    return trips


ROW_STATISTICS = Family(
    (
        "call", "shared", "runs", "quads", "quads, k >= 4", "quads*k/4", "quads, k % 4", "quads*k%4",
        "rows", "rows, k >= 4", "rows*k/4", "rows, k % 4", "rows*k%4", *_ENDS,
    ),
    _row_statistics,
    ("finish",),
)  # fmt: skip


def _dots(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n, length = c.n, c.n["s"]
        run = n["d"] if n["d"] > 1 else n["g"]
        runs, blocks, rest = _rows_in_blocks(n["o"] * n["g"] * n["d"], run, 2, length, c.cores)
        rows = 2 * blocks + rest
        return (
            1.0, is_shared(c.cores), runs, blocks, *with_fours(blocks, length), rest, *with_fours(rest, length),
            runs * c.first, rows * c.first, runs * c.last, rows * c.last,
        )  # fmt: skip

    return trips


DOTS = Family(
    (
        "call", "shared", "runs", "blocks", "blocks, s >= 4", "blocks*s/4", "blocks, s % 4", "blocks*s%4",
        "rows", "rows, s >= 4", "rows*s/4", "rows, s % 4", "rows*s%4", *_ENDS,
    ),
    _dots,
)  # fmt: skip


def _flat_dots(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        width, outer = share(c.n["g"], c.cores), c.n["o"]
        return 1.0, is_shared(c.cores), outer, outer * width, width * c.first, width * c.last

    return trips


FLAT_DOTS = Family(
    ("call", "shared", "o", "o*channels", "channels, first tile", "channels, last tile"), _flat_dots
)


def _layer_norm(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        length = c.n["k"]
        quads, rest = in_blocks(c.n["r"], c.cores, 4, 3.6)
        rows = 4 * quads + rest
        return (
            1.0, is_shared(c.cores), quads, *in_fours(quads, length), rest, *in_fours(rest, length), float(rest > 0),
            rows, *in_fours(rows, length),
        )  # fmt: skip

    return trips


LAYER_NORM = Family(
    (
        "call", "shared", "quads", "quads*k/4", "quads*k%4", "lone rows", "lone rows*k/4", "lone rows*k%4", "ragged",
        "rows", "rows*k/4", "rows*k%4",
    ),
    _layer_norm,
)  # fmt: skip


def _layer_norm_parameters(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        width, rows = share(c.n["k"], c.cores), c.n["r"]
        return 1.0, is_shared(c.cores), rows, *in_fours(rows, width), width * c.first

    return trips


LAYER_NORM_PARAMETERS = Family(
    ("call", "shared", "rows", "rows*columns/4", "rows*columns%4", "columns, first tile"), _layer_norm_parameters
)


def _layer_norm_grad(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        rows, length = share(c.n["r"], c.cores), c.n["k"]
        pairs = -(-rows // 2)
        return 1.0, is_shared(c.cores), pairs, *in_fours(pairs, length), rows, *in_fours(rows, length)

    return trips


LAYER_NORM_GRAD = Family(
    ("call", "shared", "pairs", "pairs*k/4", "pairs*k%4", "rows", "rows*k/4", "rows*k%4"), _layer_norm_grad
)


def _softmax(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n = c.n
        rows = share(n["o"] * n["s"], c.cores)
        if n["s"] == 1:
            return 1.0, is_shared(c.cores), rows, rows * n["k"], 0, 0
        return 1.0, is_shared(c.cores), 0, 0, rows, rows * n["k"]

    return trips


SOFTMAX = Family(("call", "shared", "rows", "elements", "strided rows", "strided elements"), _softmax)
