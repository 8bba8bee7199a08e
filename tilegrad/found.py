"""Things that a package has one of per file: found by the file's name, so that adding one touches no list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeVar

from tilegrad.errors import InternalError

T = TypeVar("T")


def found_in(package: str, folder: Sequence[str], pick: Callable[[ModuleType], T | None]) -> dict[str, T]:
    """What `pick` finds in each module of a package, by the module's name; `base` and names with _ are helpers."""
    result = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(folder)):
        if name == "base" or name.startswith("_"):
            continue
        found = pick(importlib.import_module(f"{package}.{name}"))
        if found is None:
            raise InternalError(f"{package}.{name} does not define what its folder is for")
        result[name] = found
    return result
