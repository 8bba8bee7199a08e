"""The simulated cluster: the same generated C, compiled natively against an adversarial runtime, run as a process."""

from __future__ import annotations

import tempfile

from tilegrad.build.toolchain import Toolchain
from tilegrad.devices.native import NativeDevice, NativeSession
from tilegrad.pipeline import Compiled
from tilegrad.scheduling.clock import EntryTiming, time_entries
from tilegrad.targets import base as targets


class SimSession(NativeSession):
    """Writes a trace of the first call of each entry, from which cycles are computed."""

    TRACE = "trace.txt"

    def timings(self) -> dict[str, EntryTiming]:
        trace = self.folder / self.TRACE
        return time_entries(self.compiled.plan, trace) if trace.exists() else {}


class SimDevice(NativeDevice):
    kind = "sim"
    estimates_cycles = True

    def __init__(
        self,
        name: str,
        *,
        use_cache: bool = True,
        toolchain: Toolchain | None = None,
    ) -> None:
        super().__init__(name, use_cache=use_cache, toolchain=toolchain)
        self.target_name = self.target_of(name)
        self.environment: dict[str, str] = {}

    @classmethod
    def target_of(cls, name: str) -> str:
        return name.removeprefix("sim:")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"sim:{name}" for name in targets.names() if not targets.get(name).is_flat)

    def _session(
        self, compiled: Compiled, folder: tempfile.TemporaryDirectory[str], toolchain: Toolchain
    ) -> NativeSession:
        return SimSession(
            compiled, folder, self.use_cache, toolchain, {"TG_SIM_TRACE": SimSession.TRACE, **self.environment}
        )
