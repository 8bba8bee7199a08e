"""Of the ways in which a program may be scheduled, the one that takes least time on the clock.

Most of a schedule is decided nest by nest. Whether what takes most of L2 is there whole or in parts is not: it depends
on where everything else then lives. Nor is whether an update comes to scratchpad at all: where it divides for each
parameter, as Adam does, cores wait for their divider wherever operands are, and tiles only cost. If it comes from L3 on
top of that, it may be the longer part of a training, and all of L2 for it worth more than tiles of the step. Nor is,
where much is moved to L3, how tiles are best buffered, or how much is best under way. So where it may matter, whole
programs are listed, timed and compared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf

from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.place.levels import MANY_LAUNCHES, durations
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.panels import WHOLE_SHARE
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence.sequence import unproved
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import Target

# Of L2, what operands of a launch may take that are there whole where that is tried: the rest is for its neighbours.
MOST_WHOLE_SHARE = 0.95
# What another way must gain to be taken: estimates are not better than that. Of an update that runs the same kernels on
# the same bytes, they are, and nearly so of other tiles for the same kernels.
LITTLE_FASTER, LITTLE_FASTER_UPDATE, LITTLE_FASTER_TILES = 0.97, 0.985, 0.99
# Of its cycles, what a program waits for L3 that is planned for fewer moves at once, too, and for as many as may be.
WAITS_FOR_L3 = 0.03
FEW_MOVES = 4
# With L1 of 32 KB, models of the zoo have 8,400 at most.
MANY_TILES = 12000
STEP, UPDATE = "step", "update"


def fastest_schedule(program: Program, target: Target, options: ScheduleOptions) -> Schedule:
    first = schedule_program(program, target, options)
    if target.is_flat or not options.is_tiled:
        return first
    best, share = first, WHOLE_SHARE
    has_time = not is_long(first)
    if options.home == "auto" and has_time and any(entry.panels for entry in first.entries.values()):
        other = schedule_program(program, target, options, MOST_WHOLE_SHARE)
        if any(other.entries[name].panels != entry.panels for name, entry in first.entries.items()):
            best = _fastest([first, other], options)
            share = WHOLE_SHARE if best is first else MOST_WHOLE_SHARE
    if options.l2_buffering == options.blocks == "auto" and target.clusters == 1 and not target.compute_engines:
        in_tiles, in_place = (sum(durations(best, is_tiled).get(UPDATE, ())) for is_tiled in (True, False))
        if in_place < in_tiles:  # and that is what kernels take alone
            untiled = schedule_program(program, target, replace(options, is_tiled=False), share)
            others = [
                replace(best, entries={**best.entries, **{name: untiled.entries[name] for name in names}})
                for names in ((STEP, UPDATE), (UPDATE,))
            ]
            best = _fastest([best, *others], options, UPDATE)
        if options.buffering == "auto" and has_time and not program.is_fused:
            best = _with_doubled(best, options, share)
    return _with_other_moves(best, options) if has_time and best.overlaps_l3 else best


def is_long(schedule: Schedule) -> bool:
    """Whether listing and timing it would take many seconds: it is planned in one way then."""
    launches = [launch for entry in schedule.entries.values() for launch in entry.launches]
    tiles = sum(tiling.tile_count for launch in launches for tiling in launch.tilings if tiling is not None)
    return len(launches) > MANY_LAUNCHES or tiles > MANY_TILES


def _with_doubled(best: Schedule, options: ScheduleOptions, share: float) -> Schedule:
    """Or the same in double-buffered tiles, where something is moved to L3: tiles alone do not show what their order is
    worth to those moves. What keeps gradients has most of them."""
    if not any(own.staging for own in plan_memory(best, options.home).entries.values()):
        return best
    doubled = schedule_program(best.program, best.target, replace(options, buffering="double"), share)
    return _fastest([best, doubled], options, least_gain=LITTLE_FASTER_TILES)


def _with_other_moves(best: Schedule, options: ScheduleOptions) -> Schedule:
    """Planned for other moves under way at once, where cores wait for them: what is brought early may be in the way of
    what is needed soon, and which of both is worse depends on where everything is in L2."""
    engine, plan = best.target.far_engine, plan_memory(best, options.home)
    if engine is None or not any(own.staging for own in plan.entries.values()):
        return best
    times = {name: timed(plan, name) for name in _trained(best)}
    late = [best.program.calls(name) * (own.l3_wait_cycles - WAITS_FOR_L3 * own.cycles) for name, own in times.items()]
    if sum(late) < 0:
        return best
    others = [replace(best, queued_moves=count) for count in (engine.queue_depth, FEW_MOVES)]
    return _fastest([best, *others], options, least_gain=LITTLE_FASTER_TILES)


@lru_cache(maxsize=4)  # what one stage compares is the next one's
def timed(plan: Plan, entry: str) -> EntryTiming:
    """One entry alone, without its events."""
    return replace(time_listing(unproved(plan, [entry]))[entry], events=())


def _trained(schedule: Schedule) -> list[str]:
    """The entries that count."""
    return [name for name in (STEP, UPDATE) if schedule.entries[name].launches] or ["infer"]


def _fastest(
    ways: list[Schedule], options: ScheduleOptions, entry: str | None = None, least_gain: float = LITTLE_FASTER
) -> Schedule:
    """The first, unless another takes less by more than estimates are off, or it does not fit and another does. Where
    ways differ in one `entry`, and nothing is moved to L3, that one is timed alone, and is all that may differ."""
    best, least = ways[0], inf
    entries = _trained(best)
    for way in ways:
        if entries == [entry] and way.entries[STEP] is not ways[0].entries[STEP]:
            continue
        try:
            plan = plan_memory(way, options.home)
        except DoesNotFit:
            continue
        if entry is not None and way is ways[0] and not any(own.staging for own in plan.entries.values()):
            entries = [entry]
        times = {name: own.cycles for name, own in time_listing(unproved(plan, entries)).items()}
        cycles = sum(way.program.calls(name) * times[name] for name in entries)
        if cycles < (least_gain if entry is None else LITTLE_FASTER_UPDATE) * least:
            best, least = way, cycles
    return best
