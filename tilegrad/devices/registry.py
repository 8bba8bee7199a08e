"""Devices by name: a kind of device is registered by the module of this package that has its name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import TypeVar

from tilegrad.devices.base import Capabilities, Device, unknown_device
from tilegrad.errors import DeviceError, UserError

DEFAULT_DEVICE = "sim:siracusa"

_kinds: dict[str, type[Device]] = {}
D = TypeVar("D", bound=type[Device])


def register(kind: D) -> D:
    """Adds a kind of device, for use as a class decorator. An incomplete one is refused here, not at first use."""
    missing = [f"{name}()" for name in sorted(kind.__abstractmethods__)]
    for name, wanted in (("kind", str), ("capabilities", Capabilities)):
        if not isinstance(getattr(kind, name, None), wanted):
            missing.append(name)
    if missing:
        raise UserError(
            f"the device {kind.__name__} is incomplete",
            stage="register",
            expected="all that tilegrad/devices/base.py asks for",
            got=f"no {', no '.join(missing)}",
            hint="docs/devices.md says what each is for",
        )
    known = _kinds.get(kind.kind)
    if known is not None and known.__qualname__ != kind.__qualname__:
        raise UserError(f"there is a device '{kind.kind}' already", stage="register", got=kind.__name__)
    _kinds[kind.kind] = kind
    return kind


def unregister(kind: str) -> None:
    _kinds.pop(kind, None)


@cache
def _modules() -> frozenset[str]:
    """Those that may have a kind's name; parts of a device have an underscore in theirs."""
    names = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return frozenset(name for name in names if "_" not in name)


def _find(family: str) -> type[Device] | None:
    """A kind by its name. Only its own module is imported: others may take long, or look for hardware."""
    if family in _modules():
        importlib.import_module(f"tilegrad.devices.{family}")
    return _kinds.get(family)


def kinds() -> tuple[type[Device], ...]:
    """The host first, then by name."""
    for module in _modules():
        _find(module)
    return tuple(sorted(_kinds.values(), key=lambda kind: (kind.kind != "host", kind.kind)))


def device_names() -> tuple[str, ...]:
    return tuple(name for kind in kinds() for name in kind.names())


def device_kind(name: str) -> type[Device]:
    if not isinstance(name, str):
        raise unknown_device(repr(name), device_names())
    kind = _find(name.partition(":")[0])
    if kind is None or not kind.takes(name):
        raise unknown_device(name, device_names())
    return kind


def open_device(name: str, *, use_cache: bool = True) -> Device:
    """Opens a device; use it as a context manager."""
    kind = device_kind(name)
    reason = kind.missing(name)
    if reason is not None:
        raise DeviceError(
            f"device '{name}' cannot be used here: {reason}", stage="device", hint="run `tilegrad doctor`"
        )
    return kind(name, use_cache=use_cache)
