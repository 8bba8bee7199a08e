"""Devices by name."""

from __future__ import annotations

from tilegrad.devices.base import Device, unknown_device
from tilegrad.devices.host import HostDevice
from tilegrad.devices.sim import SimDevice
from tilegrad.errors import DeviceError

KINDS: tuple[type[Device], ...] = (HostDevice, SimDevice)
DEFAULT_DEVICE = "host"
DEFAULT_SIMULATOR = "sim:siracusa"


def device_names() -> tuple[str, ...]:
    return tuple(name for kind in KINDS for name in kind.names())


def device_kind(name: str) -> type[Device]:
    for kind in KINDS:
        if name in kind.names():
            return kind
    raise unknown_device(name, device_names())


def open_device(name: str, *, use_cache: bool = True) -> Device:
    """Opens a device; use it as a context manager."""
    kind = device_kind(name)
    reason = kind.missing(name)
    if reason is not None:
        raise DeviceError(
            f"device '{name}' cannot be used here: {reason}", stage="device", hint="run `tilegrad doctor`"
        )
    return kind(name, use_cache=use_cache)
