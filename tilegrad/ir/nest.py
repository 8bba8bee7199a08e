"""A nest: one loop nest of an operator, with its axes declared once.

Everything the scheduler needs follows from the axes and from each operand's index map: what a tile touches, how many
bytes it moves, how it splits over cores, and the arguments of the kernel call. A kernel computes any rectangular tile
of its nest; the whole nest is just the largest tile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from math import prod

from tilegrad.ir.types import DType, TensorType


class AxisKind(Enum):
    PARALLEL = "parallel"  # any tile order, may be split over cores
    REDUCTION = "reduction"  # tiles in ascending order; outputs continue their accumulator; never split over cores
    INNER = "inner"  # the kernel needs the whole extent in every tile (e.g. a softmax row)


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    extent: int
    kind: AxisKind = AxisKind.PARALLEL


@dataclass(frozen=True, slots=True)
class Index:
    """Position along one operand dimension: `(sum(coefficient * axis) + offset) / divisor`.

    A divisor above one is the gather form of a strided gradient: only the exact quotients exist. Positions outside
    the operand are padding, which the kernel skips.
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0
    divisor: int = 1

    def coefficient(self, axis: str) -> int:
        return sum([c for name, c in self.terms if name == axis])


@cache
def along(axis: str) -> Index:
    """The plain map: position equals the axis."""
    return Index(((axis, 1),))


FIXED = Index()
"""Position 0 whatever the tile: a broadcast dimension."""


class Access(Enum):
    """In-place operators have two operands, one read and one written, which the plan may put at one address."""

    READ = "read"
    WRITE = "write"  # every element of the tile's range is written; with a cut reduction it is also continued


@dataclass(frozen=True)
class Operand:
    """One pointer of a kernel.

    `name` is the pointer's name in the kernel's C signature. `shape` is a row-major view of the tensor's elements
    (a nest may merge or split dimensions). `index` has one entry per view dimension, or is None when the whole
    operand is needed whatever the tile (data-dependent reads). `value` None is an absent optional: a null pointer.
    `dtype` is the value's: an operator leaves it to whoever knows its node's types (`Nest.typed`). `continues` is the
    result whose sum another panel began: it is brought to where that one is computed; kernels have no pointer to it.
    """

    name: str
    value: str | None
    access: Access
    shape: tuple[int, ...] = ()
    index: tuple[Index, ...] | None = None
    dtype: DType = DType.F32
    continues: str | None = None

    @property
    def element_bytes(self) -> int:
        return self.dtype.size_bytes

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.element_bytes

    @cached_property
    def axes(self) -> frozenset[str]:
        """Those that its box moves along."""
        return frozenset(axis for index in self.index or () for axis, _ in index.terms)


@dataclass(frozen=True)
class NestKind:
    """What a nest is, whatever values it is applied to: equal kinds have the same tilings, tables and costs.

    Operands are those of the anchored nest with `value` "" where there is one.
    """

    kernel: str
    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    constants: tuple[tuple[str, str], ...]
    origin: tuple[tuple[str, int, int], ...] = ()
    epilogues: tuple[EpilogueKind, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.kernel, self.axes, self.operands, self.constants, self.origin, self.epilogues))


EpilogueKind = tuple[NestKind, tuple[tuple[int, ...], ...], str, tuple[str, ...]]


# Equal kinds are one object, so that looking one up compares no fields.
_KINDS: dict[NestKind, NestKind] = {}
_MOST_KINDS = 1 << 16


@dataclass(frozen=True)
class Nest:
    """`kernel` is the C function without its `tg_` prefix; `constants` are its remaining arguments by field name.

    A nest that is a part of another one says of axes whose positions its kernel knows where they begin there, and how
    long they are there: `origin`. `epilogues` are other kernels that go on with each tile, in turn.
    """

    kernel: str
    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    constants: Mapping[str, int | float] = field(default_factory=dict)
    counts_macs: bool = False
    macs_override: int | None = None  # where the product of the axes is not the nominal count (strided gathers)
    origin: tuple[tuple[str, int, int], ...] = ()
    epilogues: tuple[Epilogue, ...] = ()

    def axis(self, name: str) -> Axis:
        return self._axes[name]

    @cached_property
    def kind(self) -> NestKind:
        operands = tuple(
            o if o.value is None else Operand(o.name, "", o.access, o.shape, o.index, o.dtype, o.continues)
            for o in self.anchored.operands
        )
        constants = tuple((name, repr(value)) for name, value in sorted(self.constants.items()))  # 0.0 and -0.0 are two
        kind = NestKind(
            self.kernel, self.axes, operands, constants, self.origin, tuple(one.kind for one in self.epilogues)
        )
        if len(_KINDS) >= _MOST_KINDS:
            _KINDS.clear()
        return _KINDS.setdefault(kind, kind)

    @cached_property
    def skipped(self) -> tuple[tuple[int, ...], ...]:
        """How far into each operand, by dimension, a nest begins that works on a part of it: where positions are those
        of an axis, further on."""
        return tuple(
            tuple(
                one.offset if one.offset > 0 and self._is_inside(one, extent) else 0
                for one, extent in zip(operand.index or (), operand.shape, strict=False)
            )
            for operand in self.operands
        )

    def _is_inside(self, index: Index, extent: int) -> bool:
        if len(index.terms) != 1 or index.divisor != 1:
            return not index.terms and index.divisor == 1 and index.offset < extent
        ((axis, coefficient),) = index.terms
        return coefficient == 1 and index.offset + self.axis(axis).extent <= extent

    @cached_property
    def skipped_bytes(self) -> tuple[int, ...]:
        return tuple(
            o.element_bytes * sum(k * stride for k, stride in zip(own, row_major_strides(o.shape), strict=False))
            for o, own in zip(self.operands, self.skipped, strict=True)
        )

    @cached_property
    def anchored(self) -> Nest:
        """The nest as if its operands began where it begins, which is what nests of a kind have in common."""
        if not any(map(any, self.skipped)):
            return self
        operands = tuple(
            replace(o, index=tuple(replace(one, offset=one.offset - k) for one, k in zip(o.index, own, strict=True)))
            if o.index is not None and any(own)
            else o
            for o, own in zip(self.operands, self.skipped, strict=True)
        )
        return replace(self, operands=operands)

    @property
    def kernels(self) -> tuple[str, ...]:
        """All that run on a tile, in turn."""
        return (self.kernel, *(one.nest.kernel for one in self.epilogues))

    @property
    def title(self) -> str:
        """As it is shown to people."""
        return "+".join(self.kernels)

    @cached_property
    def without_epilogues(self) -> Nest:
        """What its own kernel does and points to."""
        if not self.epilogues:
            return self
        of_others = {name for one in self.epilogues for name in one.operands if name != one.result}
        return replace(self, operands=tuple(o for o in self.operands if o.name not in of_others), epilogues=())

    @cached_property
    def shared_axes(self) -> frozenset[str]:
        """Parallel axes that all results move along."""
        parallel = frozenset(axis.name for axis in self.axes if axis.kind is AxisKind.PARALLEL)
        return parallel.intersection(*(one.axes for one in self.results))

    @cached_property
    def everything(self) -> Tile:
        return {axis.name: Range(0, axis.extent) for axis in self.axes}

    @cached_property
    def whole_sizes(self) -> dict[str, tuple[int, ...]]:
        """Of the boxes that the whole nest touches, by operand."""
        return {o.name: tuple(r.size for r in operand_box(o, self.everything)) for o in self.present}

    @cached_property
    def _axes(self) -> dict[str, Axis]:
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def present(self) -> tuple[Operand, ...]:
        """Operands that are not absent optionals."""
        return tuple(operand for operand in self.operands if operand.value is not None)

    @cached_property
    def pointers(self) -> tuple[Operand, ...]:
        """Those that the kernel has pointers to."""
        return tuple(operand for operand in self.operands if operand.continues is None)

    @cached_property
    def reads(self) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.present if operand.access is Access.READ)

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.present if operand.access is Access.WRITE)

    def starts_at(self, axis: str) -> int:
        return next((start for name, start, _ in self.origin if name == axis), 0)

    def whole_extent(self, axis: str) -> int:
        return next((extent for name, _, extent in self.origin if name == axis), self.axis(axis).extent)

    def operand(self, name: str) -> Operand:
        return next(operand for operand in self.operands if operand.name == name)

    def typed(self, types: Mapping[str, TensorType]) -> Nest:
        """With the element type of each operand's value."""
        if all(o.value is None or o.dtype is types[o.value].dtype for o in self.operands):
            return self
        operands = tuple(o if o.value is None else replace(o, dtype=types[o.value].dtype) for o in self.operands)
        return replace(self, operands=operands)

    @property
    def macs(self) -> int:
        """Nominal multiply-accumulates, taps on padding counted."""
        if not self.counts_macs:
            return 0
        return prod(axis.extent for axis in self.axes) if self.macs_override is None else self.macs_override


@dataclass(frozen=True)
class Epilogue:
    """The nest of an element-wise operator, done on each tile of another nest as soon as that has made it.

    `groups` are the dimensions of that one's operand `result` that each of its axes stands for. `operands` are those of
    the other nest that its pointers point to. There, boxes are dense, and so is what a tile is to it.
    """

    nest: Nest
    groups: tuple[tuple[int, ...], ...]
    result: str
    operands: tuple[str, ...]

    @cached_property
    def kind(self) -> EpilogueKind:
        return self.nest.kind, self.groups, self.result, self.operands

    def sizes(self, box: Sequence[int]) -> dict[str, int]:
        """Of its own tile, where the result has such a box."""
        pairs = zip(self.nest.axes, self.groups, strict=True)
        return {axis.name: prod(box[d] for d in group) for axis, group in pairs}

    def factors(self, field_name: str) -> int | float | tuple[str, tuple[int, ...]] | None:
        """What a field of its kernel's arguments is: a number, or the product of an operand's box along dimensions."""
        if field_name in self.nest.constants:
            return self.nest.constants[field_name]
        prefix, _, rest = field_name.partition("_")
        groups = {axis.name: group for axis, group in zip(self.nest.axes, self.groups, strict=True)}
        if prefix == "n" and rest in groups:
            return (self.result, groups[rest]) if groups[rest] else 1
        axis = rest.removeprefix("by_")
        pairs = zip(self.nest.operands, self.operands, strict=True)
        found = next(((one, name) for one, name in pairs if one.name == prefix), None)
        if found is None or axis not in groups or axis == rest:
            return None
        operand, name = found
        if axis not in operand.axes or not groups[axis]:
            return 0
        every = max(d for group in self.groups for d in group)
        return name, tuple(range(groups[axis][-1] + 1, every + 1))


EPILOGUE_FIELD = re.compile(r"then(?P<number>\d)_(?P<name>\w+)")
"""How fields of epilogues are called among the arguments of a nest."""


def epilogue_factors(field_name: str, nest: Nest) -> int | float | tuple[str, tuple[int, ...]] | None:
    """As `Epilogue.factors`, by a field of the nest's arguments; None where it is no epilogue's."""
    match = EPILOGUE_FIELD.fullmatch(field_name) if nest.epilogues else None
    return None if match is None else nest.epilogues[int(match["number"])].factors(match["name"])


def map_nest(
    kernel: str,
    size: int,
    reads: Sequence[tuple[str, str | None]],
    writes: Sequence[tuple[str, str | None]],
    constants: Mapping[str, float] | None = None,
) -> Nest:
    """All operands have `size` elements. Operands are (pointer name, value): the kernel's pointers, reads first."""

    def operand(name: str, value: str | None, access: Access) -> Operand:
        return Operand(name, value, access, (size,), (along("i"),))

    return Nest(
        kernel,
        (Axis("i", size),),
        (
            *(operand(name, value, Access.READ) for name, value in reads),
            *(operand(name, value, Access.WRITE) for name, value in writes),
        ),
        {"alpha": 0.0, "beta": 0.0, **(constants or {})},
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Half-open."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


Tile = Mapping[str, Range]


def whole(nest: Nest) -> Tile:
    """The tile that is the nest itself."""
    return nest.everything


def ordered_sizes(nest: Nest, sizes: Mapping[str, int]) -> dict[str, int]:
    """Tile sizes that keep the order of every sum, from any wished ones.

    Reduction axes are declared outermost first and their tiles run in that order. Cutting one of them keeps the order
    of the sum only if all reduction axes outside it advance by single steps; inner axes are never cut.
    """
    result = {}
    inner_is_cut = False
    for axis in reversed(nest.axes):
        size = max(1, min(sizes.get(axis.name, axis.extent), axis.extent))
        if axis.kind is AxisKind.INNER:
            size = max(1, axis.extent)
        elif axis.kind is AxisKind.REDUCTION:
            size = 1 if inner_is_cut else size
            inner_is_cut = inner_is_cut or size < axis.extent
        result[axis.name] = size
    return result


def operand_range(index: Index, extent: int, tile: Tile) -> Range:
    """The positions of one operand dimension that a tile touches, clipped to the operand."""
    low = high = index.offset
    for axis, coefficient in index.terms:
        along_axis = tile[axis]
        first, last = coefficient * along_axis.start, coefficient * (along_axis.stop - 1)
        low, high = (low + first, high + last) if first < last else (low + last, high + first)
    start = max(0, -(-low // index.divisor))
    stop = min(extent, high // index.divisor + 1)
    return Range(start, max(start, stop))


def operand_box(operand: Operand, tile: Tile) -> tuple[Range, ...]:
    """The box of an operand's view that a tile touches."""
    if operand.index is None:
        return tuple(Range(0, extent) for extent in operand.shape)
    return tuple(operand_range(index, extent, tile) for index, extent in zip(operand.index, operand.shape, strict=True))


def box_sizes(operand: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Of the box of a result whose positions are just axes, in a tile of these sizes."""
    return tuple(sizes[index.terms[0][0]] if index.terms else 1 for index in operand.index or ())


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense row-major array."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


def _epilogue_argument(field_name: str, nest: Nest, tile: Tile) -> int | float | None:
    factors = epilogue_factors(field_name, nest)
    if not isinstance(factors, tuple):
        return factors
    box = operand_box(nest.operand(factors[0]), tile)
    return prod(box[d].size for d in factors[1])


def kernel_argument(
    field_name: str, nest: Nest, tile: Tile, strides: Mapping[str, tuple[int, ...]]
) -> int | float | None:
    """The value of one field of a kernel's argument struct, or None where the nest has no such thing.

    The names are a small grammar, the same for every kernel (CONTRIBUTING.md lists it):

    ======================  ====================================================================
    `n_AXIS`                extent of the tile along AXIS
    `at_AXIS`, `of_AXIS`    where the tile starts along AXIS; the whole extent of AXIS
    `first`, `last`         1 if no reduction axis has tiles, or panels, before (after) this one
    `OPERAND_sD`            element stride of view dimension D of where the operand lies
    `OPERAND_by_AXIS`       element stride of one step along AXIS (0: broadcast)
    `OPERAND_nD`            extent of the operand's box along D
    `OPERAND_oD`            local position along D is `(sum(coefficient * local axis) + oD) / divisor`
    `thenK_FIELD`           FIELD of the nest's epilogue number K
    anything else           `nest.constants`
    ======================  ====================================================================
    """
    if field_name in nest.constants:
        return nest.constants[field_name]
    if nest.epilogues and EPILOGUE_FIELD.fullmatch(field_name):
        return _epilogue_argument(field_name, nest, tile)
    reductions = [axis for axis in nest.axes if axis.kind is AxisKind.REDUCTION]
    if field_name == "first":
        return int(all(nest.starts_at(axis.name) + tile[axis.name].start == 0 for axis in reductions))
    if field_name == "last":
        ends = [(nest.starts_at(axis.name) + tile[axis.name].stop, nest.whole_extent(axis.name)) for axis in reductions]
        return int(all(stop == extent for stop, extent in ends))
    prefix, _, rest = field_name.partition("_")
    axis_names = {axis.name for axis in nest.axes}
    if rest in axis_names:
        if prefix == "n":
            return tile[rest].size
        if prefix == "at":
            return nest.starts_at(rest) + tile[rest].start
        if prefix == "of":
            return nest.whole_extent(rest)
    operand = next((operand for operand in nest.operands if operand.name == prefix), None)
    return None if operand is None else _operand_argument(rest, operand, axis_names, tile, strides)


def _operand_argument(
    rest: str, operand: Operand, axes: Collection[str], tile: Tile, strides: Mapping[str, tuple[int, ...]]
) -> int | None:
    """What is behind an operand's name in a field's."""
    if operand.value is None:
        return 0
    if rest.startswith("by_") and rest[3:] in axes and operand.index is not None:
        return sum(
            index.coefficient(rest[3:]) * stride
            for index, stride in zip(operand.index, strides[operand.name], strict=True)
        )
    kind, digits = rest[:1], rest[1:]
    if kind not in ("s", "n", "o") or not digits.isdigit() or int(digits) >= len(operand.shape):
        return None
    dimension = int(digits)
    if kind == "s":
        return strides[operand.name][dimension]
    box = operand_box(operand, tile)[dimension]
    if kind == "n":
        return box.size
    if operand.index is None:
        return 0
    index = operand.index[dimension]
    start = sum(coefficient * tile[axis].start for axis, coefficient in index.terms)
    return start + index.offset - index.divisor * box.start
