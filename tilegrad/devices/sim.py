"""The simulated cluster: the same generated C, compiled natively against an adversarial runtime, run as a process."""

from __future__ import annotations

from collections.abc import Mapping

from tilegrad.build.toolchain import Toolchain
from tilegrad.devices.base import Capabilities
from tilegrad.devices.measure import COMPUTE_SECONDS, CYCLES, TRANSFER_SECONDS, WALL_SECONDS
from tilegrad.devices.native import NativeDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.registry import register
from tilegrad.sequence.timing import EntryTiming
from tilegrad.sequence.trace import check_trace, read_trace
from tilegrad.targets import base as targets


class SimSession(HarnessSession):
    """Writes a trace of the first call of each entry, from which cycles are computed."""

    TRACE = "trace.txt"

    def timings(self) -> dict[str, EntryTiming]:
        """The timed listing: the trace shows that this is what was done, or it is an error."""
        trace = self.folder / self.TRACE
        if not trace.exists():
            return {}
        check_trace(self.compiled.listing, trace)
        return {entry: timing for entry, timing in self.compiled.timing.items() if entry in read_trace(trace)}

    def _count(self, entry: str) -> Mapping[str, float]:
        """Every call of an entry does the same transfers and tiles, so its first trace stands for all."""
        counted = super()._count(entry)
        return {**counted, CYCLES: self.timings()[entry].cycles}


@register
class SimDevice(NativeDevice):
    kind = "sim"
    capabilities = Capabilities(
        counters=(WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS, CYCLES), estimates_cycles=True
    )
    session_type = SimSession

    def __init__(self, name: str, *, use_cache: bool = True, toolchain: Toolchain | None = None) -> None:
        super().__init__(name, use_cache=use_cache, toolchain=toolchain)
        self.environment["TG_SIM_TRACE"] = SimSession.TRACE

    @classmethod
    def target_of(cls, name: str) -> str:
        return name.removeprefix("sim:")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"sim:{name}" for name in targets.names() if not targets.get(name).is_flat)
