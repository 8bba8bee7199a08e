"""The clock: on listings whose cycles are derived by hand (clock_cases.py), and alone, on the same chip."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sequence import clock_cases as paper
from tests.sequence.clock_cases import CASES, CONDUCT, LOAD, MOVE, QUEUE, STORE, Case
from tests.sequence.toy import (
    CHIP,
    Toy,
    ToyCosts,
    begin,
    by_hand,
    chip,
    conduct,
    copy_nest,
    end,
    load,
    move,
    store,
    tiling_of,
    timed,
    wait,
    wait_far,
)
from tilegrad.costs.clock import Clock, EngineClock, Reason, SharedMemory, Stall, merged, overlap_cycles
from tilegrad.costs.conduct import Act, Conduct, PairCost
from tilegrad.costs.kernel_cost import Span
from tilegrad.errors import InternalError
from tilegrad.ir.listing import Begin, End, Enter, Listing, Wait
from tilegrad.sequence import timing as timing_module
from tilegrad.sequence.timing import NestTiming, _Timing, time_listing
from tilegrad.targets.base import CONTROLLER


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_cycles_are_those_on_paper(case: Callable[[], Case]) -> None:
    case().check()


def test_a_listing_as_it_is_made() -> None:
    """A copy of 10 numbers in tiles of 4, two slots each: what the stage makes of it, not only what is made up here.

    Steps from tile to tile are simple ones, and to begin takes 4 cycles."""
    nest = copy_nest(10)
    listing = Toy([(nest, tiling_of(nest, {"m": 4}))]).listing()
    found = timed(listing, ToyCosts(conduct=conduct({Act.BEGIN: 4, Act.OTHER_LOAD: 1000})))
    events = listing.entries["step"].events
    assert [one.event for one in found.events] == list(events)
    begun = [one.start for one in found.events if isinstance(one.event, Begin)]
    over = [one.end for one in found.events if isinstance(one.event, End)]
    # Each tile's load came while the one before computed, and only the step is between them: 4 cycles, no stall.
    assert [b - e for b, e in zip(begun[1:], over, strict=False)] == [4, 4]
    # Tile 0: one load (5 cycles late). Tile 1: a store and a load (10). Tile 2, of two steps: the store of tile 1 (5).
    assert [e - b for b, e in zip(begun, over, strict=True)] == [65, 70, 45]
    assert found.tile_count == 3 and found.compute_cycles == 65 + 70 + 45
    # The store of tile 1, 16 bytes, is there 5 + 32 + 10 behind the beginning of tile 2, which took 45: a wait of 2.
    # Then the last store, 8 bytes: 5 + 16 + 10.
    assert found.cycles - over[-1] == 2 + 31
    assert found.conduct_cycles + found.dma_wait_cycles + found.compute_cycles == found.cycles


def test_nests_add_up() -> None:
    """Two nests: what each took, computed and waited for between its own turn and the next; L3 is not its waiting."""
    events = [
        Enter(0), load(0, 40), wait(0), begin(), end(),
        move(0, 10), wait_far(0, 1), Enter(1), begin(nest=1), end(1), store(1, 10, nest=1), wait(1, 1),
    ]  # fmt: skip
    found = timed(by_hand(events))
    # Nest 0: 5 + 50 + 60, then the move (20 to start, 100 + 20: 120 waited). Nest 1: 60, 5 to start, 20 + 10 waited.
    assert found.nests == (
        NestTiming("/n0", "copy", 1, 115 + 140, 60, 50, 0),
        NestTiming("/n1", "copy", 1, 95, 60, 30, 0),
    )
    assert sum(nest.cycles for nest in found.nests) == found.cycles == 350
    assert found.compute_cycles / found.cycles == pytest.approx(120 / 350)


def test_an_update_finds_the_code_of_the_step() -> None:
    """The first call of a kernel takes 7 more; the update comes behind the step, and nothing is left for others."""
    listing = by_hand([Enter(0), begin(), end()])
    schedule, names = listing.plan.schedule, ("update", "infer", "step")
    for entries, cycles in ((names[::2], [60, 67]), (names, [60, 67, 67]), (names[:2], [67, 67])):
        own = replace(schedule, entries=dict.fromkeys(entries, schedule.entries["step"]))
        several = Listing(replace(listing.plan, schedule=own), dict.fromkeys(entries, listing.entries["step"]))
        found = time_listing(several, ToyCosts(cold=7))  # type: ignore[arg-type]
        assert list(found) == list(entries) and [one.cycles for one in found.values()] == cycles


def test_what_never_started_is_not_waited_for() -> None:
    with pytest.raises(InternalError, match="step waits for transfer 3, which never started"):
        timed(by_hand([Enter(0), begin(), end(), wait(3)]))


def test_an_empty_entry_takes_no_time() -> None:
    found = timed(by_hand([Enter(0)]))
    assert (found.cycles, found.compute_cycles) == (0, 0)


def test_intervals() -> None:
    """Those that touch become one; overlaps are counted once."""
    assert merged([(5, 7), (0, 2), (2, 3), (6, 9), (8, 8.5)]) == [(0, 3), (5, 9)]
    assert overlap_cycles([(0, 3), (5, 9)], [(1, 6), (8, 20)]) == 2 + 1 + 1
    assert overlap_cycles([(0, 1)], [(1, 2)]) == 0 and overlap_cycles([], [(0, 1)]) == 0
    assert overlap_cycles([(0, 10)], [(1, 2), (3, 4), (9, 12)]) == 3
    assert overlap_cycles([(0, 4), (6, 8)], [(2, 8)]) == 4


def test_a_clock_starts_again() -> None:
    costs = ToyCosts()
    clock = Clock(costs.target, costs)  # type: ignore[arg-type]
    clock.command(clock.near, True, 40)
    clock.command(clock.far, True, 40)
    clock.stall_until(500, MOVE)
    clock.begin()
    clock.restart()
    assert (clock.now, clock.forked, clock.conduct_cycles, sum(clock.stall_cycles.values())) == (0, None, 0, 0)
    assert (clock.computes_until, clock.accesses_per_cycle, clock.compute_cycles) == (0, 0, 0)
    assert clock.command(clock.near, True, 40) == (5, 55) and clock.command(clock.far, True, 40) == (25, 205)


def test_a_stall_may_be_shorter_than_a_cycle() -> None:
    """Times are sums of shares of cycles: half a cycle is waited for and counted, what is over is not."""
    clock = Clock(chip(), ToyCosts())  # type: ignore[arg-type]
    assert clock.stall_until(0.5, LOAD) == Stall(LOAD, 0.5)
    assert clock.stall_until(0.5, STORE) is None and clock.stall_until(0.25, STORE) is None
    assert clock.now == 0.5 and clock.stall_cycles[LOAD] == 0.5 and clock.stall_cycles[STORE] == 0.0


def test_an_engine_that_never_worked_is_free() -> None:
    """4 bytes at once: 4 cycles, and 10 until the last is there."""
    assert EngineClock(chip().engine("L2", "L1")).take(0.0, True, 4, 1) == (0.0, 14.0)


def test_acts_cost_what_they_cost() -> None:
    """As CONDUCT says: a simple step's first load takes 15, another one's 19, the next load 4; while cores compute it
    is nobody's conducting."""
    for act, cycles in ((Act.SIMPLE_LOAD, 15), (Act.OTHER_LOAD, 19)):
        clock = Clock(chip(), ToyCosts(conduct=CONDUCT))  # type: ignore[arg-type]
        clock.act(act)
        assert (clock.now, clock.conduct_cycles, clock.latest) == (cycles, cycles, act)
        clock.begin()
        clock.act(Act.NEXT_LOAD)
        assert (clock.now, clock.conduct_cycles) == (cycles + 4, cycles)
        clock.act(Act.NEXT_LOAD, 0.5)
        assert clock.now == cycles + 4 + 2


def test_what_is_in_the_way_of_an_act() -> None:
    """10 cycles alone, 5 more for code that is gone (all of it, at first), 3 while cores compute, and 600 behind a
    transfer of 300 cycles or more: at 100, 1 of these where it ends at 100.5, 300 where it ends at 250, 600 where
    it ends at 1100. Half an act is half of that."""
    costs = ToyCosts(conduct=Conduct({(Act.START, Act.ENTER): PairCost(10, 5, 3, 600)}))
    for computes_until, moves_until, share, cycles in (
        (100, 100, 1.0, 15), (101, 0, 1.0, 18), (0, 100.5, 1.0, 16), (0, 250, 1.0, 315), (0, 1100, 1.0, 615),
        (101, 250, 0.5, 159),
    ):  # fmt: skip
        clock = Clock(chip(), costs)  # type: ignore[arg-type]
        clock.now, clock.computes_until, clock.near.inward.free = 100, computes_until, moves_until
        clock.act(Act.ENTER, share)
        assert (clock.now, clock.conduct_cycles) == (100 + cycles, cycles)


def test_an_engine_that_moves_one_row_at_a_time() -> None:
    """3 rows of 8 bytes are three commands: started at 5 (5 to 13) and 10 (13 to 21), and, when the queue of two has
    room, 10 to 13, at 18: 21 to 29, there at 39."""
    clock = Clock(chip({"has_2d": False}), ToyCosts())  # type: ignore[arg-type]
    assert clock.command(clock.near, True, 24, 3) == (5, 39)
    assert (clock.now, clock.stall_cycles[QUEUE], clock.conduct_cycles) == (18, 3, 15)
    clock.restart()
    assert clock.command(clock.near, True, 16, 2) == (5, 31)  # without the last of them


def test_each_way_is_crowded_as_it_is() -> None:
    """Cores load or store once a cycle, and take a fifth of what comes and half of what leaves: 40 bytes in from 5 on,
    in 40 / 0.8 = 50, there at 65; 40 bytes out from 10 on, in 80 / 0.5 = 160, there at 180. Where nobody says how often
    they do, it is 1.5 times a cycle: 42 bytes in 42 / 0.7 = 60."""
    clock = Clock(chip(), ToyCosts(conduct=Conduct(crowded=(0.2, 0.5))))  # type: ignore[arg-type]
    clock.begin(1000.0, 1.0)
    assert clock.command(clock.near, True, 40) == (5, 65)
    assert clock.command(clock.near, False, 40) == (10, 180)
    clock.restart()
    clock.begin(1000.0)
    assert clock.command(clock.near, True, 42) == (5, pytest.approx(75))


def test_l3_is_crowded() -> None:
    """50 bytes in: 20 to start, and 100 + 100 twice as long: 20 to 420. 50 bytes out: started at 440, when the engine
    is done, and 100 + 200 four times as long: 440 to 1640."""
    clock = Clock(chip(), ToyCosts(conduct=Conduct(far_crowded=(2.0, 4.0))))  # type: ignore[arg-type]
    assert clock.far is not None and clock.command(clock.far, True, 50) == (20, 420)
    assert clock.command(clock.far, False, 50) == (440, 1640)


def test_a_controller_has_no_share_of_the_work() -> None:
    """A call of 60 cycles ends at 60 where whoever conducts is there by then, and when that comes at 80 the cores have
    rested since 60: 20 are conducting."""
    for delay, ends, conducts in ((0, 60, 0), (10, 60, 0), (80, 80, 20)):
        clock = Clock(replace(CHIP, conductor=CONTROLLER), ToyCosts())  # type: ignore[arg-type]
        clock.begin()
        assert clock.computes_until == 0  # which nobody said
        clock.spend(delay)
        assert clock.end(Span(60, 40, 40)) == (0, ends)
        assert (clock.computing, clock.compute_cycles, clock.conduct_cycles) == ([(0, 60)], 60, conducts)


def test_a_memory_that_clusters_share_never_rests() -> None:
    """2 bytes a cycle. 10 at 0: until 5. 4 at 2: behind these, until 7. 4 at 20: until 22. Then 30, of an engine that
    comes later, at 10: 10 cycles until 20, and 5 behind what is asked for there, until 27. 4 at 7: just before, until
    9. So between 5 and 12 it works from 5 to 9 and from 10 on. What is over at 9 is forgotten then."""
    memory = SharedMemory(2.0)
    asked = ((0, 10, 5), (2, 4, 7), (20, 4, 22), (10, 30, 27), (7, 4, 9))
    assert [memory.take(now, size_bytes) for now, size_bytes, _ in asked] == [done for *_, done in asked]
    assert memory.busy == [(0, 9), (10, 27)] and overlap_cycles(memory.busy, [(5, 12)]) == 4 + 2
    assert overlap_cycles(memory.busy, [(28, 30)]) == 0
    memory.forget(9)
    assert memory.busy == [(10, 27)]
    assert memory.take(5, 10) == 10  # just before
    assert SharedMemory(2.0, sharers=3).take(0, 2) == 3


def test_an_engine_takes_as_long_as_its_memory() -> None:
    """4 bytes are 4 cycles of the engine, 8 of a memory with half a byte a cycle, 1 of one with four; 10 for set-up."""
    engine = chip().engine("L2", "L1")
    assert EngineClock(engine, shared=SharedMemory(0.5)).take(0.0, True, 4, 1) == (0, 18)
    assert EngineClock(engine, shared=SharedMemory(4.0)).take(0.0, True, 4, 1) == (0, 14)
    plain = EngineClock(engine)  # nothing is lost to cores or to the other way, unless somebody says so
    assert plain.take(0.0, True, 40, 1, until=100.0) == (0, 50) and plain.take(10.0, False, 40, 1) == (10, 100)
    assert plain.take(20.0, True, 1, 1) == (40, 51)
    assert EngineClock(engine).take(0.0, True, 4, 1, lost=0.5) == (0, 14)


def test_two_hops_of_one_engine_take_turns() -> None:
    """40 bytes from 0 to 40, there at 50; 10 on the other hop from 40 to 50, there at 60; then 1 from 50 on. 2 commands
    are all that the one queue holds: another one is taken when the first of them is done, at 50."""
    near = EngineClock(chip().engine("L2", "L1"))
    other = EngineClock(chip().engine("L2", "L1"), beside=near)
    assert near.take(0.0, True, 40, 1) == (0, 50) and other.take(0.0, True, 10, 1) == (40, 60)
    assert near.take(0.0, True, 1, 1) == (50, 61)
    assert (near.accepted(0.0), other.accepted(0.0)) == (50, 50)


# Each mutation of the clock is noticed by a case on paper.


def no_set_up(patch: pytest.MonkeyPatch) -> None:
    """Transfer set-up dropped."""
    real = EngineClock.take

    def take(self: EngineClock, now: float, inward: bool, *rest: Any) -> tuple[float, float]:
        timing = self.engine.inward if inward else self.engine.outward
        start, arrived = real(self, now, inward, *rest)
        return start, arrived - timing.setup_cycles

    patch.setattr(EngineClock, "take", take)


def l3_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """L3 waits not counted: nobody waits."""
    real = Clock.stall_until
    patch.setattr(Clock, "stall_until", lambda self, time, reason: None if reason is MOVE else real(self, time, reason))


def l3_waits_not_counted(patch: pytest.MonkeyPatch) -> None:
    """L3 waits not counted: they take time, but belong to nobody."""
    real = Clock.stall_until

    def stall_until(self: Clock, time: float, reason: Reason) -> Stall | None:
        found = real(self, time, reason)
        if found is not None and reason is MOVE:
            self.stall_cycles[reason] -= found.cycles
        return found

    patch.setattr(Clock, "stall_until", stall_until)


def hidden_twice(patch: pytest.MonkeyPatch) -> None:
    """Hidden cycles counted twice: both directions beside the same computation."""
    patch.setattr(timing_module, "merged", sorted)
    patch.setattr(timing_module, "overlap_cycles", lambda a, b: 2 * overlap_cycles(merged(a), merged(b)))


def ragged_free(patch: pytest.MonkeyPatch) -> None:
    """Ragged tiles free: a tile smaller than the first takes no time."""
    real = _Timing.begin

    def begin(self: _Timing, event: Begin) -> None:
        real(self, event)
        tiling = self.listed[event.nest].tiling
        if tiling is not None and any(event.ranges[loop.axis].size < loop.tile for loop in tiling.loops):
            self.cluster.span = Span(0.0, 0.0, 0.0)

    patch.setattr(_Timing, "begin", begin)


def last_store_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The wait of the last store dropped."""
    real = _Timing.wait

    def wait(self: _Timing, event: Wait) -> None:
        events = self.own.events
        stores = [e for e in events if isinstance(e, Wait) and STORE in self.done.get((e.queue, e.transfer), ())]
        if stores and event is stores[-1] and event is events[-1]:
            self._note(event, self.clock.now, self.clock.now)
            return
        real(self, event)

    patch.setattr(_Timing, "wait", wait)


def endless_queue(patch: pytest.MonkeyPatch) -> None:
    """Queue depth ignored."""
    patch.setattr(EngineClock, "accepted", lambda self, now: now)


def queue_that_is_full_once(patch: pytest.MonkeyPatch) -> None:
    """Queue depth ignored by all but the first command that meets it."""
    real = EngineClock.restart

    def restart(self: EngineClock) -> None:
        real(self)
        self.ends = deque(maxlen=self.engine.queue_depth + 1)

    patch.setattr(EngineClock, "restart", restart)


MUTATIONS: dict[Callable[[pytest.MonkeyPatch], None], tuple[Callable[[], Case], ...]] = {
    no_set_up: (paper.set_up, paper.set_up_not_hidden, paper.set_up_hidden, paper.both_engines),
    l3_not_waited_for: (paper.both_engines, paper.long_move),
    l3_waits_not_counted: (paper.both_engines, paper.long_move),
    hidden_twice: (paper.hidden_transfer, paper.exposed_transfer, paper.both_engines),
    ragged_free: (paper.ragged_tiles,),
    last_store_not_waited_for: (paper.set_up, paper.ragged_tiles, paper.conducting),
    queue_that_is_full_once: (paper.queue_full_twice,),
    endless_queue: (paper.queue_full, paper.queue_full_twice, paper.queue_full_while_cores_compute, paper.long_move),
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_mutations_are_noticed(mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case() for case in MUTATIONS[mutation]]
    for case in cases:
        case.check()
    mutation(monkeypatch)
    for case in cases:
        with pytest.raises(AssertionError):
            case.check()
