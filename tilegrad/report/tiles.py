"""How each operator of the step is cut into tiles, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.ir.nest import Nest
from tilegrad.ir.schedule import Tiling
from tilegrad.report.format import bytes_text, count_text, uncounted_text
from tilegrad.report.output import heading, table


def _tilings(compiled: Compiled) -> Iterator[tuple[str, Nest, Tiling | None]]:
    for launch in compiled.plan.schedule.entries["step"].launches:
        for nest, tiling in zip(launch.nests, launch.tilings, strict=True):
            yield launch.node.name, nest, tiling


def tiles_json(compiled: Compiled) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    uncounted = uncounted_kernels(compiled.plan.schedule)
    for node, nest, tiling in _tilings(compiled):
        row: dict[str, Any] = {"node": node, "kernel": nest.title, "tiled": tiling is not None}
        if tiling is not None:
            row |= {
                "loops": [{"axis": loop.axis, "tile": loop.tile, "extent": loop.extent} for loop in tiling.loops],
                "tiles": tiling.tile_count,
                "buffering": "double" if tiling.is_double else "single",
                "l1_bytes": tiling.scratch_bytes,
                "dma_bytes": tiling.estimate.dma_bytes,
                "uncounted": not set(uncounted).isdisjoint(nest.kernels),
                "estimated_cycles": round(tiling.estimate.cycles),
                "estimated_compute_cycles": round(tiling.estimate.compute_cycles),
                "estimated_dma_cycles": round(tiling.estimate.dma_cycles),
                "why": why(tiling),
            }
        rows.append(row)
    return rows


def pipes_json(compiled: Compiled) -> list[dict[str, Any]]:
    """Neighbours of the step that run at once. Their cycles are with the first of them."""
    entry = compiled.plan.schedule.entries["step"]
    return [
        {
            "from": entry.launches[pipe.producer].node.name,
            "to": entry.launches[pipe.consumer].node.name,
            "value": pipe.value,
            "slots": pipe.depth,
            "slot_bytes": pipe.slot_bytes,
            "blocks": pipe.blocks,
            "rings": pipe.lanes,
            "memory": compiled.target.compute if pipe.is_near else compiled.target.home,
        }
        for pipe in entry.pipes
    ]


def _ring(pipe: Mapping[str, Any]) -> str:
    slots = "1 slot" if pipe["slots"] == 1 else f"{pipe['slots']} slots"
    lanes = f" for each of {pipe['rings']} lanes" if pipe["rings"] > 1 else ""
    return f"{slots} of {bytes_text(pipe['slot_bytes'])}{lanes} in {pipe['memory']}, in each of {pipe['blocks']} blocks"


def why(tiling: Tiling) -> str:
    """What bounds the chosen tiling, which is the fastest by estimate of those that fit."""
    estimate = tiling.estimate
    bound = "compute-bound" if estimate.compute_cycles >= estimate.dma_cycles else "DMA-bound"
    if estimate.reason == "piped":
        return f"{bound}, in a pipe"
    if not tiling.loops:
        return f"{bound}, one tile"
    return f"{bound}, {'overlapped' if tiling.is_double else 'in turn'}"


def tiles_report(compiled: Compiled) -> Iterator[RenderableType]:
    yield heading(f"{compiled.name} for {compiled.target.name}: tiles of one training step")
    right = ("tiles", "L1", "moved", compiled.target.cycles_word)
    made = table("node", "kernel", "tile", *right, "why", right=right, spare=("why", "moved", "L1", "kernel", "tile"))
    uncounted = uncounted_kernels(compiled.plan.schedule)
    for node, nest, tiling in _tilings(compiled):
        if tiling is None:
            made.add_row(node, nest.title, "whole, in L2", "1", "-", "-", "-", "not tiled")
            continue
        tile = ", ".join(f"{loop.axis} {loop.tile}/{loop.extent}" for loop in tiling.loops) or "whole"
        guess = "" if set(uncounted).isdisjoint(nest.kernels) else " uncounted"
        made.add_row(
            node,
            nest.title,
            tile,
            count_text(tiling.tile_count),
            bytes_text(tiling.scratch_bytes),
            bytes_text(tiling.estimate.dma_bytes),
            count_text(round(tiling.estimate.cycles)) + guess,
            why(tiling),
        )
    yield made
    yield from (Text(f"pipe: {one['from']} -> {one['to']}, {_ring(one)}") for one in pipes_json(compiled))
    total = sum(tiling.estimate.cycles for _, _, tiling in _tilings(compiled) if tiling is not None)
    word = compiled.target.cycles_word
    yield Text(f"sum of the operators' {word}: {count_text(round(total))}, waits for L3 apart")
    if uncounted:
        yield Text(uncounted_text(uncounted))
