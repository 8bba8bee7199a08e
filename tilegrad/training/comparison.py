"""`tilegrad compare`: one model untiled, tiled, and tiled with double buffering, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Device
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.frontend import ImportedModel
from tilegrad.pipeline import compile_model
from tilegrad.place.traffic import least_traffic_bytes
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.timing import EntryTiming
from tilegrad.stack import stack_use
from tilegrad.targets.base import L2, L3, Target
from tilegrad.training.course import Progress
from tilegrad.training.running import no_progress
from tilegrad.training.train import Run, memory_json, train
from tilegrad.verify.compare import DEFAULT_TOLERANCE

MODES = ("untiled", "single", "double")
FAR_HOP = f"{L3}-{L2}"


@dataclass(frozen=True)
class Row:
    """One mode: a run, or the reason why there is none. `speedup` is over the first mode that ran."""

    mode: str
    compiled: Compiled | None = None
    run: Run | None = None
    reason: str | None = None
    speedup: float | None = None

    @property
    def cycles_per_update(self) -> float | None:
        if self.run is None:
            return None
        timings = self.run.estimates
        accumulate = self.run.compiled.program.recipe.accumulate
        return accumulate * timings["step"].cycles + timings["update"].cycles

    def roofline(self) -> dict[str, Any] | None:
        """Of a step: what computing and each hop's transfers would take alone, and how much longer all of it takes."""
        if self.run is None or self.compiled is None:
            return None
        step = self.run.estimates["step"]
        busy = {hop: round(timing.busy_cycles) for hop, timing in step.hops.items()}
        longest = max(step.compute_cycles, *busy.values())
        has_l3 = FAR_HOP in step.hops
        moved = step.hops[FAR_HOP].size_bytes if has_l3 else 0
        least = least_traffic_bytes(self.compiled.plan, "step") if has_l3 else 0
        return {
            "compute": round(step.compute_cycles),
            "hops": busy,
            "ratio": step.cycles / longest if longest else None,
            "l3_bytes": moved,
            "least_l3_bytes": least,
        }

    def as_json(self) -> dict[str, Any]:
        """The contract of PRODUCT.md."""
        if self.run is None or self.compiled is None:
            return {"mode": self.mode, "verified": None, "reason": self.reason}
        timings = self.run.estimates
        step, update = timings["step"], timings["update"]
        return {
            "mode": self.mode,
            "verified": None if self.run.verdict is None else self.run.verdict.verified,
            "cycles": {"step": round(step.cycles), "update": round(update.cycles)},
            "macs_per_cycle": self.run.macs_per_cycle,
            "memory": {name: memory_json(use) for name, use in self.compiled.plan.memory.items()},
            "tiles": step.tile_count + update.tile_count,
            "dma_bytes": {hop: step.hops[hop].size_bytes + update.hops[hop].size_bytes for hop in step.hops},
            "stalled": _stalled(step, update),
            "hidden": {hop: hidden_share(step, hop) for hop in step.hops},
            "roofline": self.roofline(),
            "speedup": self.speedup,
            "weights_sha256": self.run.weights_sha256,
            "stack": self.run.stack.as_json(),
        }


def _stalled(*timings: EntryTiming) -> float:
    """Share of all cycles in which no core computes."""
    total = sum(timing.cycles for timing in timings)
    return 1.0 - sum(timing.compute_cycles for timing in timings) / total if total else 0.0


def hidden_share(timing: EntryTiming, hop: str) -> float | None:
    """How much of the hideable DMA time (the smaller of the hop's and the cores') passed while cores computed."""
    hideable = min(timing.hops[hop].busy_cycles, timing.compute_cycles)
    return timing.hops[hop].hidden_cycles / hideable if hideable else None


def options_of(mode: str, base: ScheduleOptions) -> ScheduleOptions:
    if mode == "untiled":
        return replace(base, is_tiled=False)
    return replace(base, is_tiled=True, buffering=mode)


def _progress_of(mode: str, progress: Progress) -> Progress:
    return lambda what, done, of: progress(f"{mode}: {what}", done, of)


def compare_modes(
    model: ImportedModel,
    recipe: Recipe,
    target: Target,
    device: Device,
    *,
    base: ScheduleOptions | None = None,
    steps: int = 2,
    verify: bool = True,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress = no_progress,
) -> tuple[Row, ...]:
    """A mode that does not fit is a row with the reason; a wrong result is not caught here but shows in its verdict."""
    if not device.capabilities.estimates_cycles:
        raise UserError(
            f"device '{device.name}' has no cycles to compare",
            stage="compare",
            expected="a device that estimates cycles, such as sim:siracusa",
            got=device.name,
        )
    rows: list[Row] = []
    for position, mode in enumerate(MODES):
        told = _progress_of(f"{mode} ({position + 1} of {len(MODES)})", progress)
        told("compile", 0, 1)
        try:
            compiled = compile_model(model, recipe, target, options=options_of(mode, base or ScheduleOptions()))
        except DoesNotFit as error:
            rows.append(Row(mode, reason=str(error)))
            continue
        run = train(compiled, device, steps=steps, verify=verify, tolerance=tolerance, progress=told)
        told("stack", 0, 1)
        rows.append(Row(mode, compiled, replace(run, stack=stack_use(compiled, use_cache=device.use_cache))))
    first = next((row.cycles_per_update for row in rows if row.cycles_per_update), None)
    return tuple(
        replace(row, speedup=first / row.cycles_per_update) if first and row.cycles_per_update else row for row in rows
    )
