"""The clock on listings whose cycles are derived by hand.

The toy chip (toy.py): starting a transfer between L2 and L1 costs the conductor 5 cycles; a byte takes 1 cycle inward
and 2 outward, each row beyond the first 3; the last byte is there 10 cycles after it left (set-up, overlapped with what
is moved before); 2 commands fit the queue; directions are apart. L3: 20 cycles to start, 100 set-up that nothing hides,
2 cycles per byte inward and 4 outward, 1 command in the queue, 64 bytes each, one direction at a time.
A kernel call on n steps takes 10 n + 20 cycles. The conductor's own work is free unless a case says what it costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

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
    fetch,
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
from tilegrad.ir.listing import Barrier, Begin, End, Enter, Event, Listing, Load, Queue, Wait
from tilegrad.sequence import timing as timing_module
from tilegrad.sequence.timing import EntryTiming, HopTiming, NestTiming, Roofline, _Timing, time_listing
from tilegrad.targets.base import CONTROLLER

LOAD, STORE, TABLE, MOVE, QUEUE = Reason.LOAD, Reason.STORE, Reason.TABLE, Reason.MOVE, Reason.QUEUE
Spans = dict[int, tuple[float, float]]


@dataclass
class Case:
    """`spans` are start and end of events, by their position; `stalls` reasons and cycles of waits."""

    listing: Listing
    cycles: float
    compute: float
    conduct: float
    dma_wait: float
    l3_wait: float = 0.0
    spans: Spans = field(default_factory=dict)
    stalls: dict[int, tuple[Reason, float]] = field(default_factory=dict)
    hops: dict[str, HopTiming] = field(default_factory=dict)
    costs: ToyCosts = field(default_factory=ToyCosts)
    roofline: Roofline | None = None
    noted: Sequence[Event] = ()  # where that is another order than the listing's

    def check(self) -> EntryTiming:
        found = timed(self.listing, self.costs)
        assert (found.cycles, found.compute_cycles) == (self.cycles, self.compute)
        assert (found.conduct_cycles, found.dma_wait_cycles) == (self.conduct, self.dma_wait)
        assert found.l3_wait_cycles == self.l3_wait
        assert self.compute + self.conduct + self.dma_wait + self.l3_wait == self.cycles, "the case itself is wrong"
        for position, span in self.spans.items():
            one = found.events[position]
            assert (one.start, one.end) == span, position
        noted = {i: one.stall for i, one in enumerate(found.events) if one.stall is not None}
        assert noted == {i: Stall(*stall) for i, stall in self.stalls.items()}
        for hop, expected in self.hops.items():
            assert found.hops[hop] == expected
        assert found.roofline == self.roofline
        assert [one.event for one in found.events] == list(self.noted or self.listing.entries["step"].events)
        return found


def set_up() -> Case:
    """Load: the conductor is done at 5; 40 bytes move from 5 to 45 and are there at 55. It waits 50.
    Kernel: 55 to 55 + 60 = 115. Store: started at 120, moves 120 to 200, arrives 210; the wait is 90."""
    events = [Enter(0), load(0, 40), wait(0), begin(), end(), store(1, 40), wait(1)]
    return Case(
        by_hand(events), 210, 60, 10, 140,
        spans={0: (0, 0), 1: (5, 55), 2: (5, 55), 3: (55, 55), 4: (55, 115), 5: (120, 210), 6: (120, 210)},
        stalls={2: (LOAD, 50), 6: (STORE, 90)},
        hops={"L2-L1": HopTiming(80, 120, 0), "L3-L2": HopTiming(0, 0, 0)},
    )  # fmt: skip


def set_up_not_hidden() -> Case:
    """Two loads. The engine sets up each when the one before is done: 5 to 55, 55 to 105. The wait for the first is 45
    (the conductor came at 10), that for the second 50. Kernel 105 to 165."""
    events = [Enter(0), load(0, 40), load(1, 40), wait(0), wait(1), begin(), end()]
    return Case(
        by_hand(events, chip({"overlaps_setup": False})), 165, 60, 10, 95,
        spans={1: (5, 55), 2: (55, 105)}, stalls={3: (LOAD, 45), 4: (LOAD, 50)},
        hops={"L2-L1": HopTiming(80, 100, 0)},
    )  # fmt: skip


def set_up_hidden() -> Case:
    """The same where set-ups overlap: bytes 5 to 45 and 45 to 85, there at 55 and 95. Kernel 95 to 155."""
    events = [Enter(0), load(0, 40), load(1, 40), wait(0), wait(1), begin(), end()]
    return Case(
        by_hand(events), 155, 60, 10, 85,
        spans={1: (5, 55), 2: (45, 95)}, stalls={3: (LOAD, 45), 4: (LOAD, 40)},
    )  # fmt: skip


def queue_full() -> Case:
    """Three loads, two fit. Started at 5 (bytes 5 to 45) and 10 (45 to 85); the third waits for the end of the first,
    10 to 45, is started at 50, moves 85 to 125, is there at 135. Boxes of one transfer are waited for together: 50 to
    135. Kernel 135 to 195."""
    events = [Enter(0), load(0, 40), load(0, 40), load(0, 40), wait(0), begin(), end()]
    return Case(
        by_hand(events), 195, 60, 15, 35 + 85,
        spans={1: (5, 55), 2: (45, 95), 3: (85, 135)}, stalls={4: (LOAD, 85)},
    )  # fmt: skip


def queue_full_twice() -> Case:
    """Four loads: as above, and the fourth waits for the end of the second, 50 to 85, is started at 90, moves 125 to
    165, is there at 175. Wait 90 to 175, kernel 175 to 235."""
    events = [Enter(0), *[load(0, 40)] * 4, wait(0), begin(), end()]
    return Case(
        by_hand(events), 235, 60, 20, 35 + 35 + 85,
        spans={3: (85, 135), 4: (125, 175)}, stalls={5: (LOAD, 85)},
    )  # fmt: skip


def queue_full_while_cores_compute() -> Case:
    """The kernel begins at 0; loads are started at 5, 10 and, behind a full queue, 50: the conductor comes 50 late to
    40 steps' worth of work (alone 40): 60 + 50 + (40 - 40) = 110. The last load is there at 135: wait 25."""
    events = [Enter(0), begin(), load(0, 40), load(0, 40), load(0, 40), end(), wait(0)]
    return Case(
        by_hand(events), 135, 110, 0, 25,
        spans={5: (0, 110), 4: (85, 135)}, stalls={6: (LOAD, 25)},
        hops={"L2-L1": HopTiming(120, 120, 105)},
    )  # fmt: skip


def both_directions() -> Case:
    """A load started at 5 (5 to 45, there at 55), a store at 10 (10 to 90, there at 100). Waits: 45, 45."""
    events = [Enter(0), load(0, 40), store(1, 40), wait(0), wait(1), begin(), end()]
    return Case(
        by_hand(events), 160, 60, 10, 90,
        spans={1: (5, 55), 2: (10, 100)}, stalls={3: (LOAD, 45), 4: (STORE, 45)},
        hops={"L2-L1": HopTiming(80, 85, 0)},
    )  # fmt: skip


def one_direction_at_a_time() -> Case:
    """The same on an engine that is not duplex: the store's bytes go from 45 to 125, there at 135."""
    events = [Enter(0), load(0, 40), store(1, 40), wait(0), wait(1), begin(), end()]
    return Case(
        by_hand(events, chip({"duplex": False})), 195, 60, 10, 125,
        spans={1: (5, 55), 2: (45, 135)}, stalls={3: (LOAD, 45), 4: (STORE, 80)},
        hops={"L2-L1": HopTiming(80, 120, 0)},
    )  # fmt: skip


def both_engines() -> Case:
    """50 bytes from L3: started at 20, 100 set-up and 100 for the bytes: 20 to 220. Meanwhile 40 bytes come to L1:
    started at 25, there at 75; the wait for them is 50, the kernel runs 75 to 135, then the wait for L3 is 85.
    50 bytes back: started at 240, 100 + 200: 240 to 540, 300 waited."""
    events = [Enter(0), move(0, 50), load(0, 40), wait(0), begin(), end(), wait_far(0), move(1, 50, False), wait_far(1)]
    return Case(
        by_hand(events), 540, 60, 45, 50, 385,
        spans={1: (20, 220), 2: (25, 75), 6: (135, 220), 7: (240, 540)},
        stalls={3: (LOAD, 50), 6: (MOVE, 85), 8: (MOVE, 300)},
        hops={"L2-L1": HopTiming(40, 40, 0), "L3-L2": HopTiming(100, 500, 60)},
    )  # fmt: skip


def long_move() -> Case:
    """100 bytes from L3 are two commands, 64 and 36, and one fits the queue: 20 to 20 + 100 + 128 = 248; the second
    waits 228 for it, is started at 268, ends at 268 + 100 + 72 = 440. The wait for both is 172."""
    events = [Enter(0), move(0, 100), wait_far(0), begin(), end()]
    return Case(
        by_hand(events), 500, 60, 40, 228, 172, spans={1: (20, 440)}, stalls={2: (MOVE, 172)},
        hops={"L3-L2": HopTiming(100, 400, 0)},
    )  # fmt: skip


def late_core() -> Case:
    """While the cores compute from 0, the conductor starts four loads on a queue that takes them all: it joins at 20.
    Each core has 40 to do alone and 60 beside its partner (sharing 1.5): 60 + 20 = 80 where all begin together. Until
    20 the partner has the FPU to itself, so only half of the delay shows: 80 + 20 * (2 - 60 / 40) = 90."""
    events = [Enter(0), begin(), *[load(0, 1)] * 4, end(), wait(0)]
    return Case(
        by_hand(events, chip({"queue_depth": 8})), 90, 90, 0, 0, spans={6: (0, 90)}, costs=ToyCosts(sharing=1.5)
    )


def very_late_core() -> Case:
    """Twelve loads: it joins at 60, when the others are done with their 40 alone: 80 + 60 + 40 - 60 = 120."""
    events = [Enter(0), begin(), *[load(0, 1)] * 12, end(), wait(0)]
    return Case(
        by_hand(events, chip({"queue_depth": 16})), 120, 120, 0, 0, spans={14: (0, 120)}, costs=ToyCosts(sharing=1.5)
    )


def one_core() -> Case:
    """A single core computes when it has conducted: 2 starts, 10 cycles, then 40 + 20. A delay does not hide."""
    events = [Enter(0), begin(), *[load(0, 1)] * 2, end(), wait(0)]
    return Case(by_hand(events, chip(cores=1)), 70, 60, 10, 0, spans={4: (10, 70)})


def hidden_transfer() -> Case:
    """The next tile's 30 bytes come while the first computes: the conductor is 5 late (60 + 5 = 65, bytes 5 to 35,
    there at 45), and waits for nothing. The second tile: 65 to 125."""
    events = [Enter(0), begin(), load(0, 30, tile=1), end(), wait(0), begin(tile=1), end(tile=1)]
    return Case(
        by_hand(events, tiles=2), 125, 125, 0, 0, spans={2: (5, 45), 3: (0, 65), 4: (65, 65), 6: (65, 125)},
        hops={"L2-L1": HopTiming(30, 30, 30)},
    )  # fmt: skip


def exposed_transfer() -> Case:
    """The same with 100 bytes: 5 to 105, there at 115. Of the 100 cycles on the move 60 are hidden behind the first
    tile (5 to 65), 40 and the set-up are not: a wait of 50. The second tile: 115 to 175."""
    events = [Enter(0), begin(), load(0, 100, tile=1), end(), wait(0), begin(tile=1), end(tile=1)]
    return Case(
        by_hand(events, tiles=2), 175, 125, 0, 50, stalls={4: (LOAD, 50)},
        hops={"L2-L1": HopTiming(100, 100, 60)},
    )  # fmt: skip


def crowded_transfer() -> Case:
    """30 bytes come half as fast while cores compute, until 60: 27.5 bytes from 5 to 60, the rest by 62.5, there at
    72.5. The tile is over at 65, so the wait is 7.5. While the second computes, from 72.5, 5 bytes leave half as fast,
    from 77.5 on: 20 cycles, there at 107.5, before the tile ends at 137.5."""
    events = [
        Enter(0), begin(), load(0, 30, tile=1), end(), wait(0), begin(tile=1), store(1, 5), end(tile=1), wait(1),
    ]  # fmt: skip
    return Case(
        by_hand(events, tiles=2), 137.5, 65 + 65, 0, 7.5, spans={2: (5, 72.5), 6: (77.5, 107.5)},
        stalls={4: (LOAD, 7.5)}, hops={"L2-L1": HopTiming(35, 57.5 + 20, 57.5 + 20)},
        costs=ToyCosts(conduct=Conduct(crowded=(0.5, 0.7))),
    )  # fmt: skip


def not_crowded_any_more() -> Case:
    """Behind the kernel call nothing is crowded: 40 bytes from 65 to 105, there at 115."""
    events = [Enter(0), begin(), end(), load(0, 40, tile=1), wait(0)]
    return Case(
        by_hand(events, tiles=2), 115, 60, 5, 50, stalls={4: (LOAD, 50)}, spans={3: (65, 115)},
        costs=ToyCosts(conduct=Conduct(crowded=(0.5, 0.7))),
    )  # fmt: skip


def opposed_transfers() -> Case:
    """40 bytes come from 5 to 45. 40 that leave from 10 on take 80 cycles, and half of the 35 beside the load more:
    there at 117.5. The load takes a quarter of these 35 longer: the next byte comes from 53.75 on, in 1.25, there at
    65."""
    events = [Enter(0), load(0, 40), store(1, 40), load(2, 1), wait(2), wait(1)]
    return Case(
        by_hand(events, chip({"queue_depth": 8})), 117.5, 0, 15, 50 + 52.5, spans={2: (10, 117.5), 3: (53.75, 65)},
        stalls={4: (LOAD, 50), 5: (STORE, 52.5)}, costs=ToyCosts(conduct=Conduct(opposed=(0.25, 0.5))),
    )  # fmt: skip


def ragged_tiles() -> Case:
    """Tiles of 4, 4 and 2 steps: 60 + 60 + 40, and a store of 8 bytes behind them: 165, 165 to 181, there at 191."""
    sizes = (4, 4, 2)
    events: list[Event] = [Enter(0)]
    for tile, size in enumerate(sizes):
        events += [begin(size, tile=tile), end(tile=tile)]
    events += [store(0, 8), wait(0)]
    return Case(
        by_hand(events, tiles=3), 191, 160, 5, 26, stalls={8: (STORE, 26)},
        spans={2: (0, 60), 4: (60, 120), 6: (120, 160)},
    )  # fmt: skip


def barrier() -> Case:
    """The conductor waits for a store while cores compute: 5, moves 5 to 25, there at 35. That is no stall: a core
    computes. It joins at 35, and all are at the barrier at 60 + 35 = 95."""
    events = [Enter(0), begin(), store(0, 10), wait(0), end()]
    return Case(
        by_hand(events), 95, 95, 0, 0, spans={3: (5, 35), 4: (0, 95)}, stalls={3: (STORE, 30)},
        hops={"L2-L1": HopTiming(10, 20, 20)},
    )  # fmt: skip


def extra_rows() -> Case:
    """5 rows of 8 bytes: 40 + 4 * 3 = 52 from 5 to 57, there at 67."""
    events = [Enter(0), load(0, 40, count=5), wait(0), begin(), end()]
    return Case(by_hand(events), 127, 60, 5, 62, spans={1: (5, 67)}, stalls={2: (LOAD, 62)})


def table() -> Case:
    """A call of 40 bytes and a table of 60: started at 5 and 10, 5 to 45 and 45 to 105, there at 115."""
    events = [fetch(0, 0, 40, 60), wait(0), Enter(0), begin(), end()]
    return Case(by_hand(events), 175, 60, 10, 105, spans={0: (5, 115)}, stalls={1: (TABLE, 105)})


def whole_nest() -> Case:
    """Without tiles a kernel works in L2, where its steps take twice as long: 80 + 20."""
    return Case(by_hand([Enter(0), begin(), end()], tiled=False), 100, 100, 0, 0)


CONDUCT = conduct(
    {
        Act.ENTER: 9, Act.FETCH: 8, Act.FIRST_LOAD: 3, Act.SIMPLE_LOAD: 15, Act.OTHER_LOAD: 19, Act.NEXT_LOAD: 4,
        Act.STORE: 9, Act.PART: 11, Act.WAIT_LOAD: 1, Act.WAIT_STORE: 1, Act.BEGIN_FIRST: 2, Act.BEGIN: 10, Act.END: 6,
    },
    {(Act.BEGIN_FIRST, Act.FETCH): 12, (Act.BEGIN_FIRST, Act.STORE): 16},
)  # fmt: skip


def conducting() -> Case:
    """Entering: 9. A load: 3 and 5, so from 17 on, 1 byte, there at 28. To wait for it takes 1, at 18: a stall of 10.
    Begin: 2, at 30. The way to the barrier: 6 late, 30 + 60 + 6 = 96. The next tile: 10, from 106, 6 late, to 172. A
    store: 9 + 5, from 186, 2 cycles, there at 198; 1 to wait for it: a stall of 11."""
    events = [Enter(0), load(0, 1), wait(0), begin(), end(), begin(tile=1), end(tile=1), store(1, 1), wait(1)]
    return Case(
        by_hand(events, tiles=2), 198, 66 + 66, 9 + 8 + 1 + 2 + 10 + 14 + 1, 10 + 11,
        spans={0: (0, 9), 1: (17, 28), 2: (17, 28), 4: (30, 96), 5: (106, 106), 6: (106, 172), 7: (186, 198)},
        stalls={2: (LOAD, 10), 8: (STORE, 11)}, costs=ToyCosts(conduct=CONDUCT),
    )  # fmt: skip


def conducting_transfers() -> Case:
    """A table in two parts: 8 + 5 = 13, and 11 + 5, at 29; the second byte moves 29 to 30, is there at 40: a stall of
    11. Entering nest 0: 9, at 49. A load of two parts: 3 + 5, 57 to 58, and 11 + 5, 73 to 74, there at 84. 1 to
    wait: a stall of 10. Begin: 2, at 86. The table behind it takes 12 + 5, 103; the store 9 + 5, 117; the barrier 6: 37
    late, 60 + 37 = 97, so 183.
    Entering nest 1: 9 + 2, begin at 194. Its store comes right behind that: 16 + 5, 215, and 6: 27 late, 60 + 27 = 87,
    281. By then all has arrived: 1 for each of the waits for stores."""
    two = load(1, 1)
    two = Load(two.queue, 1, 0, 0, "x", two.box, 0, "arena", 0, two.parts * 2)
    events = [
        fetch(0, 0, 1, 1), wait(0), Enter(0), two, wait(1), begin(), fetch(2, 1, 1), store(3, 1), end(),
        Enter(1), begin(nest=1), store(4, 1, nest=0), end(1), wait(2), wait(3), wait(4),
    ]  # fmt: skip
    return Case(
        by_hand(events, chip({"queue_depth": 8})), 283, 97 + 87, 29 + 9 + 24 + 1 + 2 + 11 + 2, 11 + 10,
        spans={0: (13, 40), 2: (40, 49), 3: (57, 84), 6: (103, 114), 7: (117, 129), 8: (86, 183), 9: (183, 192),
               11: (215, 227), 12: (194, 281)},
        stalls={1: (TABLE, 11), 4: (LOAD, 10)}, costs=ToyCosts(conduct=CONDUCT),
    )  # fmt: skip


def nests_that_come_together() -> Case:
    """A byte each, for two operands of nest 0 and one of nest 1: 3 + 5 for the first, at 8, and for the second, at 16;
    that of the nest behind takes 1 + 5, at 22. They are there at 27 and 33, stalls of 5 and 6, and the nests compute
    until 93 and 153."""
    events = [
        Enter(0), load(0, 1), load(0, 1), load(1, 1, nest=1), wait(0), wait(1), begin(), end(),
        Enter(1), begin(nest=1), end(1),
    ]  # fmt: skip
    return Case(
        by_hand(events, chip({"queue_depth": 8})), 153, 60 + 60, 8 + 8 + 6, 5 + 6,
        spans={1: (8, 19), 2: (16, 27), 3: (22, 33), 7: (33, 93)}, stalls={4: (LOAD, 5), 5: (LOAD, 6)},
        costs=ToyCosts(conduct=conduct({Act.FIRST_LOAD: 3, Act.JOINED_LOAD: 1})),
    )  # fmt: skip


def ending() -> Case:
    """Behind the last kernel, at 60, the conductor takes 7 to stop, and whoever called the entry 11."""
    costs = ToyCosts(conduct=Conduct(acts={Act.STOP: 7}, calls={"step": 11, "update": 100}))
    return Case(by_hand([Enter(0), begin(), end()]), 78, 60, 18, 0, costs=costs)


def asking_ahead() -> Case:
    """The first tile's 10 bytes move from 5 to 15, are there at 25, and are waited for from 5 on; it computes until 85.
    The third one's 20 are asked for before the second begins, from 90 on, and lose half of their time to that, though
    no core computes yet: 20 / 0.5 = 40 cycles, there at 140. The second computes from 90 to 150."""
    events = [Enter(0), load(0, 10), wait(0), begin(), end(), load(1, 20, tile=2), begin(tile=1), end(tile=1), wait(1)]
    listing = by_hand(events, tiles=3)
    own = listing.entries["step"]
    tiling = own.nests[0].tiling
    assert tiling is not None
    nests = (replace(own.nests[0], tiling=replace(tiling, asks_ahead=True)),)
    return Case(
        replace(listing, entries={"step": replace(own, nests=nests)}), 150, 60 + 60, 5 + 5, 20,
        spans={1: (5, 25), 4: (25, 85), 5: (90, 140), 7: (90, 150)}, stalls={2: (LOAD, 20)},
        costs=ToyCosts(conduct=Conduct(crowded=(0.5, 0.5))),
    )  # fmt: skip


def asking_ahead_in_the_next_nest() -> Case:
    """Nest 0 computes until 60. The first tile of nest 1 is not asked for ahead: 10 bytes from 65 to 75, there at 85,
    and it computes until 145. The second is: 20 bytes from 150 on take 40 cycles, there at 200; it computes until
    260."""
    events = [
        Enter(0), begin(), end(), Enter(1), load(0, 10, nest=1), wait(0, 1), begin(nest=1), end(1),
        load(1, 20, nest=1, tile=1), wait(1, 1), begin(nest=1, tile=1), end(1, 1),
    ]  # fmt: skip
    listing = by_hand(events, tiles=2)
    own = listing.entries["step"]
    nests = tuple(replace(one, tiling=replace(one.tiling, asks_ahead=True)) for one in own.nests if one.tiling)
    return Case(
        replace(listing, entries={"step": replace(own, nests=nests)}), 260, 60 + 60 + 60, 5 + 5, 20 + 50,
        spans={4: (65, 85), 7: (85, 145), 8: (150, 200), 11: (200, 260)}, stalls={5: (LOAD, 20), 9: (LOAD, 50)},
        costs=ToyCosts(conduct=Conduct(crowded=(0.5, 0.5))),
    )  # fmt: skip


def nothing_from_l3() -> Case:
    """A tensor of no bytes is a command all the same: 20 to start it and 7 more to begin to, 100 until it is done at
    120. From 27 on that is waited for: 93."""
    return Case(
        by_hand([Enter(0), move(0, 0), wait_far(0), begin(), end()]), 180, 60, 27, 0, 93,
        spans={1: (20, 120)}, stalls={2: (MOVE, 93)}, hops={"L3-L2": HopTiming(0, 100, 0)},
        costs=ToyCosts(conduct=Conduct(move_cycles=7)),
    )  # fmt: skip


def over_two_clusters() -> Case:
    """3 cycles to tell clusters that there is work, and 3 to tell that it is done. Block 0 computes from 3 to 63. Block
    1 starts a load at 8, which moves 8 to 48 and is there at 58: a stall of 50, then it computes until 118. The entry
    is over at 121; where its time went is told of block 1, which was last."""
    second = (load(0, 40), wait(0), begin(), end())
    moved = [replace(one, queue=Queue(1, one.queue.engine)) for one in second]  # type: ignore[union-attr]
    listing = by_hand([Enter(0), begin(), end(), *moved, Barrier(0, 2)], replace(CHIP, clusters=2, signal_cycles=3))
    own = listing.entries["step"]
    nests = (replace(own.nests[0], blocks=2),)
    return Case(
        replace(listing, entries={"step": replace(own, nests=nests)}), 121, 60, 3 + 5 + 3, 50,
        spans={2: (3, 63), 3: (8, 58), 6: (58, 118), 7: (3, 121)}, stalls={4: (LOAD, 50)},
        hops={"L2-L1": HopTiming(40, 40, 40)},
    )  # fmt: skip


def cold_code() -> Case:
    """The first call of a kernel takes 7 more, the second, with its code in the cache, does not."""
    events = [Enter(0), begin(), end(), begin(tile=1), end(tile=1)]
    return Case(by_hand(events, tiles=2), 127, 67 + 60, 0, 0, costs=ToyCosts(cold=7))


CASES: tuple[Callable[[], Case], ...] = (
    set_up, set_up_not_hidden, set_up_hidden, queue_full, queue_full_twice, queue_full_while_cores_compute,
    both_directions, one_direction_at_a_time, both_engines, long_move, late_core, very_late_core, one_core,
    hidden_transfer, exposed_transfer, ragged_tiles, barrier, extra_rows, table, whole_nest, conducting,
    conducting_transfers, nests_that_come_together, ending, asking_ahead, asking_ahead_in_the_next_nest,
    nothing_from_l3, over_two_clusters, cold_code, crowded_transfer, not_crowded_any_more, opposed_transfers,
)  # fmt: skip


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


# Each mutation of the clock is noticed by a case above.


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
    no_set_up: (set_up, set_up_not_hidden, set_up_hidden, both_engines),
    l3_not_waited_for: (both_engines, long_move),
    l3_waits_not_counted: (both_engines, long_move),
    hidden_twice: (hidden_transfer, exposed_transfer, both_engines),
    ragged_free: (ragged_tiles,),
    last_store_not_waited_for: (set_up, ragged_tiles, conducting),
    queue_that_is_full_once: (queue_full_twice,),
    endless_queue: (queue_full, queue_full_twice, queue_full_while_cores_compute, long_move),
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
