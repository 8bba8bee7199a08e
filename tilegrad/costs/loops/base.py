"""What a kernel's cost depends on: how often each of its loops runs on the busiest core.

Each family of kernels has a function that computes trip counts ("trips") from a tile's sizes and the number of cores:
matrix products and convolutions have one beside this file that mirrors the loops of their C source, and all others are
derived from the nest (costs/derived.py). Instructions of every class are a non-negative combination of them, whose
coefficients `make calibrate` fits to counts. Where the code itself differs (an absent operand, another constant), the
coefficients do too: that is a `variant`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import ge, mul

from tilegrad.ir.nest import AxisKind, Nest

Sizes = Mapping[str, int]
Trips = Sequence[float]


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call: a tile's sizes and where it starts, on so many cores.

    `loads` are the instructions of each trip, as they were counted: the core whose trips weigh most is the busiest.
    Where there is one core there is no choice, and they may be missing.
    """

    n: Sizes
    at: Sizes
    cores: int
    first: bool  # no tile of a reduction came before
    last: bool
    loads: Trips = ()


Counter = Callable[[Call], Trips]


@dataclass(frozen=True)
class Family:
    """`bind` looks at a nest once; what it returns is called for every tile.

    `constants` are those of the nest's constants that select code, and so belong to the variant.
    """

    names: tuple[str, ...]
    bind: Callable[[Nest], Counter]
    constants: tuple[str, ...] = ()
    pattern: Callable[[Nest], str] | None = None

    def variant(self, nest: Nest) -> str:
        parts = [f"no-{operand.name}" for operand in nest.operands if operand.value is None]
        parts += [_constant_kind(name, nest.constants[name]) for name in self.constants if name in nest.constants]
        if self.pattern is not None:
            parts.append(self.pattern(nest))
        return " ".join(filter(None, parts))


def _constant_kind(name: str, value: float) -> str:
    """Floats select code only by being 0 or 1."""
    if isinstance(value, float) and value not in (0.0, 1.0):
        return f"{name}=any"
    return f"{name}={int(value)}"


def call_of(nest: Nest, sizes: Sizes, starts: Sizes | None, cores: int, loads: Trips) -> Call:
    """Where the start along an axis is not known: a tile in the middle if there is one."""
    at = {}
    is_first = is_last = True
    for axis in nest.axes:
        name, extent = axis.name, axis.extent
        size = sizes[name]
        if size == extent:
            at[name] = 0
            continue
        start = (size if 2 * size <= extent else 0) if starts is None else starts.get(name, 0)
        at[name] = start
        if axis.kind is AxisKind.REDUCTION:
            is_first = is_first and start == 0
            is_last = is_last and start + size >= extent
    return Call(sizes, at, cores, is_first, is_last, loads)


def share(count: int, cores: int) -> int:
    """Rounded up: the largest share of `tg_share`, or blocks of which the last one may be short."""
    return -(-count // cores)


def is_shared(cores: int) -> float:
    """Whether `tg_share` has to divide."""
    return float(cores > 1)


def bounds(count: int, core: int, cores: int) -> tuple[int, int]:
    """What `tg_share` gives a core."""
    quotient, rest = divmod(count, cores)
    start = quotient * core + min(core, rest)
    return start, start + quotient + (core < rest)


def pieces(start: int, stop: int, length: int) -> int:
    """The runs of `length` that a share of units has a part of."""
    return (stop - 1) // length - start // length + 1 if stop > start else 0


def dot(trips: Iterable[float], loads: Iterable[float]) -> float:
    load: float = sum(map(mul, trips, loads))
    return load


def sum_of(*terms: tuple[float, Trips]) -> list[float]:
    """So many times the trips of each, together."""
    often, trips = zip(*terms, strict=True)
    return [dot(often, column) for column in zip(*trips, strict=True)]


def heaviest(candidates: Sequence[Trips], loads: Trips) -> Trips:
    """The trips of the busiest core, among those of cores that may be it."""
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda trips: dot(trips, loads))


def most_of(works: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Without those that have no more of anything than another one: of works that differ."""
    return tuple(work for work in works if not any(other != work and all(map(ge, other, work)) for other in works))


@lru_cache(maxsize=65536)
def shares_in_runs(count: int, length: int, cores: int) -> tuple[tuple[int, int], ...]:
    """The units of every core, and the pieces that they are cut into where a run of `length` ends; each once."""
    found: dict[tuple[int, int], None] = {}
    for core in range(cores):
        start, stop = bounds(count, core, cores)
        if stop > start:
            found[stop - start, pieces(start, stop, length)] = None
    return tuple(found)


def has_operand(nest: Nest, name: str) -> bool:
    return any(operand.name == name for operand in nest.present)
