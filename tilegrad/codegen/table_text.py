"""A program's words as one C object with typed, named parts: tables, calls and moves (runtime/cluster/tg_tile.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.analysis.decode import Record, Table
from tilegrad.analysis.layout import CONSTANTS
from tilegrad.analysis.tables import float_of_word
from tilegrad.codegen.c import float_literal
from tilegrad.ops.kernels import KernelSignature

TYPES = {"operands": "tg_operand", "loops": "tg_loop", "dims": "tg_dim", "fields": "tg_field", "levels": "uint32_t"}
# Words that are places in the table, by record.
_PLACES = {"operand", "shape", "dims", "fields", "levels", "of"}
# Of a dimension that is more than an axis.
_INNER = ("low", "high", "divisor", "extent", "start")
_FIELD_KINDS = {CONSTANTS[f"TG_{name}"]: f"TG_{name}" for name in "COPY ORIGIN SET SCALE ADD TIMES FIRST LAST".split()}


def in_braces(items: Sequence[str]) -> list[str]:
    """The items with a brace before the first and one behind the last."""
    return [f"{{{items[0]}", *items[1:-1], f"{items[-1]}}}"] if len(items) > 1 else [f"{{{items[0]}}}"]


def table_type(table: Table, signature: KernelSignature) -> str:
    counts = (len(table.operands), len(table.loops), len(table.dims), len(table.fields), len(table.levels))
    parts = {
        name: f"{c_type} {name}[{count}];" for (name, c_type), count in zip(TYPES.items(), counts, strict=True) if count
    }
    levels = parts.pop("levels", "")
    body = ["tg_nest nest;", *parts.values(), f"{signature.arguments.name} args;", *([levels] if levels else [])]
    return f"struct {{ {' '.join(body)} }}"


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

    parts: list[list[str]] = [in_braces([record(one, "access") for one in table.operands])]
    parts += [in_braces([record(one, "extent") for one in table.loops])] if table.loops else []
    parts += [in_braces([record(one, "operand") for one in table.dims])] if table.dims else []
    parts += [in_braces([record(one, "word") for one in table.fields])] if table.fields else []
    parts.append(in_braces(_arguments(table, signature)))
    parts += [in_braces(list(map(str, table.levels)))] if table.levels else []
    pieces = [_nest(name, table, signature), *(piece for part in parts for piece in part)]
    braced = in_braces(pieces)
    return [f".{name} = {braced[0]}", *braced[1:]]


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
