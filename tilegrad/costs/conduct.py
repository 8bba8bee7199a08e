"""What the conductor spends: cycles from one thing that it does to the next.

The conductor walks tables, starts transfers, waits, and hands tiles to the cores. How long it takes from one of these
acts to the next depends on both: what comes first behind a kernel call finds its code gone from the instruction cache,
a second box of a request is quick. So costs are those of pairs of acts, as they were measured (measured.json), each
with what more it takes where kernels have displaced its code, beside cores that compute, and behind a transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import exp
from typing import NamedTuple


class Act(Enum):
    """What the conductor does at an event of a listing."""

    START = "start"
    ENTER = "enter"
    ENTER_JOINED = "enter joined"  # a nest that came together with the one before
    ENTER_WHOLE = "enter whole"  # a nest that computes where its operands live
    FETCH = "fetch"
    FIRST_LOAD = "first load"  # of a nest
    JOINED_LOAD = "joined load"  # the first of a nest that comes together with the one before
    SIMPLE_LOAD = "simple load"  # the first one of a step that moves along simply
    OTHER_LOAD = "other load"  # the first one of any other step
    NEXT_LOAD = "next load"
    STORE = "store"
    PART = "part"  # a further command of the same box
    WAIT_TABLE = "wait for table"
    WAIT_LOAD = "wait for load"
    WAIT_STORE = "wait for store"
    WAIT_MOVE = "wait for move"
    MOVE = "move"
    BEGIN_FIRST = "begin first"  # a nest's first kernel call
    BEGIN = "begin"
    BEGIN_WHOLE = "begin whole"
    END = "end"
    STOP = "stop"

    __hash__ = object.__hash__  # tilings are judged by many a look at pairs of acts: by identity it is quick


Pair = tuple[Act, Act]

# A line is displaced by refills of others at random: by so many cycles of them, 63 of 100 are gone. Once it ran, no
# more than a share is gone of what the conductor runs between two acts: the rest is other pairs', too. Of
# 800 to 4000 and of 0.5 to 1, what explains the measured trainings best.
DISPLACING_CYCLES, MOST_GONE = 1500.0, 0.6


class CodeCache:
    """Whose code is still in the instruction cache: that of kernels, and what the conductor runs between two acts."""

    def __init__(self) -> None:
        self.refill_cycles = 0.0
        self.ran: dict[object, float] = {}

    def run(self, code: Pair | str, cold_cycles: float = 0.0) -> float:
        """The share of the code that is gone since it ran; now it is back, and displaced others. Before it ran for the
        first time, all is gone."""
        ran = self.ran.get(code)
        gone = 1.0 if ran is None else 1.0 - exp((ran - self.refill_cycles) / DISPLACING_CYCLES)
        if ran is not None and isinstance(code, tuple):
            gone *= MOST_GONE
        self.refill_cycles += gone * cold_cycles
        self.ran[code] = self.refill_cycles
        return gone


# Code and tables come from L2, which is slow behind a transfer from there: as far as this many cycles of it are left.
BEHIND_CYCLES = 300.0


def behind(transfer_cycles: float) -> float:
    """How much is in the way of a transfer with so many cycles left."""
    return min(transfer_cycles, BEHIND_CYCLES) / BEHIND_CYCLES if transfer_cycles > 0.0 else 0.0


class PairCost(NamedTuple):
    """Cycles from one act to the next where nothing is in the way, and what more for all of each that may be: code that
    others displaced, cores that compute, a transfer from L2."""

    alone: float
    gone: float = 0.0
    beside: float = 0.0
    behind: float = 0.0

    def cycles(self, gone: float, is_beside: bool, transfer_cycles: float) -> float:
        """Where this share of the code is gone, and so many cycles of a transfer are left."""
        return self.alone + gone * self.gone + is_beside * self.beside + behind(transfer_cycles) * self.behind


@dataclass(frozen=True)
class Conduct:
    """Cycles between acts, by pair. A pair that was never seen takes what its second act takes on average.

    A wait's own cycles are those to what comes behind it, from when it was come to or from when the transfer was done.
    To start a move takes `move_cycles` beside its commands. `calls` are what callers of entries spend around them.

    Of transfers to and from scratchpad, inward and outward, `crowded` is the share of their time that they lose at its
    banks, for each access of the cores in a cycle, and `opposed` what they lose to one that goes the other way.
    `far_crowded` is how much longer those between L2 and L3 take, which meet others at banks of L2.
    """

    pairs: Mapping[Pair, PairCost] = field(default_factory=dict)
    acts: Mapping[Act, float] = field(default_factory=dict)
    move_cycles: float = 0.0
    calls: Mapping[str, float] = field(default_factory=dict)
    crowded: tuple[float, float] = (0.0, 0.0)
    opposed: tuple[float, float] = (0.0, 0.0)
    far_crowded: tuple[float, float] = (1.0, 1.0)

    def cycles(self, pair: Pair, gone: float, is_beside: bool = False) -> float:
        """Behind no transfer."""
        found = self.pairs.get(pair)
        return self.acts.get(pair[1], 0.0) if found is None else found.cycles(gone, is_beside, 0.0)
