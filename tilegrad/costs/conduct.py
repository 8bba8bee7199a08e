"""What the conductor spends: cycles from one thing that it does to the next.

The conductor walks tables, starts transfers, waits, and hands tiles to the cores. How long it takes from one of these
acts to the next depends on both: what comes first behind a kernel call finds its code gone from the instruction cache,
a second box of a request is quick. So costs are those of pairs of acts, as they were measured (measured.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Act(Enum):
    """What the conductor does at an event of a listing."""

    START = "start"
    ENTER = "enter"
    ENTER_WHOLE = "enter whole"  # a nest that computes where its operands live
    FETCH = "fetch"
    FIRST_LOAD = "first load"  # of a nest
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


@dataclass(frozen=True)
class Conduct:
    """Cycles between acts, by pair. A pair that was never seen takes what its second act takes on average.

    A wait for what is there already takes `waits` cycles; one that has to wait ends `wakes` cycles behind the transfer,
    by act. `call` is what a caller of an entry spends around it. `crowded` is how much longer transfers to and from
    scratchpad take while cores compute there, inward and outward; `far_crowded` the same of those between L2 and L3,
    which meet others at banks of L2.
    """

    pairs: Mapping[Pair, float] = field(default_factory=dict)
    acts: Mapping[Act, float] = field(default_factory=dict)
    waits: Mapping[Act, float] = field(default_factory=dict)
    wakes: Mapping[Act, float] = field(default_factory=dict)
    call: float = 0.0
    crowded: tuple[float, float] = (1.0, 1.0)
    far_crowded: tuple[float, float] = (1.0, 1.0)

    def cycles(self, before: Act, act: Act) -> float:
        found = self.pairs.get((before, act))
        return self.acts.get(act, 0.0) if found is None else found
