"""Trips of kernels whose loops are few: pools of whole planes, normalisations, softmax, losses."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilegrad.costs.loops.base import (
    Call,
    Counter,
    Family,
    Trips,
    bounds,
    heaviest,
    in_blocks,
    in_fours,
    in_turns,
    is_shared,
    most_of,
    share,
    shares_in_runs,
    with_fours,
)
from tilegrad.ir.nest import Nest


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


def _normalize(nest: Nest) -> Counter:
    has_shift = any(operand.name == "shift" and operand.value is not None for operand in nest.operands)

    def trips(c: Call) -> Trips:
        n, cores = c.n, c.cores
        rows = share(n["o"] * n["g"] * n["d"], cores)
        if not has_shift and n["s"] == 1 and n["d"] == 1:
            shares = shares_in_runs(n["o"] * n["g"], n["g"], cores)
            return heaviest([(1.0, is_shared(cores), *(0,) * 6, runs, own) for own, runs in shares], c.loads)
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


def _of_fours(what: str, axis: str) -> tuple[str, ...]:
    """Names of what `with_fours` counts."""
    return f"{what}, {axis} >= 4", f"{what}*{axis}/4", f"{what}, {axis} % 4", f"{what}*{axis}%4"


@lru_cache(maxsize=65536)
def _rows_in_blocks(rows: int, run: int, block: int, cores: int) -> tuple[tuple[int, ...], ...]:
    """Of each core that may be the busiest: its runs, those with blocks of `block` rows and those with rows left over,
    and how many of either it has."""
    works: dict[tuple[int, ...], None] = {}
    for core in range(cores):
        start, stop = bounds(rows, core, cores)
        found = [0] * 5
        while start < stop:
            piece = min(stop - start, run - start % run)
            repeats = (stop - start) // run if start % run == 0 and stop - start >= run else 1
            blocks, rest = divmod(piece, block)
            for i, number in enumerate((1, int(blocks > 0), int(rest > 0), blocks, rest)):
                found[i] += repeats * number
            start += repeats * piece
        works[tuple(found)] = None
    return most_of(tuple(works))


def _row_trips(c: Call, rows: int, run: int, block: int, length: int) -> Trips:
    return heaviest([_of_rows(c, block, length, *work) for work in _rows_in_blocks(rows, run, block, c.cores)], c.loads)


def _of_rows(
    c: Call, block: int, length: int, runs: int, with_blocks: int, with_rest: int, blocks: int, rest: int
) -> Trips:
    own = block * blocks + rest
    return (
        1.0, is_shared(c.cores), runs, with_blocks, with_rest, blocks, *with_fours(blocks, length), rest,
        *with_fours(rest, length), runs * c.first, own * c.first, runs * c.last, own * c.last,
    )  # fmt: skip


def _row_names(axis: str) -> tuple[str, ...]:
    return (
        "call", "shared", "runs", "runs with blocks", "runs with a rest", "blocks", *_of_fours("blocks", axis), "rows",
        *_of_fours("rows", axis), "runs, first tile", "rows, first tile", "runs, last tile", "rows, last tile",
    )  # fmt: skip


def _row_statistics(nest: Nest) -> Counter:
    return lambda c: _row_trips(c, c.n["o"] * c.n["g"], c.n["g"], 4, c.n["k"])


ROW_STATISTICS = Family(_row_names("k"), _row_statistics, ("finish",))


def _dots(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        n = c.n
        return _row_trips(c, n["o"] * n["g"] * n["d"], n["d"] if n["d"] > 1 else n["g"], 2, n["s"])

    return trips


DOTS = Family(_row_names("s"), _dots)


def _flat_dots(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        width, outer = share(c.n["g"], c.cores), c.n["o"]
        return (
            1.0, is_shared(c.cores), outer, outer * width, float(c.first), width * c.first, float(c.last),
            width * c.last,
        )  # fmt: skip

    return trips


FLAT_DOTS = Family(
    ("call", "shared", "o", "o*channels", "first tile", "channels, first tile", "last tile", "channels, last tile"),
    _flat_dots,
)


def _layer_norm(nest: Nest) -> Counter:
    def of_share(c: Call, quads: int, rest: int) -> Trips:
        length, rows = c.n["k"], 4 * quads + rest
        return (
            1.0, is_shared(c.cores), float(quads > 0), quads, *with_fours(quads, length), float(rest > 0), rest,
            *with_fours(rest, length), rows, *with_fours(rows, length),
        )  # fmt: skip

    return lambda c: heaviest([of_share(c, *found) for found in in_blocks(c.n["r"], c.cores, 4)], c.loads)


LAYER_NORM = Family(
    (
        "call", "shared", "with quads", "quads", *_of_fours("quads", "k"), "ragged", "lone rows",
        *_of_fours("lone rows", "k"), "rows", *_of_fours("rows", "k"),
    ),
    _layer_norm,
)  # fmt: skip


def _layer_norm_parameters(nest: Nest) -> Counter:
    def trips(c: Call) -> Trips:
        width, rows = share(c.n["k"], c.cores), c.n["r"]
        return 1.0, is_shared(c.cores), rows, *with_fours(rows, width), float(c.first), width * c.first

    return trips


LAYER_NORM_PARAMETERS = Family(
    ("call", "shared", "rows", *_of_fours("rows", "columns"), "first tile", "columns, first tile"),
    _layer_norm_parameters,
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
            return 1.0, is_shared(c.cores), rows, rows * n["k"], 0, 0, 0
        return 1.0, is_shared(c.cores), 0, 0, 1, rows, rows * n["k"]

    return trips


SOFTMAX = Family(("call", "shared", "rows", "elements", "strided", "strided rows", "strided elements"), _softmax)
