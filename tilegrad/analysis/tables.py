"""Nests as the words that the tile runtime works on (runtime/cluster/tg_tile.h has the layout).

Everything is as the first tile needs it. Loops list what they change: dimensions of boxes, and argument words that are
not the same for all tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from tilegrad.analysis.footprint import Level, is_dimension_cut, tile_at, transfer_levels
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
    """A dimension of an operand that a loop moves. `sizes` of its box, by the loop's step."""

    operand: int
    dim: int
    loop: int
    sizes: tuple[int, ...]

    @property
    def is_constant(self) -> bool:
        return len(set(self.sizes)) == 1


@dataclass
class _Places:
    """Where things are in the table, in words."""

    operands: list[int] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    dims: dict[tuple[int, int], int] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    fields: list[int] = field(default_factory=list)
    args: int = 0
    end: int = 0


@dataclass(frozen=True)
class _Field:
    """An argument word that changes, in the way that the runtime calls `kind`. `loops` that change the word.

    `of` is a field of a record, ("loop", number, name) or ("dim", operand, dimension, name), or no name: the record.
    """

    word: int
    kind: str
    of: tuple[str, int, int, str] | None
    by: int
    loops: frozenset[int]


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


def simple_steps(table: Sequence[int]) -> int:
    """How often in a row the innermost loop of a nest moves on simply (`is_simple` of tg_loop)."""
    nest = NEST.decode(table[: NEST.words])
    if not nest["loop_count"]:
        return 0
    at = NEST.words + OPERAND.words * nest["operand_count"]
    loop = LOOP.decode(table[at : at + LOOP.words])
    return (loop["extent"] - 1) // loop["tile"] if loop["is_simple"] else 0


def described_bytes(words: Sequence[int], operand_count: int) -> int:
    """What a nest's call and table take together, with room for a second set of arguments where some change."""
    changing_arg_count = words[NEST.places["arg_count"]]
    return WORD_BYTES * (CALL.words + operand_count + len(words) + changing_arg_count)


def describing_bytes(op: str, nest: Nest, tiling: Tiling, longest_bytes: int) -> int:
    """The same of a table that nobody has made yet."""
    return _Encoder(nest.anchored, tiling, argument_fields(op, nest.kernel), longest_bytes).described_bytes


_KNOWN: dict[object, tuple[int, ...]] = {}
_MOST_KNOWN = 1 << 15


def table_of(op: str, nest: Nest, tiling: Tiling | None, longest_bytes: int) -> tuple[int, ...]:
    """The table of an operator's nest: made once for each kind and way of cutting it. Homes in a call say where in
    their operands nests of a kind begin (`Nest.skipped_bytes`)."""
    key = (op, nest.kind, None if tiling is None else tiling.key, longest_bytes)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = table_words(nest.anchored, tiling, argument_fields(op, nest.kernel), longest_bytes)
    return found


def table_words(nest: Nest, tiling: Tiling | None, fields: Fields, longest_bytes: int) -> tuple[int, ...]:
    """The table of a nest, with 0 for the kernel's number. `tiling` None: it computes where its operands live."""
    if len(nest.operands) > MAX_OPERANDS:
        raise InternalError(f"tg_{nest.kernel} has more operands than the runtime takes")
    if sum(o.access is Access.WRITE for o in nest.operands) > MAX_RESULTS:
        raise InternalError(f"tg_{nest.kernel} has more results than the runtime takes")
    return _Encoder(nest, tiling, fields, longest_bytes).words()


class _Encoder:
    def __init__(
        self,
        nest: Nest,
        tiling: Tiling | None,
        fields: Fields,
        longest_bytes: int,
    ) -> None:
        self.nest = nest
        self.tiling = tiling
        self.arguments = fields
        self.longest_bytes = longest_bytes
        outermost_first = () if tiling is None else tiling.loops
        self.loops: tuple[Loop, ...] = tuple(reversed(outermost_first))
        self.first: Tile = tile_at(nest, outermost_first, [0] * len(outermost_first))
        self.first_boxes: dict[int, tuple[Range, ...]] = {}
        self.dims = [
            self._dim(i, d, operand)
            for i, operand in enumerate(nest.operands)
            if operand.value is not None
            for d in range(len(operand.shape))
            if is_dimension_cut(operand, d, self.loops)
        ]
        self.levels = {
            i: transfer_levels(operand, nest, self.loops)
            for i, operand in enumerate(nest.operands)
            if operand.value is not None
        }
        self.fields = self._fields()
        self.places = self._places()

    def _dim(self, i: int, d: int, operand: Operand) -> _Dim:
        assert operand.index is not None
        moving = [k for k, loop in enumerate(self.loops) if operand.index[d].coefficient(loop.axis)]
        if len(moving) > 1:
            raise InternalError(f"two loops move one dimension of operand '{operand.name}' of tg_{self.nest.kernel}")
        loop = self.loops[moving[0]]
        if self._is_along(operand, d, loop):
            whole = loop.count - 1
            return _Dim(i, d, moving[0], (loop.tile,) * whole + (loop.extent - whole * loop.tile,))
        sizes = []
        for step in range(loop.count):
            tile = {**self.first, loop.axis: Range(step * loop.tile, min((step + 1) * loop.tile, loop.extent))}
            sizes.append(operand_range(operand.index[d], operand.shape[d], tile).size)
        return _Dim(i, d, moving[0], tuple(sizes))

    def _found(self, i: int, d: int) -> _Dim | None:
        return next((dim for dim in self.dims if (dim.operand, dim.dim) == (i, d)), None)

    def _fields(self) -> list[_Field]:
        return [found for word, (_, name) in enumerate(self.arguments) for found in self._field(word, name)]

    def _field(self, word: int, name: str) -> list[_Field]:
        """How an argument word follows from the tile; nothing where it never changes."""
        if name in self.nest.constants:
            return []
        axes = [loop.axis for loop in self.loops]
        if name in ("first", "last"):
            reductions = [i for i, a in enumerate(axes) if self.nest.axis(a).kind is AxisKind.REDUCTION]
            mask = sum(1 << i for i in reductions)
            kind = "TG_FIRST" if name == "first" else "TG_LAST"
            if not self._may_be(name):
                return []
            return [_Field(word, kind, None, mask, frozenset(reductions))] if reductions else []
        prefix, _, rest = name.partition("_")
        if prefix in ("n", "at") and rest in axes:
            loop = axes.index(rest)
            is_even = self.loops[loop].extent % self.loops[loop].tile == 0
            if prefix == "n" and is_even:
                return []
            of = ("loop", loop, 0, "size" if prefix == "n" else "start")
            origin = self.nest.starts_at(rest) if prefix == "at" else 0
            if origin:
                begin = _Field(word, "TG_SET", None, origin, frozenset({loop}))
                return [begin, _Field(word, "TG_ADD", of, 1, frozenset({loop}))]
            return [_Field(word, "TG_COPY", of, 0, frozenset({loop}))]
        for i, operand in enumerate(self.nest.operands):
            if operand.name == prefix and operand.value is not None:
                return self._operand_field(word, i, operand, rest)
        return []

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
            axis = rest.removeprefix("by_")
            return self._stride(
                word, i, [(d, x.coefficient(axis)) for d, x in enumerate(operand.index) if x.coefficient(axis)]
            )
        if not digits.isdigit():
            return []
        if kind == "s":
            return self._stride(word, i, [(int(digits), 1)])
        dim = self._found(i, int(digits))
        if dim is None or kind not in ("n", "o"):
            return []
        if kind == "n":
            of = ("dim", i, dim.dim, "size")
            return [] if dim.is_constant else [_Field(word, "TG_COPY", of, 0, frozenset({dim.loop}))]
        assert operand.index is not None
        if self._is_plain(operand, dim):
            return []
        of = ("dim", i, dim.dim, "")
        return [_Field(word, "TG_ORIGIN", of, operand.index[dim.dim].offset, frozenset({dim.loop}))]

    def _is_plain(self, operand: Operand, dim: _Dim) -> bool:
        return self._is_along(operand, dim.dim, self.loops[dim.loop])

    def _is_along(self, operand: Operand, d: int, loop: Loop) -> bool:
        """Whether positions are just the loop's."""
        assert operand.index is not None
        index, is_inside = operand.index[d], operand.shape[d] >= loop.extent
        return index.terms == ((loop.axis, 1),) and index.offset == 0 and index.divisor == 1 and is_inside

    def _stride(self, word: int, i: int, terms: Sequence[tuple[int, int]]) -> list[_Field]:
        """A sum of box strides; nothing where no box changes its size."""
        box = self._first_box(i)
        found: list[_Field] = []
        every: set[int] = set()
        for d, coefficient in terms:
            inner = [self._found(i, e) for e in range(d + 1, len(box))]
            moving = [dim for dim in inner if dim is not None and not dim.is_constant]
            every |= {dim.loop for dim in moving}
            factor = coefficient
            for e in range(d + 1, len(box)):
                factor *= 1 if any(dim.dim == e for dim in moving) else box[e].size
            if not moving:
                if found:
                    raise InternalError(f"tg_{self.nest.kernel}: a stride that only partly changes")
                found.append(_Field(word, "TG_SET", None, factor, frozenset()))
                continue
            kind = "TG_ADD" if found else "TG_SCALE"
            found.append(_Field(word, kind, ("dim", i, moving[0].dim, "size"), factor, frozenset()))
            found += [_Field(word, "TG_TIMES", ("dim", i, dim.dim, "size"), 0, frozenset()) for dim in moving[1:]]
        return [_Field(f.word, f.kind, f.of, f.by, frozenset(every)) for f in found] if every else []

    def _first_box(self, i: int) -> tuple[Range, ...]:
        if i not in self.first_boxes:
            self.first_boxes[i] = operand_box(self.nest.operands[i], self.first)
        return self.first_boxes[i]

    def _dims_of(self, loop: int, access: Access) -> list[_Dim]:
        return [d for d in self.dims if d.loop == loop and self.nest.operands[d.operand].access is access]

    def _has_levels(self, i: int) -> bool:
        """More than rows, maybe longer than the engine takes, or maybe empty."""
        if self.tiling is None:
            return False
        largest = self.tiling.slots[self.nest.operands[i].name].slot_bytes
        may_be_empty = not all(r.size for r in self._first_box(i)) or any(
            0 in dim.sizes for dim in self.dims if dim.operand == i
        )
        return len(self.levels[i]) > 2 or largest > self.longest_bytes or may_be_empty

    def _is_simple(self, dims: Sequence[_Dim]) -> bool:
        """Whether a step only moves rows: one plain dimension of each operand."""
        operands = [dim.operand for dim in dims]
        are_plain = all(self._is_plain(self.nest.operands[dim.operand], dim) for dim in dims)
        return are_plain and len(set(operands)) == len(operands) and not any(map(self._has_levels, operands))

    def _places(self) -> _Places:
        places = _Places()
        at = NEST.words
        for _ in self.nest.operands:
            places.operands.append(at)
            at += OPERAND.words
        for _ in self.loops:
            places.loops.append(at)
            at += LOOP.words
        for i in range(len(self.loops)):
            for dim in self._dims_of(i, Access.READ) + self._dims_of(i, Access.WRITE):
                places.dims[dim.operand, dim.dim] = at
                at += DIM.words
        for i in range(len(self.loops)):
            places.fields.append(at)
            at += FIELD.words * sum(i in f.loops for f in self.fields)
        places.args = at
        at += len(self.arguments)
        for i in self.levels:
            if self._has_levels(i):
                places.levels[i] = at
                at += 1 + 2 * max(0, len(self.levels[i]) - 2)
        places.end = at
        return places

    @property
    def described_bytes(self) -> int:
        changing_arg_count = len(self.arguments) if self.fields else 0
        return WORD_BYTES * (CALL.words + len(self.nest.operands) + self.places.end + changing_arg_count)

    def words(self) -> tuple[int, ...]:
        places = self.places
        tiles = 1 if self.tiling is None else self.tiling.tile_count
        is_double = self.tiling is not None and self.tiling.is_double
        asks_ahead = self.tiling is not None and self.tiling.asks_ahead
        results = [i for i, o in enumerate(self.nest.operands) if o.value is not None and o.access is Access.WRITE]
        is_large = any(map(self._has_levels, results))
        result = NEST.encode(
            kernel=0,
            operand_count=len(self.nest.operands),
            loop_count=len(self.loops),
            args=places.args,
            tiles=tiles,
            is_double=CONSTANTS["TG_AHEAD"] if asks_ahead and not is_large else int(is_double),
            is_large=int(is_large),
            args_turn=places.args + (places.end if self.fields else places.args),
            arg_count=len(self.arguments) if self.fields else 0,
        )
        for i, operand in enumerate(self.nest.operands):
            result += self._operand_words(i, operand)
        for i, loop in enumerate(self.loops):
            reads, writes = self._dims_of(i, Access.READ), self._dims_of(i, Access.WRITE)
            dims = places.dims[(reads + writes)[0].operand, (reads + writes)[0].dim] if reads + writes else 0
            count = sum(i in f.loops for f in self.fields)
            result += LOOP.encode(
                extent=loop.extent,
                tile=loop.tile,
                start=0,
                size=loop.tile,
                reads=_bits(reads),
                results=_bits(writes),
                dims=dims,
                read_count=len(reads),
                write_count=len(writes),
                fields=places.fields[i],
                field_count=count,
                is_simple=int(is_double and not is_large and self._is_simple(reads + writes)),
            )
        for i in range(len(self.loops)):
            for dim in self._dims_of(i, Access.READ) + self._dims_of(i, Access.WRITE):
                result += self._dim_words(dim)
        for i in range(len(self.loops)):
            for one in self.fields:
                if i in one.loops:
                    kind = CONSTANTS[one.kind]
                    result += FIELD.encode(word=one.word, kind=kind, of=self._place_of(one), by=one.by)
        result += self._argument_words()
        for i in places.levels:
            result += self._level_words(i)
        return tuple(result)

    def _operand_words(self, i: int, operand: Operand) -> list[int]:
        words = dict.fromkeys(OPERAND.fields, 0) | {"access": int(operand.access is Access.WRITE)}
        if operand.value is None:
            return OPERAND.encode(**words)
        box, size = self._first_box(i), operand.element_bytes
        strides = row_major_strides(operand.shape)
        is_empty = not all(r.size for r in box)
        far = (
            0
            if is_empty and self.tiling is None
            else size * sum(r.start * s for r, s in zip(box, strides, strict=True))
        )
        if self.tiling is None:
            span = 0 if is_empty else size * (1 + sum((r.size - 1) * s for r, s in zip(box, strides, strict=True)))
            return OPERAND.encode(**words | {"far": far, "row_bytes": span, "rows": 1})
        slot = self.tiling.slots[operand.name]
        turn = 2 * slot.offset_bytes + (slot.slot_bytes if slot.count == 2 else 0)
        sizes = [level.size([r.size for r in box]) for level in self.levels[i]]
        if is_empty:
            sizes = [0, *sizes[1:]]
        rows, stride = (sizes[1], self.levels[i][1].far_stride) if len(sizes) > 1 else (1, 0)
        return OPERAND.encode(
            access=words["access"],
            scratch=slot.offset_bytes,
            turn=turn,
            far=far,
            row_bytes=sizes[0],
            rows=rows,
            stride=stride,
            levels=self.places.levels.get(i, 0),
        )

    def _level_words(self, i: int) -> list[int]:
        box = [r.size for r in self._first_box(i)]
        outer = self.levels[i][2:]
        return [len(outer), *(word for level in outer for word in (level.size(box), level.far_stride))]

    def _level_of(self, dim: _Dim) -> tuple[int, Level]:
        return next((k, level) for k, level in enumerate(self.levels[dim.operand]) if level.dim == dim.dim)

    def _dim_words(self, dim: _Dim) -> list[int]:
        operand = self.nest.operands[dim.operand]
        assert operand.index is not None
        index, loop = operand.index[dim.dim], self.loops[dim.loop]
        box = self._first_box(dim.operand)[dim.dim]
        at = self.places.operands[dim.operand]
        stride = row_major_strides(operand.shape)[dim.dim] * operand.element_bytes
        shape = factor = 0
        if not dim.is_constant:
            k, level = self._level_of(dim)
            outer = self.places.levels.get(dim.operand, 0) + 1 + 2 * (k - 2)
            rows = {0: "row_bytes", 1: "rows"}
            shape = at + OPERAND.places[rows[k]] if k in rows else outer
            factor = level.factor
        words = {
            "operand": at,
            "index": dim.operand,
            "far_stride": stride,
            "far_step": stride * loop.tile,
            "shape": shape,
            "factor": factor,
            "start": box.start,
            "size": box.size,
        }
        if self._is_plain(operand, dim):
            return DIM.encode(**words, coefficient=1, low=0, high=0, divisor=0, extent=0)
        low = high = index.offset
        for axis, coefficient in index.terms:
            if axis != loop.axis:
                reach = coefficient * (self.nest.axis(axis).extent - 1)
                low, high = low + min(0, reach), high + max(0, reach)
        return DIM.encode(
            **words,
            coefficient=index.coefficient(loop.axis),
            low=low,
            high=high,
            divisor=index.divisor,
            extent=operand.shape[dim.dim],
        )

    def _place_of(self, one: _Field) -> int:
        if one.of is None:
            return 0
        kind, a, b, name = one.of
        if kind == "loop":
            return self.places.loops[a] + LOOP.places[name]
        return self.places.dims[a, b] + (DIM.places[name] if name else 0)

    def _argument_words(self) -> list[int]:
        strides = {}
        for i, operand in enumerate(self.nest.operands):
            if operand.value is not None:
                shape = operand.shape if self.tiling is None else tuple(r.size for r in self._first_box(i))
                strides[operand.name] = row_major_strides(shape)
        result = []
        for c_type, name in self.arguments:
            value = kernel_argument(name, self.nest, self.first, strides)
            if value is None:
                raise InternalError(f"nothing gives the field '{name}' of tg_{self.nest.kernel}")
            result.append(float_word(float(value)) if c_type == "float" else int(value))
        return result


def _bits(dims: Sequence[_Dim]) -> int:
    """The operands that these are of."""
    return sum(1 << operand for operand in {dim.operand for dim in dims})


def float_word(value: float) -> int:
    """The bits of a float."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.int32))


def float_of_word(word: int) -> float:
    return float(np.int32(word).view(np.float32))
