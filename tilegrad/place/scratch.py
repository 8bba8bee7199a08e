"""Where nests work in scratchpad.

A nest lies apart from the one before it, and from the one before that if there is room: so its table and first operands
can come while the nest before still computes, and the results of the one before that can still leave. Nests that come
together (place/suites.py) are one in this: their calls and tables side by side, then their slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.tables import describing_bytes
from tilegrad.costs.kernel_cost import kernel_costs
from tilegrad.ir.plan import MemoryUse, NestPlace, Plan
from tilegrad.place.scratch_offsets import nest_offsets
from tilegrad.place.suites import Suites, TiledNest

Joined = Mapping[str, Sequence[bool]]
"""By entry: of each nest in tiles, whether it comes together with the one before it."""


def place_nests(plan: Plan, joined: Joined = MappingProxyType({})) -> Plan:
    """The plan with a place for each nest in tiles. Where `joined` does not say which nests come together, a rule
    does."""
    target = plan.schedule.target
    scratchpad = target.memory(target.compute)
    assert scratchpad.capacity_bytes is not None
    costs = kernel_costs(target)
    entries = dict(plan.entries)
    used = 0
    for name in (name for name, entry in plan.schedule.entries.items() if entry.is_tiled):
        nests = tiled_nests(plan, name)
        joins_before = joined.get(name) or Suites(plan, name, costs).joined(nests)
        suites: list[list[TiledNest]] = []
        for one, joins in zip(nests, joins_before, strict=True):
            suites[-1:] = [[*suites[-1], one]] if joins else [*suites[-1:], [one]]
        sizes = [_size_bytes(suite, scratchpad.alignment_bytes) for suite in suites]
        # What is launched leaves nothing behind; of L1, an engine has its own scratchpad.
        offsets = [0] * len(sizes) if target.compute_engines else nest_offsets(sizes, scratchpad.capacity_bytes)
        places = []
        for suite, first, size in zip(suites, offsets, sizes, strict=True):
            places += _places(suite, first, 0 < first == scratchpad.capacity_bytes - size, scratchpad.alignment_bytes)
            used = max(used, first + size)
        entries[name] = replace(plan.entries[name], places=tuple(places))
    memory = {**plan.memory, target.compute: MemoryUse(used, scratchpad.capacity_bytes, used)}
    return replace(plan, entries=entries, memory=memory)


def tiled_nests(plan: Plan, entry: str) -> list[TiledNest]:
    target = plan.schedule.target
    longest_bytes = target.engine(target.home, target.compute).longest_bytes
    found = []
    for number, launch in enumerate(plan.schedule.entries[entry].launches):
        for k, (nest, tiling) in enumerate(zip(launch.nests, launch.tilings, strict=True)):
            assert tiling is not None
            table_bytes = describing_bytes(launch.node.op, nest, tiling, longest_bytes)
            found.append(TiledNest(number, k, nest, tiling, table_bytes))
    return found


def _size_bytes(suite: Sequence[TiledNest], alignment: int) -> int:
    return align(sum(one.table_bytes for one in suite), alignment) + sum(one.tiling.scratch_bytes for one in suite)


def _places(suite: Sequence[TiledNest], first: int, is_on_top: bool, alignment: int) -> list[NestPlace]:
    """At either end of scratchpad the tables are at the outside, where the nest before does not reach."""
    slots_bytes = sum(one.tiling.scratch_bytes for one in suite)
    words_bytes = align(sum(one.table_bytes for one in suite), alignment)
    table, slots = (first + slots_bytes, first) if is_on_top else (first, first + words_bytes)
    places = []
    for i, one in enumerate(suite):
        table_bytes = one.table_bytes if one is not suite[-1] else words_bytes
        places.append(NestPlace(one.launch, one.number, table, table_bytes, slots, i))
        table, slots, words_bytes = table + table_bytes, slots + one.tiling.scratch_bytes, words_bytes - table_bytes
    return places
