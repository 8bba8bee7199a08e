"""Every nest of an update as a row: what it computes, moves and takes, and what bounds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.ir.listing import Fetch, Load, Store
from tilegrad.ir.nest import Nest
from tilegrad.ir.schedule import Tiling
from tilegrad.report.picture.listed import Listed
from tilegrad.sequence.timing import EntryTiming

ENTRIES_SHOWN = ("step", "update")


def tile_text(tiling: Tiling | None) -> str:
    if tiling is None:
        return "whole"
    return ", ".join(f"{loop.axis} {loop.tile}/{loop.extent}" for loop in tiling.loops) or "one tile"


def traffic_bytes(compiled: Listed, entry: str) -> Mapping[int, int]:
    """Bytes that come to scratchpad and leave it, by nest; tables count."""
    found: dict[int, int] = defaultdict(int)
    listing = compiled.listing.entries.get(entry)
    for event in () if listing is None else listing.events:
        if isinstance(event, Load | Store | Fetch):
            found[event.nest] += sum(part.size_bytes for part in event.parts)
    return found


def operators_json(compiled: Listed, timings: Mapping[str, EntryTiming]) -> list[dict[str, Any]]:
    """In the order of execution. Cycles and what follows from them are None where the target has no clock."""
    rows: list[dict[str, Any]] = []
    uncounted = uncounted_kernels(compiled.plan.schedule)
    total = sum(timings[entry].cycles for entry in ENTRIES_SHOWN if entry in timings)
    for entry in ENTRIES_SHOWN:
        schedule = compiled.plan.schedule.entries[entry]
        timing, moved = timings.get(entry), traffic_bytes(compiled, entry)
        number = 0
        for launch_number, launch in enumerate(schedule.launches):
            tilings = launch.tilings or (None,) * len(launch.nests)
            for nest, tiling in zip(launch.nests, tilings, strict=True):
                row = {
                    "entry": entry,
                    "launch": launch_number,
                    "nest": number,
                    "node": launch.node.name,
                    "op": launch.node.op,
                    "kernel": nest.title,
                    "uncounted": timing is not None and not set(uncounted).isdisjoint(nest.kernels),
                    "macs": nest.macs,
                    "tile": tile_text(tiling),
                    "tiles": 1 if tiling is None else tiling.tile_count,
                    "footprint_bytes": _operand_bytes(nest) if tiling is None else tiling.scratch_bytes,
                    "traffic_bytes": moved.get(number, 0),
                }
                rows.append(row | _time(timing, number, nest, tiling, total))
                number += 1
    return rows


def _operand_bytes(nest: Nest) -> int:
    return sum(operand.size_bytes for operand in nest.present)


def _time(timing: EntryTiming | None, number: int, nest: Nest, tiling: Tiling | None, total: float) -> dict[str, Any]:
    if timing is None or number >= len(timing.nests):
        return {"cycles": None, "share": None, "bound": None, "macs_per_cycle": None, "waiting_cycles": None}
    own = timing.nests[number]
    bound = "compute"
    if tiling is not None and tiling.estimate.dma_cycles > tiling.estimate.compute_cycles:
        bound = "DMA"
    return {
        "cycles": round(own.cycles),
        "share": own.cycles / total if total else 0.0,
        "bound": bound,
        "macs_per_cycle": own.macs / own.cycles if own.cycles else 0.0,
        "waiting_cycles": round(own.waiting_cycles),
    }


def roofline_json(compiled: Compiled, timings: Mapping[str, EntryTiming]) -> dict[str, Any] | None:
    """The two roofs: multiply-adds per cycle of all FPUs, and bytes per cycle of the engine next to the cores."""
    target = compiled.target
    if target.is_flat or not timings:
        return None
    engine = target.engine(target.home, target.compute)
    return {
        "macs_per_cycle": min(target.fpus, target.cores),
        "bytes_per_cycle": 1.0 / engine.inward.cycles_per_byte,
        "hop": engine.hop,
    }
