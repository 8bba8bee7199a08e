"""The host: the project compiled for this machine, run as a process."""

from __future__ import annotations

from tilegrad.build.toolchain import Toolchain, host_toolchain
from tilegrad.devices.base import Capabilities
from tilegrad.devices.native import NativeDevice
from tilegrad.devices.peak import Peak, measured_peak
from tilegrad.devices.registry import register


@register
class HostDevice(NativeDevice):
    kind = "host"
    capabilities = Capabilities(takes_ahead=True)

    def __init__(self, name: str = "host", *, use_cache: bool = True, toolchain: Toolchain | None = None) -> None:
        super().__init__(name, use_cache=use_cache, toolchain=toolchain)

    def peak(self) -> Peak:
        return measured_peak(self.toolchain or host_toolchain())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("host",)

    @classmethod
    def target_of(cls, name: str) -> str:
        return "host"
