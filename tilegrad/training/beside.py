"""What adapters save beside training everything: the same model, batch and chip, compiled for `--train all`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilegrad.analysis.lifetimes import analyse
from tilegrad.compiled import Compiled
from tilegrad.frontend.lora import Adapted
from tilegrad.pipeline import compile_model
from tilegrad.place.allocate import lower_bound


@dataclass(frozen=True)
class Cost:
    """Of one training: `dynamic_bytes` is all memory that is no parameter, constant or statistic of the model: the most
    bytes that are alive at once, in whichever level they are, gradients and optimizer state; `dma_bytes` are moved in a
    step and its update, estimated, None without DMA."""

    trained: int
    dynamic_bytes: int
    dma_bytes: int | None


@dataclass(frozen=True)
class Beside:
    adapters: Cost
    everything: Cost
    word: str = "adapters"

    def as_json(self) -> dict[str, Any]:
        return {"adapters": vars(self.adapters), "everything": vars(self.everything)}


def beside_all(compiled: Compiled) -> Beside | None:
    """None where there are no adapters, and the model was not parted."""
    adapted = compiled.model.adapted
    if adapted is None:
        return None
    recipe = replace(compiled.program.recipe, train="all")
    everything = compile_model(adapted.base, recipe, compiled.target, options=compiled.options)
    return Beside(_cost(compiled), _cost(everything), "adapters" if isinstance(adapted, Adapted) else "channels")


def _cost(compiled: Compiled) -> Cost:
    program, plan = compiled.program, compiled.plan
    kept = [tensor for tensor in program.state if tensor.role.value in ("gradient", "optimizer", "hyper")]
    alive = max(lower_bound(analyse(graph, plan.alignment_bytes).buffers) for graph in program.entries.values())
    dynamic = alive + sum(tensor.type.size_bytes for tensor in kept)
    timing = compiled.timing
    moved = None
    if timing:
        entries = [timing[entry] for entry in ("step", "update") if entry in timing]
        moved = sum(hop.size_bytes for entry in entries for hop in entry.hops.values())
    trained = sum(tensor.type.size for tensor in program.trainable)
    return Cost(trained, dynamic, moved)
