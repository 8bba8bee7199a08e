"""The clock on listings whose cycles are derived by hand.

The toy chip (toy.py): starting a transfer between L2 and L1 costs the conductor 5 cycles; a byte takes 1 cycle inward
and 2 outward, each row beyond the first 3; the last byte is there 10 cycles after it left (set-up, overlapped with what
is moved before); 2 commands fit the queue; directions are apart. L3: 20 cycles to start, 100 set-up that nothing hides,
2 cycles per byte inward and 4 outward, 1 command in the queue, 64 bytes each, one direction at a time.
A kernel call on n steps takes 10 n + 20 cycles. The conductor's own work is free unless a case says what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.sequence.toy import (
    CHIP,
    ToyCosts,
    begin,
    by_hand,
    chip,
    conduct,
    end,
    fetch,
    load,
    move,
    store,
    timed,
    wait,
    wait_far,
)
from tilegrad.costs.clock import Reason, Stall
from tilegrad.costs.conduct import Act, Conduct
from tilegrad.ir.listing import Barrier, Enter, Event, Listing, Load, Queue
from tilegrad.sequence.timing import EntryTiming, HopTiming, Roofline

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
