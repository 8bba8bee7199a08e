"""A program's words as one C object with typed, named parts: tables, calls and moves (runtime/cluster/tg_tile.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.analysis.decode import Record, Table
from tilegrad.analysis.layout import CONSTANTS
from tilegrad.analysis.tables import float_of_word
from tilegrad.codegen.c import float_literal
from tilegrad.ops.kernels import KernelSignature

# Parts of a table that are records: their type, and the field that is written first, without its name.
_RECORDS = {
    "operands": ("tg_operand", "access"),
    "loops": ("tg_loop", "extent"),
    "dims": ("tg_dim", "operand"),
    "fields": ("tg_field", "word"),
}
# Words that are places in the table, by record.
_PLACES = {"operand", "shape", "dims", "fields", "levels", "of"}
# Of a dimension that is more than an axis.
_INNER = ("low", "high", "divisor", "extent", "start")
_FIELD_KINDS = {CONSTANTS[f"TG_{name}"]: f"TG_{name}" for name in "COPY ORIGIN SET SCALE ADD TIMES FIRST LAST".split()}


def in_braces(items: Sequence[str]) -> list[str]:
    """The items with a brace before the first and one behind the last."""
    return [f"{{{items[0]}", *items[1:-1], f"{items[-1]}}}"] if len(items) > 1 else [f"{{{items[0]}}}"]


def table_type(table: Table, signature: KernelSignature) -> str:
    sized = [(c_type, name, len(getattr(table, name))) for name, (c_type, _) in _RECORDS.items()]
    records = [f"{c_type} {name}[{count}];" for c_type, name, count in sized if count]
    levels = [f"uint32_t levels[{len(table.levels)}];"] if table.levels else []
    return f"struct {{ {' '.join(['tg_nest nest;', *records, f'{signature.arguments.name} args;', *levels])} }}"


def table_pieces(name: str, table: Table, signature: KernelSignature, is_brief: bool) -> list[str]:
    """`.name = {…}`, without what is zero; where it is brief, by position, without what is zero at the end."""

    def record(values: Record, first: str) -> str:
        if is_brief and first == "operand" and not any(values[key] for key in _INNER) and values["coefficient"] == 1:
            shape = [values["shape"], values["factor"]] if values["shape"] else []
            numbers = [values["index"], values["far_stride"], values["far_step"], *shape, values["size"]]
            return f"{'SIZED' if shape else 'DIM'}({', '.join(map(str, numbers))})"
        if is_brief:
            shown = [str(value) for value in values.values()]
            while len(shown) > 1 and shown[-1] == "0":
                shown.pop()
            if len(shown) < len(values):  # a named field says that the rest is left out on purpose
                shown[0] = f".{next(iter(values))} = {shown[0]}"
            return f"{{{', '.join(shown)}}}"
        shown = [
            f".{key} = {_value(name, table, key, value)}" for key, value in values.items() if value and key != first
        ]
        head = _value(name, table, first, values[first])
        return f"{{{', '.join([head if shown else f'.{first} = {head}', *shown])}}}"

    parts = [[record(one, first) for one in getattr(table, part)] for part, (_, first) in _RECORDS.items()]
    parts += [_arguments(table, signature), [str(word) for word in table.levels]]
    pieces = [_nest(name, table, signature), *(piece for part in parts if part for piece in in_braces(part))]
    head, *rest = in_braces(pieces)
    return [f".{name} = {head}", *rest]


def _nest(name: str, table: Table, signature: KernelSignature) -> str:
    nest = table.nest
    shown = [f".{key} = {nest[key]}" for key in ("tiles", "is_double", "is_large") if nest[key]]
    arguments = [name, signature.name, str(len(table.operands)), str(len(table.loops)), *shown]
    return f"{'NEST_CHANGING' if nest['arg_count'] else 'NEST'}({', '.join(arguments)})"


def _value(name: str, table: Table, key: str, value: int) -> str:
    if key == "access":
        return "TG_WRITE" if value else "TG_READ"
    if key == "kind":
        return _FIELD_KINDS[value]
    if key in _PLACES and value:
        return f"AT({name}, {table.place(value)})"
    return str(value)


def _arguments(table: Table, signature: KernelSignature) -> list[str]:
    shown = []
    for (c_type, field), word in zip(signature.arguments.fields, table.args, strict=True):
        if word:
            shown.append(f".{field} = {float_literal(float_of_word(word)) if c_type == 'float' else word}")
    return shown or [f".{signature.arguments.fields[0][1]} = 0"]
