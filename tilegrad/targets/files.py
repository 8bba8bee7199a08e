"""Chips from files of the user's: TOML, which is data and checked field by field, or Python, which is code and runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from tilegrad.errors import TilegradError, UserError
from tilegrad.sizes import parse_size
from tilegrad.targets import base
from tilegrad.targets.base import FLASH, L1, L2, L3, ComputeEngine, CoreCosts, DmaEngine, DmaTiming, Memory, Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

R = TypeVar("R")
SUFFIXES = (".toml", ".py")
VARIABLE = "TARGET"
# Fields of a target that TOML has as tables, and those that follow from its memories or are Python's alone.
TABLES = ("memories", "engines", "compute_engines", "costs")
NOT_IN_TOML = ("home", "compute", "is_calibrated", "board", "language")


def is_file(text: str) -> bool:
    """Whether this is meant as a file and not as a name."""
    return text.endswith(SUFFIXES) or os.sep in text


def find(text: str) -> Target:
    """A target by its name, or from a file, which is registered under the name that it says."""
    return register(Path(text)) if is_file(text) else base.get(text)


def register(path: Path) -> Target:
    """What a file says, registered."""
    target = read(path)
    try:
        return base.register(target)
    except UserError as error:
        raise _about(path, error) from error


def read(path: Path) -> Target:
    if path.suffix not in SUFFIXES:
        got = path.suffix or "none"
        raise UserError(f"'{path}' is no file of a target", stage="target", expected="a .toml or .py file", got=got)
    try:
        source = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"the target file '{path}' cannot be read", stage="target", got=error.strerror) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the target file '{path}' is no text", stage="target", expected="UTF-8", got=f"byte {error.start}"
        ) from error
    try:
        return _from_python(path, source) if path.suffix == ".py" else _from_toml(source)
    except UserError as error:
        raise _about(path, error) from error


def _about(path: Path, error: UserError) -> UserError:
    """The same, and which file it is about."""
    message = error.message.removeprefix("target: ")
    return UserError(
        f"the target file '{path}': {message}",
        stage="target",
        expected=error.expected,
        got=error.got,
        hint=error.hint or "docs/targets.md explains every field",
    )


def _from_python(path: Path, source: str) -> Target:
    """Runs the user's code, as `python FILE` would; nothing is written beside it."""
    module = ModuleType(f"tilegrad_target_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for what annotations mean
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - that is what a .py target is
    except TilegradError:
        raise
    except SyntaxError as error:
        raise UserError("is not Python", got=f"line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises is told as what it is
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"line {own[-1].lineno}: " if own else ""
        raise UserError("raises an error", got=f"{where}{type(error).__name__}: {error}") from error
    finally:
        del sys.modules[module.__name__]
    target = vars(module).get(VARIABLE)
    if not isinstance(target, Target):
        got = "no such name" if target is None else type(target).__name__
        raise UserError(f"{VARIABLE} cannot be used", expected=f"{VARIABLE} = tg.Target(...)", got=got)
    return target


def _from_toml(source: str) -> Target:
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise UserError("is not TOML", got=str(error)) from error
    _expect_keys("the file", document, {one.name: one for one in fields(Target) if one.name not in NOT_IN_TOML})
    memories = tuple(_memory(name, table) for name, table in _tables("memories", document).items())
    names = [memory.name for memory in memories]
    flat = [name for name in names if name != FLASH]
    is_cluster = L1 in names or L2 in names or len(flat) != 1
    if is_cluster and set(names) not in ({L1, L2}, {L1, L2, L3}):  # said here: TOML has no home, and none to compute in
        raise UserError(
            "the memories (memories) are no way to the cores",
            expected=f"L1 and L2, or L1, L2 and L3; or one flat memory by another name, and {FLASH}",
            got=", ".join(names),
        )
    tables = _tables("engines", document, needed=False)
    engines = tuple(_engine(name, table, tables) for name, table in tables.items())
    own = _tables("compute_engines", document, needed=False)
    computing = tuple(_record(ComputeEngine, f"compute_engines.{name}", own[name], {"name": name}) for name in own)
    costs = _record(CoreCosts, "costs", document["costs"]) if "costs" in document else None
    plain = {key: value for key, value in document.items() if key not in TABLES}
    made = {
        "memories": memories,
        "home": L2 if is_cluster else flat[0],
        "compute": L1 if is_cluster else flat[0],
        "engines": engines,
        "compute_engines": computing,
        "costs": costs,
    }
    return _record(Target, "", plain, made)


def _tables(key: str, document: Mapping[str, Any], needed: bool = True) -> Mapping[str, Any]:
    """Those below a key, by name."""
    found = document.get(key)
    if found is None and not needed:
        return {}
    if not isinstance(found, dict) or not found:
        raise UserError(
            f"{key} cannot be used",
            expected=f"a table of each, as [{key}.{'L1' if key == 'memories' else 'dma'}]",
            got="none" if found is None else repr(found),
        )
    return found


def _memory(name: str, table: object) -> Memory:
    """Cores reach what is outside by DMA only, where a file does not say otherwise."""
    made: dict[str, Any] = {"name": name}
    if name == L3 and isinstance(table, dict) and "core_extra_cycles" not in table:
        made["core_extra_cycles"] = None
    return _record(Memory, f"memories.{name}", table, made)


def _engine(name: str, table: object, tables: Mapping[str, Any]) -> DmaEngine:
    """What one that shares another does not say of itself is as the other's; what goes out is as what comes in."""
    path = f"engines.{name}"
    own = dict(_table(path, table))
    if "shares" in own:
        other = tables.get(str(own["shares"]))
        if not isinstance(other, dict) or other is table:
            names = " or ".join(other for other in tables if other != name) or "no other engine"
            raise UserError(f"{path}.shares cannot be used", expected=names, got=str(own["shares"]))
        own = {**{key: value for key, value in other.items() if key not in ("inward", "outward")}, **own}
    if "inward" in own:
        own.setdefault("outward", own["inward"])
    timings: dict[str, Any] = {
        way: _record(DmaTiming, f"{path}.{way}", own.pop(way)) for way in ("inward", "outward") if way in own
    }
    return _record(DmaEngine, path, own, {"name": name, **timings})


def _table(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path} cannot be used", expected=f"a table, as [{path}]", got=repr(value))
    return value


def _expect_keys(where: str, table: Mapping[str, Any], known: Mapping[str, Field[Any]]) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise UserError(
                f"{where} has no field '{key}'",
                expected=" or ".join(known),
                got=f"{key} = {table[key]!r}",
                hint=f"did you mean '{near[0]}'?" if near else None,
            )


def _record(cls: type[R], path: str, value: object, made: Mapping[str, Any] | None = None) -> R:
    """A dataclass from a table with its fields; `made` are those that the table does not have."""
    made = made or {}
    left_out = NOT_IN_TOML if cls is Target else ()
    table = _table(path, value)
    known = {one.name: one for one in fields(cls) if one.name not in (*made, *left_out)}  # type: ignore[arg-type]
    _expect_keys(path or "the file", table, known)
    types = get_type_hints(cls)
    found = {key: _value(f"{path}.{key}".lstrip("."), one, types[key]) for key, one in table.items()}
    for key, one in known.items():
        if key not in table and one.default is MISSING and one.default_factory is MISSING:
            raise UserError(f"{f'{path}.{key}'.lstrip('.')} is missing", expected=f"{key} = …", got="no such field")
    try:
        return cls(**found, **made)
    except UserError as error:
        where = f"{path}: " if path else ""
        raise UserError(
            where + error.message.removeprefix("target: "), expected=error.expected, got=error.got, hint=error.hint
        ) from error


def _value(path: str, value: object, wanted: object) -> object:
    """Checked against the field's type; sizes may be written as 64K."""
    key = path.rpartition(".")[2]
    if key.endswith("_bytes") and isinstance(value, str):
        return parse_size(path, value, stage="target")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and is_number,
        "float": is_number,
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
    }
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text in quotes"}
    name = next((name for name in fits if name in str(getattr(wanted, "__name__", wanted))), "str")
    if not fits[name]:
        size = ", or a size as 64K" if key.endswith("_bytes") else ""
        raise UserError(f"{path} cannot be used", expected=words[name] + size, got=repr(value))
    return value
