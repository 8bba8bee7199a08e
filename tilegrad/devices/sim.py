"""The simulated cluster: the same generated C, compiled natively against an adversarial runtime, run as a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilegrad.build.toolchain import Toolchain
from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Capabilities
from tilegrad.devices.measure import COMPUTE_SECONDS, CYCLES, TRANSFER_SECONDS, WALL_SECONDS
from tilegrad.devices.native import NativeDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.registry import register
from tilegrad.devices.residency import Residency
from tilegrad.devices.session import Exchanged
from tilegrad.devices.transport import Transport
from tilegrad.devices.values import Array
from tilegrad.ir.listing import Listing
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.sequence.trace import check_trace, read_trace
from tilegrad.targets import base as targets


class SimSession(HarnessSession):
    """Writes a trace of the first call of each entry, from which cycles are computed."""

    TRACE = "trace.txt"

    def __init__(
        self,
        compiled: Compiled,
        transport: Transport,
        *,
        residency: Residency | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(compiled, transport, residency=residency, workspace=workspace)
        self._first_blocks: dict[str, int] = {}
        self._listings: dict[int, tuple[Listing, Mapping[str, EntryTiming]]] = {}

    def timings(self) -> dict[str, EntryTiming]:
        """The timed listing: the trace shows that this is what was done, or it is an error."""
        trace = self.folder / self.TRACE
        if not trace.exists():
            return {}
        found = read_trace(trace)
        widths = {entry: self._first_blocks.get(entry, self.blocks) for entry in found}
        listings = {n: self._at(n) for n in set(widths.values())}
        for n, (listing, _) in listings.items():
            check_trace(listing, {entry: lines for entry, lines in found.items() if widths[entry] == n})
        return {entry: listings[widths[entry]][1][entry] for entry in self.compiled.timing if entry in found}

    def _at(self, blocks: int) -> tuple[Listing, Mapping[str, EntryTiming]]:
        """The listing where so many blocks are set, which is proved anew, and its times."""
        if blocks not in self._listings:
            plan = self.compiled.plan
            is_own = blocks == plan.schedule.blocks
            listing = self.compiled.listing
            if not is_own:
                listing = sequence_plan(replace(plan, schedule=replace(plan.schedule, blocks=blocks)))
            self._listings[blocks] = listing, self.compiled.timing if is_own else time_listing(listing)
        return self._listings[blocks]

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        self._traced_over(entry)
        return super()._call(entry, inputs, wanted)

    def _begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Callable[[], Exchanged]:
        if entry is not None:
            self._traced_over(entry)
        return super()._begin(entry, inputs, writes, reads)

    def _measure(self, entry: str, calls: int) -> tuple[int, int, int]:
        self._traced_over(entry)
        return super()._measure(entry, calls)

    def _traced_over(self, entry: str) -> None:
        """Remembers over how many blocks each entry was launched first: that call is traced."""
        self._first_blocks.setdefault(entry, self.blocks)

    def _count(self, entry: str) -> Mapping[str, float]:
        """Every call of an entry does the same transfers and tiles, so its first trace stands for all."""
        counted = super()._count(entry)
        return {**counted, CYCLES: self.timings()[entry].cycles}


@register
class SimDevice(NativeDevice):
    kind = "sim"
    capabilities = Capabilities(
        counters=(WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS, CYCLES), estimates_cycles=True, takes_ahead=True
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
