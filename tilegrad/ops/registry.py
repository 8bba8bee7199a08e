"""Operators found by their files, plus those that a user registers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tilegrad.errors import InternalError, UserError
from tilegrad.ops._chain import CHAINED, Chain
from tilegrad.ops.base import Operator
from tilegrad.ops.kernels import parse_kernel_file

OPS_FOLDER = Path(__file__).parent
_external: dict[str, tuple[Operator, Path | None]] = {}


def register(operator: type[Operator], kernels: str | Path | None = None) -> type[Operator]:
    """Adds an operator from outside the package; `kernels` is its C file. Usable as a class decorator.

    Installed packages do the same without a call, through the entry point group `tilegrad.operators`.
    """
    _external[operator.name] = (operator(), None if kernels is None else _checked(Path(kernels), operator.name))
    _catalogue.cache_clear()
    return operator


def _checked(kernels: Path, name: str) -> Path:
    """The C file of an operator from outside, whose mistakes are not ours."""
    try:
        parse_kernel_file(kernels)
    except (OSError, InternalError) as error:
        reason = error.message if isinstance(error, InternalError) else error.strerror
        raise UserError(f"the kernels of operator {name} cannot be used", stage="register", got=reason) from error
    return kernels


def unregister(name: str) -> None:
    _external.pop(name, None)
    _catalogue.cache_clear()


def _concrete(cls: type[Operator]) -> bool:
    return not getattr(cls, "__abstractmethods__", None) and hasattr(cls, "name")


@cache
def _catalogue() -> Mapping[str, tuple[Operator, Path | None]]:
    """Operator by name, each with its C file (None for an operator without kernels)."""
    found: dict[str, tuple[Operator, Path | None]] = {}
    for module_info in sorted(pkgutil.iter_modules([str(OPS_FOLDER)]), key=lambda info: info.name):
        if module_info.name in ("base", "registry", "kernels") or module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"tilegrad.ops.{module_info.name}")
        source = OPS_FOLDER / f"{module_info.name}.c"
        for cls in vars(module).values():
            if not (isinstance(cls, type) and issubclass(cls, Operator) and cls.__module__ == module.__name__):
                continue
            if not _concrete(cls):
                continue
            if cls.name in found:
                raise InternalError(f"two files define the operator {cls.name}")
            found[cls.name] = (cls(), source if source.exists() else None)
    for entry in entry_points(group="tilegrad.operators"):
        cls, kernels = _loaded(entry)
        found[cls.name] = (cls(), _checked(kernels, cls.name))
    return {**found, **_external}


def _loaded(entry: EntryPoint) -> tuple[type[Operator], Path]:
    try:
        cls, kernels = entry.load()
        if not issubclass(cls, Operator):
            raise TypeError(f"{cls.__name__} is no Operator")
        return cls, Path(kernels)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"the operator package '{entry.value}' cannot be used",
            stage="register",
            expected="a pair (Operator subclass, path of its C file)",
            got=str(error),
            hint=f"its entry point '{entry.name}' is in group tilegrad.operators",
        ) from error


def find(name: str) -> Operator | None:
    """Also one that is a chain of others."""
    if CHAINED in name:
        first, _, then = name.rpartition(CHAINED)
        return Chain(get(first), get(then))
    entry = _catalogue().get(name)
    return None if entry is None else entry[0]


def parts(name: str) -> tuple[str, ...]:
    """The operators that a chain is made of; any other is its own."""
    return tuple(name.split(CHAINED))


def get(name: str) -> Operator:
    """An operator that must exist: after import, a missing one is our bug."""
    operator = find(name)
    if operator is None:
        raise InternalError(f"no operator {name}")
    return operator


def names() -> tuple[str, ...]:
    return tuple(sorted(_catalogue()))


def kernel_source(name: str) -> Path | None:
    """The C file of an operator's portable kernels."""
    return _catalogue()[name][1]
