"""Where nests work in scratchpad.

A nest lies apart from the one before it, and from the one before that if there is room: so its table and first operands
can come while the nest before still computes, and the results of the one before that can still leave.
"""

from __future__ import annotations

from dataclasses import replace
from operator import add

from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.tables import described_bytes, table_of
from tilegrad.ir.nest import Nest
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.ir.schedule import Tiling
from tilegrad.place.scratch_offsets import nest_offsets


def place_nests(plan: Plan) -> tuple[Plan, int]:
    """The plan with a place for each nest in tiles, and the bytes of scratchpad they need."""
    target = plan.schedule.target
    scratchpad = target.memory(target.compute)
    longest_bytes = target.engine(target.home, target.compute).longest_bytes
    assert scratchpad.capacity_bytes is not None
    entries = {}
    used = 0
    for name, schedule in plan.schedule.entries.items():
        parts: list[tuple[int, int, int, Tiling]] = []
        for number, launch in enumerate(schedule.launches):
            for k, (nest, tiling) in enumerate(zip(launch.nests, launch.tilings, strict=True)):
                assert tiling is not None
                table_bytes = _table_bytes(launch.node.op, nest, tiling, longest_bytes, scratchpad.alignment_bytes)
                parts.append((number, k, table_bytes, tiling))
        sizes = [table_bytes + tiling.scratch_bytes for _, _, table_bytes, tiling in parts]
        offsets = nest_offsets(sizes, scratchpad.capacity_bytes)
        places = [_place(*part, first, scratchpad.capacity_bytes) for part, first in zip(parts, offsets, strict=True)]
        entries[name] = replace(plan.entries[name], places=tuple(places))
        used = max([used, *map(add, offsets, sizes)])
    return replace(plan, entries=entries), used


def _table_bytes(op: str, nest: Nest, tiling: Tiling, longest_bytes: int, alignment: int) -> int:
    return align(described_bytes(table_of(op, nest, tiling, longest_bytes), len(nest.operands)), alignment)


def _place(launch: int, nest: int, table_bytes: int, tiling: Tiling, first: int, capacity: int) -> NestPlace:
    """At either end of scratchpad the table is at the outside, where the nest before does not reach."""
    is_on_top = 0 < first == capacity - table_bytes - tiling.scratch_bytes
    table, slots = (first + tiling.scratch_bytes, first) if is_on_top else (first, first + table_bytes)
    return NestPlace(launch, nest, table, table_bytes, slots)
