"""The simulated cluster: the same generated C, compiled natively against an adversarial runtime, run as a process."""

from __future__ import annotations

from tilegrad.build.toolchain import Toolchain
from tilegrad.devices.native import NativeDevice
from tilegrad.targets import base as targets


class SimDevice(NativeDevice):
    kind = "sim"

    def __init__(
        self,
        name: str,
        *,
        use_cache: bool = True,
        keep_folder: str | None = None,
        toolchain: Toolchain | None = None,
    ) -> None:
        super().__init__(name, use_cache=use_cache, keep_folder=keep_folder, toolchain=toolchain)
        self.target_name = name.removeprefix("sim:")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"sim:{name}" for name in targets.names() if not targets.get(name).is_flat)
