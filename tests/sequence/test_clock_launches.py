"""The clock on launches whose cycles are derived by hand: blocks, memory that they share, lanes and pipes.

The chip is that of clock_cases.py, with several clusters. It takes `signal_cycles` until a block knows that there is
work, until the other side of a pipe knows what it was told, and until the conductor knows that the last block is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.sequence.clock_cases import LOAD, Case
from tests.sequence.toy import CHIP, begin, by_hand, end, load, wait
from tilegrad.costs.clock import Reason
from tilegrad.ir.listing import Await, Barrier, Enter, Event, ListedNest, Listing, Queue, Signal
from tilegrad.sequence.timing import HopTiming, Roofline
from tilegrad.targets.base import Target

PIPE = Reason.PIPE
MATRIX, VECTOR, OTHER_VECTOR = ("matrix", 0), ("vector", 0), ("vector", 1)


def on(worker: int, *events: Event) -> tuple[Event, ...]:
    """These, done by a lane of a block."""
    return tuple(replace(one, queue=Queue(worker, one.queue.engine)) for one in events)  # type: ignore[union-attr]


def call(size: int, nest: int, tile: int = 0) -> tuple[Event, Event]:
    return begin(size, nest, tile), end(nest, tile)


def tells(nest: int, count: int, pipe: int = 0, ready: bool = True) -> Signal:
    return Signal(Queue(0, "cores"), nest, pipe, 0, ready, count)


def awaits(nest: int, count: int, pipe: int = 0, ready: bool = True) -> Await:
    return Await(Queue(0, "cores"), nest, pipe, 0, ready, count)


def clusters(count: int, signal_cycles: int, bytes_per_cycle: float | None = None) -> Target:
    l1, l2, l3 = CHIP.memories
    memories = (l1, replace(l2, bytes_per_cycle=bytes_per_cycle), l3)
    return replace(CHIP, clusters=count, signal_cycles=signal_cycles, memories=memories)


def launched(
    events: Sequence[Event], target: Target, change: Callable[[int, ListedNest], ListedNest], tiles: int = 1
) -> Listing:
    listing = by_hand(events, target, tiles)
    own = listing.entries["step"]
    nests = tuple(change(number, one) for number, one in enumerate(own.nests))
    return replace(listing, entries={"step": replace(own, nests=nests)})


def blocks_share_memory() -> Case:
    """Memory gives half a byte a cycle to both clusters together, so 10 bytes take it 20, and an engine alone 10.
    Nest 0, from 3 on. Block 0 asks for 10 bytes at 8, done at 28; block 1 for 10 at 8, behind these, done at 48 and
    there at 58; block 0 for 10 more at 13, which its engine begins with at 28, behind those, done at 68 and there at
    78. Block 0 waits from 13 to 78 and computes until 138, block 1 waits from 8 to 58 and computes until 118; over at
    141. Memory moves for 60 cycles, as long as each computes.
    Nest 1, from 144 on. Block 0 computes two steps, 144 to 184. Block 1 asks for 40 bytes at 149 (to 229, there at
    239), waits for 90 and computes until 299; over at 302. Memory moves for 80, longer than anybody computes.
    Nest 2 is the conductor's own, and the only one that asks: 10 bytes from 307 to 317, there at 327; until 387."""
    events = [
        Enter(0), *on(0, load(0, 10), load(0, 10), wait(0), *call(4, 0)), *on(1, load(0, 10), wait(0), *call(4, 0)),
        Barrier(0, 2),
        Enter(1), *on(0, *call(2, 1)), *on(1, load(1, 40, 1), wait(1, 1), *call(4, 1)), Barrier(1, 2),
        Enter(2), load(2, 10, 2), wait(2, 2), *call(4, 2),
    ]  # fmt: skip
    listing = launched(events, clusters(2, 3, 0.5), lambda i, one: replace(one, blocks=0 if i == 2 else 2))
    return Case(
        listing, 387, 60 + 60 + 60, (3 + 5 + 5 + 3) + (3 + 5 + 3) + 5, 65 + 90 + 20,
        spans={1: (8, 38), 2: (28, 78), 5: (78, 138), 6: (8, 58), 9: (58, 118), 10: (3, 141), 13: (144, 184),
               14: (149, 239), 17: (239, 299), 18: (144, 302), 20: (307, 327), 23: (327, 387)},
        stalls={3: (LOAD, 65), 7: (LOAD, 50), 15: (LOAD, 90), 21: (LOAD, 20)},
        hops={"L2-L1": HopTiming(80, 60 + 80 + 10, (68 - 58) + (184 - 149))},
        roofline=Roofline(2, "L2", 0.5, 2, 1, 138 + 158, 60 + 60, 60 + 80, 60 + 80),
    )  # fmt: skip


def lanes_of_two_blocks() -> Case:
    """Two blocks of three lanes: one of nest 0, which makes what nest 1 takes from it, and two of nest 1. All begin at
    3. Block 0: lane 0 asks for 10 bytes at 8, there at 28, computes until 88 and tells so, known at 91. Lane 1 has
    awaited that since 3, computes two steps until 131 and says that the slot is free, known at 134. Lane 0 has awaited
    that since 88, computes until 194, known at 197; lane 1 has awaited that since 131 and is done at 237. Lane 2 asks
    the engine of its block for 20 bytes at 8, too, which come behind those 10, 18 to 38, there at 48; it computes
    until 108.
    Block 1: lane 3 computes until 63, known at 66, lane 4 from then until 126; 10 bytes of lane 5 come at once, 8 to
    18, there at 28, and it computes until 88. Over at 240; lane 1 was last."""
    lanes = (
        on(0, load(0, 10), wait(0), *call(4, 0), tells(0, 1), awaits(0, 1, ready=False), *call(4, 0, 1), tells(0, 2)),
        on(1, awaits(1, 1), *call(2, 1), tells(1, 1, ready=False), awaits(1, 2), *call(2, 1, 1)),
        on(2, load(1, 20, 1), wait(1, 1), *call(4, 1)),
        on(3, *call(4, 0), tells(0, 1)),
        on(4, awaits(1, 1), *call(4, 1)),
        on(5, load(2, 10, 1), wait(2, 1), *call(4, 1)),
    )
    of_0, of_1 = (*lanes[0], *lanes[3]), (*lanes[1], *lanes[2], *lanes[4], *lanes[5])

    def change(number: int, one: ListedNest) -> ListedNest:
        return replace(one, blocks=6, member=number, members=3, lanes=((MATRIX,), (VECTOR, OTHER_VECTOR))[number])

    listing = launched([Enter(0), *of_0, Enter(1), *of_1, Barrier(1, 6)], clusters(2, 3), change, tiles=2)
    return Case(
        listing, 240, 40 + 40, 3 + 3, 88 + 66,
        spans={1: (8, 28), 4: (28, 88), 5: (88, 88), 6: (88, 134), 8: (134, 194), 10: (3, 91), 12: (91, 131),
               14: (131, 197), 16: (197, 237), 17: (18, 48), 20: (48, 108), 22: (3, 63), 24: (3, 66), 26: (66, 126),
               27: (8, 28), 30: (28, 88), 31: (240, 240), 32: (3, 240)},
        stalls={2: (LOAD, 20), 6: (PIPE, 46), 10: (PIPE, 88), 14: (PIPE, 66), 18: (LOAD, 40), 24: (PIPE, 63),
                28: (LOAD, 20)},
        hops={"L2-L1": HopTiming(40, 30, 10 + 20)},
        noted=[Enter(0), *(one for lane in lanes for one in lane), Enter(1), Barrier(1, 6)],
    )  # fmt: skip


def nests_on_one_engine() -> Case:
    """One block, and nothing to tell takes time. Nest 0 computes on the matrix engine until 60, known at once, and then
    until 120. Nest 1 has nothing to await first, then awaits that from 0 on, and computes two steps until 100. Nest 2
    awaits these from 0 to 100, and the matrix engine, which is nest 0's, until 120; it computes one step until 150.
    Another launch has a pipe of the same number, in which nothing is yet: nest 3 computes until 210, nest 4, which
    has awaited that since 150, two steps until 250."""
    first = on(0, *call(4, 0), tells(0, 1), *call(4, 0, 1))
    second = on(1, awaits(1, 0), awaits(1, 1), *call(2, 1), tells(1, 1, pipe=1))
    third = on(2, awaits(2, 1, pipe=1), *call(1, 2))
    fourth, fifth = on(0, *call(4, 3), tells(3, 1)), on(1, awaits(4, 1), *call(2, 4))
    events = [
        Enter(0), *first, Enter(1), *second, Enter(2), *third, Barrier(2, 3),
        Enter(3), *fourth, Enter(4), *fifth, Barrier(4, 2),
    ]  # fmt: skip

    def change(number: int, one: ListedNest) -> ListedNest:
        members = 3 if number < 3 else 2
        lanes = (VECTOR,) if number in (1, 4) else (MATRIX,)
        return replace(one, blocks=members, member=number % 3, members=members, lanes=lanes)

    return Case(
        launched(events, clusters(1, 0), change, tiles=2), 250, 30 + 40, 0, 100 + 20 + 60,
        spans={2: (0, 60), 5: (60, 120), 6: (0, 0), 7: (0, 60), 9: (60, 100), 11: (0, 100), 12: (120, 120),
               13: (120, 150), 16: (0, 150), 19: (150, 210), 21: (150, 210), 23: (210, 250), 25: (150, 250)},
        stalls={7: (PIPE, 60), 11: (PIPE, 100), 21: (PIPE, 60)},
        noted=[Enter(0), *first, *second, *third, Enter(1), Enter(2), Barrier(2, 3),
               Enter(3), *fourth, *fifth, Enter(4), Barrier(4, 2)],
    )  # fmt: skip


CASES: tuple[Callable[[], Case], ...] = (blocks_share_memory, lanes_of_two_blocks, nests_on_one_engine)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_cycles_are_those_on_paper(case: Callable[[], Case]) -> None:
    case().check()
