"""Results that never leave scratchpad: whoever reads them does so where they were made."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.listing import ListedNest
from tilegrad.ir.plan import Plan
from tilegrad.passes.views import roots_of_views
from tilegrad.sequence.handover import Handover


def kept_results(plan: Plan, entry: str, nests: Sequence[ListedNest], own: Sequence[Handover]) -> list[frozenset[str]]:
    """Of each nest, by operand. A nest in several tiles sends its results away as they are made."""
    schedule = plan.schedule.entries[entry]
    if schedule.panels or not plan.schedule.overlaps:
        return [frozenset()] * len(nests)
    sources = roots_of_views(schedule.graph)

    def source_of(value: str | None) -> str:
        return sources.get(value or "", value or "")

    needed = {source_of(value) for value in (*schedule.graph.outputs, *(value for value, _ in schedule.graph.writes))}
    needed |= {source_of(move.tensor) for move in plan.entries[entry].staging}
    for listed, handover in zip(nests, own, strict=True):
        needed |= {source_of(o.value) for o in listed.nest.reads if o.name not in handover.taken}
    whole = [one.nest.results if one.tile_count == 1 and not one.blocks else () for one in nests]
    return [frozenset(o.name for o in results if source_of(o.value) not in needed) for results in whole]
