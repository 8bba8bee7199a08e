"""Lowering for a hierarchy: nests as constant tables (see runtime/cluster/tg_tile.h); equal tables are emitted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilegrad.codegen.c import (
    Assign,
    Call,
    Comment,
    Declare,
    Function,
    Item,
    Line,
    Statement,
    comment_text,
    float_literal,
)
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.lowering import Lowering
from tilegrad.errors import InternalError
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, kernel_argument, operand_box, row_major_strides, whole
from tilegrad.ir.plan import Plan, Staging
from tilegrad.ir.schedule import Loop, Slot, Tiling
from tilegrad.ops.kernels import KernelSignature

MAX_LOOPS, MAX_RANK, MAX_OPERANDS, MAX_WORDS = 6, 7, 10, 64


@dataclass
class ClusterTables:
    """Collects the tables of a program in the order of first use."""

    items: list[Item] = field(default_factory=list)
    names: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    calls: dict[str, Item] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def table(
        self, c_type: str, stem: str, rows: Sequence[str], *, is_array: bool = True, comment: str | None = None
    ) -> str:
        """The name of a constant table with these rows."""
        key = (c_type, tuple(rows))
        if key not in self.names:
            self.counts[c_type] = self.counts.get(c_type, -1) + 1
            self.names[key] = f"{stem}_{self.counts[c_type]}"
            suffix = "[]" if is_array else ""
            if comment is not None:
                self.items.append(Comment(comment))
            self.items.append(Declare(f"static const {c_type}", f"{self.names[key]}{suffix}", items=tuple(rows)))
        return self.names[key]

    def call(self, signature: KernelSignature) -> str:
        """The function that calls a kernel from an array of addresses."""
        name = f"call_{signature.name}"
        if name not in self.calls:
            pointers = ", ".join(f"at[{i}]" for i in range(len(signature.pointers)))
            parameters = ("void *const *at", "const void *args", "int core_id", "int core_count")
            call = f"    tg_{signature.name}({pointers}, args, core_id, core_count);"
            self.calls[name] = Function("static void", name, parameters, (Line(call),))
        return name


def _dim_row(operand: Operand, d: int, nest: Nest, loops: Sequence[Loop]) -> str:
    box = operand_box(operand, whole(nest))[d]
    if operand.index is None:
        return f"{{-1, 0, {box.start}, {box.stop}, 0, 1, {operand.shape[d]}}}"
    index = operand.index[d]
    moving = [i for i, loop in enumerate(loops) if index.coefficient(loop.axis)]
    if not moving:
        return f"{{-1, 0, {box.start}, {box.stop}, {index.offset}, 1, {operand.shape[d]}}}"
    if len(moving) > 1:
        raise InternalError(f"two loops move one dimension of operand '{operand.name}' of tg_{nest.kernel}")
    low = high = index.offset
    for axis, coefficient in index.terms:
        if axis != loops[moving[0]].axis:
            reach = coefficient * (nest.axis(axis).extent - 1)
            low, high = low + min(0, reach), high + max(0, reach)
    coefficient = index.coefficient(loops[moving[0]].axis)
    numbers = (moving[0], coefficient, low, high, index.offset, index.divisor, operand.shape[d])
    return f"{{{', '.join(map(str, numbers))}}}"


def _loops_of(operand: Operand, loops: Sequence[Loop]) -> int:
    return sum(
        1 << i for i, loop in enumerate(loops) if any(index.coefficient(loop.axis) for index in operand.index or ())
    )


def _has_loop(operand: Operand, d: int, loops: Sequence[Loop]) -> bool:
    return operand.index is not None and any(operand.index[d].coefficient(loop.axis) for loop in loops)


def _stride_fields(nest: Nest, field_name: str) -> list[tuple[int, int, int]]:
    """(operand, dimension, coefficient) whose box strides add up to the field, or nothing."""
    prefix, _, rest = field_name.partition("_")
    for position, operand in enumerate(nest.operands):
        if operand.name != prefix or operand.value is None:
            continue
        if rest.startswith("by_") and operand.index is not None:
            axis = rest.removeprefix("by_")
            return [
                (position, d, index.coefficient(axis))
                for d, index in enumerate(operand.index)
                if index.coefficient(axis)
            ]
        if rest[:1] == "s" and rest[1:].isdigit():
            return [(position, int(rest[1:]), 1)]
    return []


def _box_field(nest: Nest, field_name: str) -> tuple[str, int, int] | None:
    prefix, _, rest = field_name.partition("_")
    kinds = {"n": "TG_BOX_N", "o": "TG_BOX_O"}
    for position, operand in enumerate(nest.operands):
        if operand.name == prefix and operand.value is not None and rest[:1] in kinds and rest[1:].isdigit():
            return kinds[rest[:1]], position, int(rest[1:])
    return None


def _dynamic_fields(nest: Nest, loops: Sequence[Loop], field_name: str) -> list[tuple[str, int, int, int]] | None:
    """How a field's value comes from the tile: (kind, index, dimension, coefficient); None where it is constant."""
    if field_name in nest.constants:
        return None
    axes = [loop.axis for loop in loops]
    prefix, _, rest = field_name.partition("_")
    if field_name in ("first", "last"):
        reduces = any(nest.axis(axis).kind is AxisKind.REDUCTION for axis in axes)
        return [(f"TG_{field_name.upper()}", 0, 0, 0)] if reduces else None
    if prefix in ("n", "at") and rest in axes:
        return [(f"TG_{prefix.upper()}", axes.index(rest), 0, 0)]
    strides = _stride_fields(nest, field_name)
    if any(
        _has_loop(nest.operands[position], inner, loops)
        for position, d, _ in strides
        for inner in range(d + 1, len(nest.operands[position].shape))
    ):
        return [("TG_STRIDE", position, d, coefficient) for position, d, coefficient in strides]
    box = _box_field(nest, field_name)
    if box is not None and _has_loop(nest.operands[box[1]], box[2], loops):
        return [(*box, 0)]
    return None


def nest_table(
    tables: ClusterTables,
    signature: KernelSignature,
    nest: Nest,
    tiling: Tiling | None,
    element_bytes: Mapping[str, int],
) -> str:
    """Emits what a kind of nest needs; returns the name of its `tg_nest`."""
    if len(nest.operands) > MAX_OPERANDS or len(signature.arguments.fields) > MAX_WORDS:
        raise InternalError(f"tg_{nest.kernel} has more operands or arguments than the runtime's tables hold")
    loops = () if tiling is None else tiling.loops
    args, fields = _arguments(tables, signature, nest, tiling, loops)
    operands = _operand_rows(tables, nest, tiling, element_bytes, loops)
    loop_rows = [
        f"{{{loop.extent}, {loop.tile}, {int(nest.axis(loop.axis).kind is AxisKind.REDUCTION)}}}" for loop in loops
    ]
    row = (
        tables.call(signature),
        f"&{args}",
        tables.table("tg_loop", "loops", loop_rows) if loop_rows else "0",
        tables.table("tg_operand", "operands", operands),
        tables.table("tg_field", "fields", fields) if fields else "0",
        str(len(signature.arguments.fields)),
        str(len(loops)),
        str(len(nest.operands)),
        str(len(fields)),
        "TG_WHOLE" if tiling is None else "TG_DOUBLE" if tiling.is_double else "TG_SINGLE",
    )
    return tables.table("tg_nest", nest.kernel, row, is_array=False, comment=_tiling_text(tiling))


def _arguments(
    tables: ClusterTables, signature: KernelSignature, nest: Nest, tiling: Tiling | None, loops: Sequence[Loop]
) -> tuple[str, list[str]]:
    boxes = {
        operand.name: (
            operand.shape if tiling is None else tuple(r.size for r in operand_box(operand, whole(nest)))
        )
        for operand in nest.operands
        if operand.value is not None
    }
    strides = {name: row_major_strides(shape) for name, shape in boxes.items()}
    constants, fields = [], []
    for word, (c_type, field_name) in enumerate(signature.arguments.fields):
        dynamic = _dynamic_fields(nest, loops, field_name)
        if dynamic is not None:
            constants.append("0")
            fields += [
                f"{{{word}, {kind}, {index}, {d}, {coefficient}}}" for kind, index, d, coefficient in dynamic
            ]
            continue
        value = kernel_argument(field_name, nest, whole(nest), strides)
        if value is None:
            raise InternalError(f"nothing gives the field '{field_name}' of tg_{nest.kernel}")
        constants.append(float_literal(float(value)) if c_type == "float" else str(int(value)))
    rows = [f".{name} = {value}" for (_, name), value in zip(signature.arguments.fields, constants, strict=True)]
    stem = signature.arguments.name.removeprefix("tg_")
    return tables.table(signature.arguments.name, stem, rows, is_array=False), fields


def _operand_rows(
    tables: ClusterTables,
    nest: Nest,
    tiling: Tiling | None,
    element_bytes: Mapping[str, int],
    loops: Sequence[Loop],
) -> list[str]:
    rows = []
    for operand in nest.operands:
        access = "TG_WRITE" if operand.access is Access.WRITE else "TG_READ"
        if operand.value is None:
            rows.append(f"{{0, 0, {access}, 0, 0, 0, 0, 0}}")
            continue
        if len(operand.shape) > MAX_RANK:
            raise InternalError(f"operand '{operand.name}' of tg_{nest.kernel} has too many dimensions")
        dim_rows = [_dim_row(operand, d, nest, loops) for d in range(len(operand.shape))]
        dims = tables.table("tg_dim", "dims", dim_rows or ["{-1, 0, 0, 1, 0, 1, 1}"])
        slot = Slot(0, 0, 0) if tiling is None else tiling.slots[operand.name]
        numbers = (
            slot.offset_bytes,
            slot.slot_bytes,
            access,
            element_bytes[operand.name],
            len(operand.shape),
            slot.count,
            _loops_of(operand, loops),
            dims,
        )
        rows.append(f"{{{', '.join(map(str, numbers))}}}")
    return rows


class ClusterLowering(Lowering):
    """Every nest runs through the tile runtime; tensors of L3 are staged around the launches that use them."""

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        super().__init__(plan, kernels)
        self.tables = ClusterTables()

    def nest(self, entry: str, number: int, k: int) -> tuple[Statement, ...]:
        launch = self.launch(entry, number)
        nest, tiling = launch.nests[k], launch.tilings[k] if launch.tilings else None
        types = self.types(entry)
        element_bytes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
        table = nest_table(self.tables, self.signature(launch, nest), nest, tiling, element_bytes)
        homes = [self._home(entry, number, operand.value) for operand in nest.operands]
        return (Comment(self.describe(entry, number, k)), Call("TG_RUN_NEST", (table, *homes)))

    def _home(self, entry: str, number: int, value: str | None) -> str:
        if value is None:
            return "TG_ABSENT"
        address = self.plan.address(entry, value, number)
        return f"TG_IN_STATE + {address.offset}" if address.region == "state" else str(address.offset)

    def items(self) -> list[Item]:
        separated: list[Item] = []
        for item in self.tables.calls.values():
            separated += [Line(), item]
        return [*separated, Line(), *self.tables.items]

    def _staged(self, entry: str) -> tuple[Staging, ...]:
        return self.plan.entries[entry].staging

    def at_start(self, entry: str) -> tuple[Statement, ...]:
        return (Call("tg_begin", (f'"{entry}"',)),)

    def at_end(self, entry: str) -> tuple[Statement, ...]:
        end = len(self.plan.schedule.entries[entry].launches)
        return (*self.before(entry, end), Call("tg_end", (f'"{entry}"',)))

    def before(self, entry: str, number: int) -> tuple[Statement, ...]:
        """What left must have left, and what is about to leave must go, before anything comes into its place."""
        previous = self._previous(entry, number)
        statements: list[Statement] = []
        moves = list(enumerate(self._staged(entry)))
        due = [(i, move) for i, move in moves if previous < move.wait <= number]
        started = [(i, move) for i, move in moves if previous < move.start <= number]
        statements += [self._wait(i) for i, move in due if move.start <= previous]
        for inward in (False, True):
            for i, move in started:
                if move.inward is inward:
                    statements += self._start(i, move)
            statements += [self._wait(i) for i, move in due if move.inward is inward and move.start > previous]
        return tuple(statements)

    @staticmethod
    def _wait(i: int) -> Statement:
        return Call("tg_l3_wait", (f"m->l3_requests[{i}]",))

    def _previous(self, entry: str, number: int) -> int:
        """The launch with nests before this one: statements of launches without any (views) move to the next."""
        launches = self.plan.schedule.entries[entry].launches
        return next((i for i in range(number - 1, -1, -1) if launches[i].nests), -1)

    def _start(self, i: int, move: Staging) -> list[Statement]:
        way = "from L3" if move.inward else "to L3"
        return [
            Comment(f"{comment_text(move.tensor)} {way}, {move.size_bytes} bytes"),
            Assign(
                f"m->l3_requests[{i}]",
                f"tg_l3_start(m->arena + {move.l2_offset}, {move.l3_offset}u, {move.size_bytes}, {int(move.inward)})",
            ),
        ]


def _tiling_text(tiling: Tiling | None) -> str:
    if tiling is None:
        return "computed where the operands live"
    loops = ", ".join(f"{loop.axis} {loop.tile} of {loop.extent}" for loop in tiling.loops) or "one tile"
    mode = "double" if tiling.is_double else "single"
    return f"tiles: {loops}; {tiling.tile_count} in all, {mode} buffered, {tiling.scratch_bytes} bytes of L1"
