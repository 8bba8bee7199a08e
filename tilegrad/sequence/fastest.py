"""Of the ways in which a program may be scheduled, the one that takes least time on the clock.

Most of a schedule is decided nest by nest. Whether an entry computes in scratchpad at all, and whether what takes most
of L2 is there whole or in parts, is not: it depends on where everything else then lives. So where it may matter, whole
programs are listed, timed and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from tilegrad.errors import DoesNotFit
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.place.levels import durations
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.panels import WHOLE_SHARE
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence.sequence import unproved
from tilegrad.sequence.timing import time_listing
from tilegrad.targets.base import Target

# Of L2, what operands of a launch may take that are there whole where that is tried: the rest is for its neighbours.
MOST_WHOLE_SHARE = 0.95
# What another way must gain to be taken: estimates are not better than that.
LITTLE_FASTER = 0.99
# Entries that share functions are tiled alike, and are judged by the first that does anything.
TOGETHER = (("step", "infer"), ("update",))


def fastest_schedule(program: Program, target: Target, options: ScheduleOptions) -> Schedule:
    first = schedule_program(program, target, options)
    if target.is_flat or not options.is_tiled:
        return first
    best, share = first, WHOLE_SHARE
    if options.home == "auto" and any(entry.panels for entry in first.entries.values()):
        other = schedule_program(program, target, options, MOST_WHOLE_SHARE)
        if any(other.entries[name].panels != entry.panels for name, entry in first.entries.items()):
            best = _fastest([first, other], options)
            share = WHOLE_SHARE if best is first else MOST_WHOLE_SHARE
    if options.l2_buffering == options.blocks == "auto" and target.clusters == 1 and not target.compute_engines:
        quick = list(_quick_in_place(best))
        if quick:
            in_place = schedule_program(program, target, replace(options, is_tiled=False), share)
            best = _fastest([best, *(_with_entries(best, in_place, names) for names in quick)], options)
    return best


def _with_entries(tiled: Schedule, in_place: Schedule, names: tuple[str, ...]) -> Schedule:
    entries = {name: in_place.entries[name] if name in names else entry for name, entry in tiled.entries.items()}
    return replace(tiled, entries=entries, overlaps=any(entry.is_tiled for entry in entries.values()))


def _quick_in_place(tiled: Schedule) -> Iterator[tuple[str, ...]]:
    """Entries whose kernels alone would take less time where operands live than tiles take in scratchpad."""
    in_tiles, in_place = durations(tiled), durations(tiled, is_tiled=False)
    found: tuple[str, ...] = ()
    for names in TOGETHER:
        name = next((name for name in names if sum(in_tiles.get(name, ()))), names[0])
        if sum(in_place.get(name, ())) < sum(in_tiles.get(name, ())):
            yield names
            if found:
                yield (*found, *names)
            found = names


def _fastest(ways: list[Schedule], options: ScheduleOptions) -> Schedule:
    """The first, unless another takes less by more than estimates are off, or it does not fit and another does."""
    best, least = ways[0], inf
    entries = [name for name in ("step", "update") if best.entries[name].launches] or ["infer"]
    for way in ways:
        try:
            timing = time_listing(unproved(plan_memory(way, options.home), entries))
        except DoesNotFit:
            continue
        accumulate = way.program.recipe.accumulate
        cycles = sum(own.cycles * (accumulate if name == "step" else 1) for name, own in timing.items())
        if cycles < LITTLE_FASTER * least:
            best, least = way, cycles
    return best
