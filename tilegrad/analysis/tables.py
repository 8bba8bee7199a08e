"""Nests as the words that the tile runtime works on (runtime/cluster/tg_tile.h has the layout).

Everything is as the first tile needs it. Loops list what they change: dimensions of boxes, and argument words that are
not the same for all tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain
from math import prod

import numpy as np

from tilegrad.analysis.footprint import is_dimension_cut, tile_at, transfer_levels
from tilegrad.analysis.layout import (
    CALL,
    CONSTANTS,
    DIM,
    FIELD,
    LOOP,
    MAX_OPERANDS,
    MAX_RESULTS,
    NEST,
    OPERAND,
    WORD_BYTES,
)
from tilegrad.errors import InternalError
from tilegrad.ir.nest import (
    Access,
    AxisKind,
    Nest,
    Operand,
    Range,
    Tile,
    along,
    epilogue_factors,
    kernel_argument,
    operand_box,
    operand_range,
    row_major_strides,
)
from tilegrad.ir.schedule import Loop, Tiling
from tilegrad.ops import registry
from tilegrad.ops.kernels import parse_kernel_file

NEST_WORDS, OPERAND_WORDS, CALL_WORDS = NEST.words, OPERAND.words, CALL.words

Fields = Sequence[tuple[str, str]]  # (C type, name) of the kernel's argument words


@dataclass(frozen=True)
class _Dim:
    """A dimension of an operand that a loop moves. `sizes` of its box, by the loop's step; it `is_plain` where its
    positions are just the loop's."""

    operand: int
    dim: int
    loop: int
    sizes: tuple[int, ...]
    is_plain: bool

    @property
    def is_constant(self) -> bool:
        return len(set(self.sizes)) == 1


@dataclass(frozen=True)
class _Field:
    """An argument word that changes, in the way that the runtime calls `kind`. `loops` that change the word; `of` is
    where in the table it comes from, if it does."""

    word: int
    kind: str
    by: int
    loops: frozenset[int]
    of: int = 0


@cache
def argument_fields(op: str, kernel: str) -> tuple[tuple[str, str], ...]:
    """The argument words of an operator's kernel; a target's own version has the same."""
    source = registry.kernel_source(op)
    if source is None:
        raise InternalError(f"operator {op} has nests but no C file")
    found = next((k.arguments.fields for k in parse_kernel_file(source).kernels if k.name == kernel), None)
    if found is None:
        raise InternalError(f"no kernel tg_{kernel} for operator {op}")
    return found


def nest_fields(op: str, nest: Nest) -> tuple[tuple[str, str], ...]:
    """The argument words of a nest of an operator: those of its kernel, then those of its epilogues."""
    first, *others = registry.parts(op)
    found = argument_fields(first, nest.kernel)
    for k, (other, epilogue) in enumerate(zip(others, nest.epilogues, strict=False)):
        own = argument_fields(other, epilogue.nest.kernel)
        found += tuple((c_type, f"then{k}_{name}") for c_type, name in own)
    return found


def simple_steps(table: Sequence[int]) -> int:
    """How often in a row the innermost loop of a nest moves on simply (`is_simple` of tg_loop)."""
    nest = NEST.decode(table[: NEST.words])
    if not nest["loop_count"]:
        return 0
    at = NEST.words + OPERAND.words * nest["operand_count"]
    loop = LOOP.decode(table[at : at + LOOP.words])
    return (loop["extent"] - 1) // loop["tile"] if loop["is_simple"] else 0


_KNOWN: dict[object, Encoder] = {}
_MOST_KNOWN = 1 << 13


def _encoder(op: str, nest: Nest, tiling: Tiling | None, longest_bytes: int) -> Encoder:
    """Made once for each kind of nest and way of cutting it."""
    key = (op, nest.kind, None if tiling is None else tiling.key, longest_bytes)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = Encoder(nest.anchored, tiling, nest_fields(op, nest), longest_bytes)
    return found


def describing_bytes(op: str, nest: Nest, tiling: Tiling, longest_bytes: int) -> int:
    return _encoder(op, nest, tiling, longest_bytes).described_bytes


def table_of(op: str, nest: Nest, tiling: Tiling | None, longest_bytes: int) -> tuple[int, ...]:
    """The table of an operator's nest. Homes in a call say where in their operands nests of a kind begin
    (`Nest.skipped_bytes`)."""
    return _encoder(op, nest, tiling, longest_bytes).words


class Encoder:
    """The table of a nest, with 0 for the kernel's number. `tiling` None: it computes where its operands live.

    `*_at` is where things are in the table, in words: dimensions by operand and number, levels by operand.
    """

    def __init__(self, nest: Nest, tiling: Tiling | None, fields: Fields, longest_bytes: int) -> None:
        self.nest = nest
        self.tiling = tiling
        self.arguments = fields
        self.longest_bytes = longest_bytes
        outermost_first = () if tiling is None else tiling.loops
        self.loops: tuple[Loop, ...] = tuple(reversed(outermost_first))
        self.first: Tile = tile_at(nest, outermost_first, [0] * len(outermost_first))
        present = [(i, operand) for i, operand in enumerate(nest.operands) if operand.value is not None]
        self.boxes = {i: operand_box(operand, self.first) for i, operand in present}
        dims = [
            self._dim(i, d, operand)
            for i, operand in present
            for d in range(len(operand.shape))
            if is_dimension_cut(operand, d, self.loops)
        ]
        self.dims = sorted(dims, key=lambda dim: (dim.loop, nest.operands[dim.operand].access is Access.WRITE))
        self.dim_of = {(dim.operand, dim.dim): dim for dim in self.dims}
        self.levels = {i: transfer_levels(operand, nest, self.loops) for i, operand in present}
        self.operands_at = range(NEST.words, NEST.words + OPERAND.words * len(nest.operands), OPERAND.words)
        self.loops_at = range(self.operands_at.stop, self.operands_at.stop + LOOP.words * len(self.loops), LOOP.words)
        self.dims_at = {place: self.loops_at.stop + k * DIM.words for k, place in enumerate(self.dim_of)}
        self.fields = [found for word, (_, name) in enumerate(fields) for found in self._field(word, name)]
        self.fields_at = self.loops_at.stop + DIM.words * len(self.dims)
        self.args_at = self.fields_at + FIELD.words * sum(len(one.loops) for one in self.fields)
        self.levels_at: dict[int, int] = {}
        self.end = self.args_at + len(fields)
        for i in filter(self._has_levels, self.levels):
            self.levels_at[i] = self.end
            self.end += 1 + 2 * max(0, len(self.levels[i]) - 2)

    def _dim(self, i: int, d: int, operand: Operand) -> _Dim:
        assert operand.index is not None
        moving = [k for k, loop in enumerate(self.loops) if operand.index[d].coefficient(loop.axis)]
        if len(moving) > 1:
            raise InternalError(f"two loops move one dimension of operand '{operand.name}' of tg_{self.nest.kernel}")
        loop, index = self.loops[moving[0]], operand.index[d]
        if index == along(loop.axis) and operand.shape[d] >= loop.extent:
            whole = loop.count - 1
            return _Dim(i, d, moving[0], (loop.tile,) * whole + (loop.extent - whole * loop.tile,), True)
        steps = (Range(k * loop.tile, min((k + 1) * loop.tile, loop.extent)) for k in range(loop.count))
        sizes = [operand_range(index, operand.shape[d], {**self.first, loop.axis: step}).size for step in steps]
        return _Dim(i, d, moving[0], tuple(sizes), False)

    def _field(self, word: int, name: str) -> list[_Field]:
        """How an argument word follows from the tile; nothing where it never changes."""
        if name in self.nest.constants:
            return []
        factors = epilogue_factors(name, self.nest)
        if factors is not None:
            return self._product(word, *factors) if isinstance(factors, tuple) else []
        axes = [loop.axis for loop in self.loops]
        if name in ("first", "last"):
            reductions = [i for i, a in enumerate(axes) if self.nest.axis(a).kind is AxisKind.REDUCTION]
            mask = sum(1 << i for i in reductions)
            changes = reductions and self._may_be(name)
            return [_Field(word, f"TG_{name.upper()}", mask, frozenset(reductions))] if changes else []
        prefix, _, rest = name.partition("_")
        if prefix in ("n", "at") and rest in axes:
            loop = axes.index(rest)
            if prefix == "n" and self.loops[loop].extent % self.loops[loop].tile == 0:
                return []
            of, own = self.loops_at[loop] + LOOP.places["size" if prefix == "n" else "start"], frozenset({loop})
            origin = self.nest.starts_at(rest) if prefix == "at" else 0
            if origin:
                return [_Field(word, "TG_SET", origin, own), _Field(word, "TG_ADD", 1, own, of)]
            return [_Field(word, "TG_COPY", 0, own, of)]
        found = ((i, o) for i, o in enumerate(self.nest.operands) if o.name == prefix and o.value is not None)
        return next((self._operand_field(word, i, operand, rest) for i, operand in found), [])

    def _may_be(self, end: str) -> bool:
        """Whether a tile of the nest is the first or the last of its sums, of which it may be a part."""
        axes = [axis for axis in self.nest.axes if axis.kind is AxisKind.REDUCTION]
        starts = {axis.name: self.nest.starts_at(axis.name) for axis in axes}
        if end == "first":
            return not any(starts.values())
        return all(starts[axis.name] + axis.extent == self.nest.whole_extent(axis.name) for axis in axes)

    def _operand_field(self, word: int, i: int, operand: Operand, rest: str) -> list[_Field]:
        kind, digits = rest[:1], rest[1:]
        if rest.startswith("by_") and operand.index is not None:
            steps = [index.coefficient(rest.removeprefix("by_")) for index in operand.index]
            return self._stride(word, i, [(d, step) for d, step in enumerate(steps) if step])
        if not digits.isdigit():
            return []
        if kind == "s":
            return self._stride(word, i, [(int(digits), 1)])
        dim = self.dim_of.get((i, int(digits)))
        if dim is None or kind not in ("n", "o"):
            return []
        assert operand.index is not None
        of, own = self.dims_at[i, dim.dim], frozenset({dim.loop})
        if kind == "n":
            return [] if dim.is_constant else [_Field(word, "TG_COPY", 0, own, of + DIM.places["size"])]
        offset = operand.index[dim.dim].offset
        return [] if dim.is_plain else [_Field(word, "TG_ORIGIN", offset, own, of)]

    def _stride(self, word: int, i: int, terms: Sequence[tuple[int, int]]) -> list[_Field]:
        """A sum of box strides; nothing where no box changes its size."""
        box = self.boxes[i]
        found: list[tuple[str, int, int]] = []  # kind, by, of
        every: set[int] = set()
        for d, coefficient in terms:
            inner = [self.dim_of.get((i, e)) for e in range(d + 1, len(box))]
            moving = [dim for dim in inner if dim is not None and not dim.is_constant]
            every |= {dim.loop for dim in moving}
            fixed = [box[e].size for e in range(d + 1, len(box)) if all(dim.dim != e for dim in moving)]
            factor = prod(fixed, start=coefficient)
            if not moving and found:
                raise InternalError(f"tg_{self.nest.kernel}: a stride that only partly changes")
            sizes = [self.dims_at[i, dim.dim] + DIM.places["size"] for dim in moving]
            kind = "TG_SET" if not moving else "TG_ADD" if found else "TG_SCALE"
            found.append((kind, factor, sizes[0] if sizes else 0))
            found += [("TG_TIMES", 0, size) for size in sizes[1:]]
        return [_Field(word, kind, by, frozenset(every), of) for kind, by, of in found] if every else []

    def _product(self, word: int, operand: str, dims: tuple[int, ...]) -> list[_Field]:
        """Of an operand's box along some dimensions; nothing where none of them changes its size."""
        i = next(k for k, one in enumerate(self.nest.operands) if one.name == operand)
        moving = [one for d in dims if (one := self.dim_of.get((i, d))) is not None and not one.is_constant]
        loops, changing = frozenset(one.loop for one in moving), {one.dim for one in moving}
        fixed = prod(self.boxes[i][d].size for d in dims if d not in changing)
        sizes = [self.dims_at[i, one.dim] + DIM.places["size"] for one in moving]
        scaled = [_Field(word, "TG_SCALE", fixed, loops, of) for of in sizes[:1]]
        return scaled + [_Field(word, "TG_TIMES", 0, loops, of) for of in sizes[1:]]

    def _dims_of(self, loop: int, access: Access) -> list[_Dim]:
        return [d for d in self.dims if d.loop == loop and self.nest.operands[d.operand].access is access]

    def _has_levels(self, i: int) -> bool:
        """More than rows, maybe longer than the engine takes, or maybe empty."""
        if self.tiling is None:
            return False
        largest = self.tiling.slots[self.nest.operands[i].name].slot_bytes
        may_be_empty = not all(r.size for r in self.boxes[i]) or any(
            0 in dim.sizes for dim in self.dims if dim.operand == i
        )
        return len(self.levels[i]) > 2 or largest > self.longest_bytes or may_be_empty

    def _is_simple(self, dims: Sequence[_Dim]) -> bool:
        """Whether a step only moves rows: one plain dimension of each operand."""
        operands = {dim.operand for dim in dims if dim.is_plain}
        return len(operands) == len(dims) and not any(map(self._has_levels, operands))

    @property
    def described_bytes(self) -> int:
        """What the nest's call and table take together, with room for a second set of arguments where some change."""
        changing_arg_count = len(self.arguments) if self.fields else 0
        return WORD_BYTES * (CALL.words + len(self.nest.operands) + self.end + changing_arg_count)

    @cached_property
    def words(self) -> tuple[int, ...]:
        if len(self.nest.operands) > MAX_OPERANDS:
            raise InternalError(f"tg_{self.nest.kernel} has more operands than the runtime takes")
        if sum(o.access is Access.WRITE for o in self.nest.operands) > MAX_RESULTS:
            raise InternalError(f"tg_{self.nest.kernel} has more results than the runtime takes")
        is_double = self.tiling is not None and self.tiling.is_double
        asks_ahead = self.tiling is not None and self.tiling.asks_ahead
        results = [i for i, o in enumerate(self.nest.operands) if o.value is not None and o.access is Access.WRITE]
        is_large = any(map(self._has_levels, results))
        result = NEST.encode(
            kernel=0,
            operand_count=len(self.nest.operands),
            loop_count=len(self.loops),
            args=self.args_at,
            tiles=1 if self.tiling is None else self.tiling.tile_count,
            is_double=CONSTANTS["TG_AHEAD"] if asks_ahead and not is_large else int(is_double),
            is_large=int(is_large),
            args_turn=self.args_at + (self.end if self.fields else self.args_at),
            arg_count=len(self.arguments) if self.fields else 0,
        )
        for i, operand in enumerate(self.nest.operands):
            result += self._operand_words(i, operand)
        of_loops = [[one for one in self.fields if i in one.loops] for i in range(len(self.loops))]
        counts = accumulate(map(len, of_loops), initial=0)
        for i, before in zip(range(len(self.loops)), counts, strict=False):
            result += self._loop_words(i, before, len(of_loops[i]), is_double and not is_large)
        for dim in self.dims:
            result += self._dim_words(dim)
        for one in chain.from_iterable(of_loops):
            result += FIELD.encode(word=one.word, kind=CONSTANTS[one.kind], of=one.of, by=one.by)
        result += self._argument_words()
        for i in self.levels_at:
            box, outer = [r.size for r in self.boxes[i]], self.levels[i][2:]
            result += [len(outer), *(word for level in outer for word in (level.size(box), level.far_stride))]
        return tuple(result)

    def _loop_words(self, i: int, fields_before: int, field_count: int, may_be_simple: bool) -> list[int]:
        loop, reads, writes = self.loops[i], self._dims_of(i, Access.READ), self._dims_of(i, Access.WRITE)
        dims = reads + writes
        return LOOP.encode(
            extent=loop.extent,
            tile=loop.tile,
            start=0,
            size=loop.tile,
            reads=_bits(reads),
            results=_bits(writes),
            dims=self.dims_at[dims[0].operand, dims[0].dim] if dims else 0,
            read_count=len(reads),
            write_count=len(writes),
            fields=self.fields_at + FIELD.words * fields_before,
            field_count=field_count,
            is_simple=int(may_be_simple and self._is_simple(dims)),
        )

    def _operand_words(self, i: int, operand: Operand) -> list[int]:
        words = dict.fromkeys(OPERAND.fields, 0) | {"access": int(operand.access is Access.WRITE)}
        if operand.value is None:
            return OPERAND.encode(**words)
        box, size = self.boxes[i], operand.element_bytes
        strides = row_major_strides(operand.shape)
        is_empty = not all(r.size for r in box)
        far = size * sum(r.start * s for r, s in zip(box, strides, strict=True))
        if self.tiling is None:
            span = size * (1 + sum((r.size - 1) * s for r, s in zip(box, strides, strict=True)))
            there = {} if is_empty else {"far": far, "row_bytes": span}
            return OPERAND.encode(**words | there | {"rows": 1})
        slot = self.tiling.slots[operand.name]
        sizes = [level.size([r.size for r in box]) for level in self.levels[i]]
        rows, stride = (sizes[1], self.levels[i][1].far_stride) if len(sizes) > 1 else (1, 0)
        return OPERAND.encode(
            access=words["access"],
            scratch=slot.offset_bytes,
            turn=2 * slot.offset_bytes + (slot.slot_bytes if slot.count == 2 else 0),
            far=far,
            row_bytes=0 if is_empty else sizes[0],
            rows=rows,
            stride=stride,
            levels=self.levels_at.get(i, 0),
        )

    def _dim_words(self, dim: _Dim) -> list[int]:
        operand = self.nest.operands[dim.operand]
        assert operand.index is not None
        index, loop = operand.index[dim.dim], self.loops[dim.loop]
        box = self.boxes[dim.operand][dim.dim]
        at = self.operands_at[dim.operand]
        stride = row_major_strides(operand.shape)[dim.dim] * operand.element_bytes
        shape = factor = 0
        if not dim.is_constant:
            levels = self.levels[dim.operand]
            k = next(k for k, level in enumerate(levels) if level.dim == dim.dim)
            outer = self.levels_at.get(dim.operand, 0) + 1 + 2 * (k - 2)
            shape = outer if k > 1 else at + OPERAND.places[("row_bytes", "rows")[k]]
            factor = levels[k].factor
        low = high = index.offset
        for axis, coefficient in index.terms:
            if axis != loop.axis:
                reach = coefficient * (self.nest.axis(axis).extent - 1)
                low, high = low + min(0, reach), high + max(0, reach)
        return DIM.encode(
            operand=at,
            index=dim.operand,
            far_stride=stride,
            far_step=stride * loop.tile,
            shape=shape,
            factor=factor,
            start=box.start,
            size=box.size,
            coefficient=index.coefficient(loop.axis),
            low=low,
            high=high,
            divisor=0 if dim.is_plain else index.divisor,
            extent=0 if dim.is_plain else operand.shape[dim.dim],
        )

    def _argument_words(self) -> list[int]:
        strides = {}
        for i, operand in enumerate(self.nest.operands):
            if operand.value is not None:
                shape = operand.shape if self.tiling is None else tuple(r.size for r in self.boxes[i])
                strides[operand.name] = row_major_strides(shape)
        values = argument_values(self.arguments, self.nest, self.first, strides)
        return [float_word(value) if isinstance(value, float) else value for value in values]


def argument_values(
    fields: Sequence[tuple[str, str]], nest: Nest, tile: Tile, strides: Mapping[str, tuple[int, ...]]
) -> list[int | float]:
    """What a kernel is given for a tile: of each field, by its C type and its name."""
    found: list[int | float] = []
    for c_type, name in fields:
        value = kernel_argument(name, nest, tile, strides)
        if value is None:
            raise InternalError(f"nothing gives the field '{name}' of tg_{nest.kernel}")
        found.append(float(value) if c_type == "float" else int(value))
    return found


def _bits(dims: Sequence[_Dim]) -> int:
    """The operands that these are of."""
    return sum(1 << operand for operand in {dim.operand for dim in dims})


def float_word(value: float) -> int:
    """The bits of a float."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.int32))


def float_of_word(word: int) -> float:
    return float(np.int32(word).view(np.float32))
