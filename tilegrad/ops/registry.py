"""Operators found by their files, plus those that a user registers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from tilegrad.errors import InternalError
from tilegrad.ops.base import Operator

_OPS_FOLDER = Path(__file__).parent
_external: dict[str, tuple[Operator, Path | None]] = {}


def register(operator: type[Operator], kernels: str | Path | None = None) -> type[Operator]:
    """Adds an operator from outside the package; `kernels` is its C file. Usable as a class decorator.

    Installed packages do the same without a call, through the entry point group `tilegrad.operators`.
    """
    _external[operator.name] = (operator(), None if kernels is None else Path(kernels))
    _catalogue.cache_clear()
    return operator


def unregister(name: str) -> None:
    _external.pop(name, None)
    _catalogue.cache_clear()


def _concrete(cls: type[Operator]) -> bool:
    return not getattr(cls, "__abstractmethods__", None) and hasattr(cls, "name")


@cache
def _catalogue() -> Mapping[str, tuple[Operator, Path | None]]:
    """Operator by name, each with its C file (None for an operator without kernels)."""
    found: dict[str, tuple[Operator, Path | None]] = {}
    for module_info in sorted(pkgutil.iter_modules([str(_OPS_FOLDER)]), key=lambda info: info.name):
        if module_info.name in ("base", "registry", "kernels") or module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"tilegrad.ops.{module_info.name}")
        source = _OPS_FOLDER / f"{module_info.name}.c"
        for cls in vars(module).values():
            if not (isinstance(cls, type) and issubclass(cls, Operator) and cls.__module__ == module.__name__):
                continue
            if not _concrete(cls):
                continue
            if cls.name in found:
                raise InternalError(f"two files define the operator {cls.name}")
            found[cls.name] = (cls(), source if source.exists() else None)
    for entry in entry_points(group="tilegrad.operators"):
        cls, kernels = entry.load()
        found[cls.name] = (cls(), Path(kernels))
    return {**found, **_external}


def find(name: str) -> Operator | None:
    entry = _catalogue().get(name)
    return None if entry is None else entry[0]


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
