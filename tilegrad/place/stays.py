"""When a tensor whose home is L3 is in L2.

A tensor is brought whole before an operator needs it and taken back after it was changed. One engine does it all, one
transfer after the other, so how long a tensor stays beyond its uses follows from the estimated time of the launches and
from what else is on its way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from tilegrad.targets.base import L2, L3, DmaTiming, Target

# Loads are planned for so much more than their transfer takes: estimates err, and stores come in between.
LOAD_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Use:
    launch: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Tensor:
    """Bytes that move as one: a buffer of activations, or a state tensor. `uses` in order of launches."""

    name: str
    size_bytes: int
    uses: tuple[Use, ...]
    is_state: bool
    is_input: bool = False
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's time in L2, from launch `first` to launch `last` inclusive.

    If `load`, its transfer from L3 starts before launch `first` and is waited for before launch `used`. If `store`, its
    transfer to L3 starts after launch `changed` and is waited for after launch `last`.
    """

    first: int
    used: int
    changed: int
    last: int
    load: bool
    store: bool


@dataclass(frozen=True)
class Timeline:
    """`starts` has the cycle at which each launch of an entry begins, as estimated, and at last when the entry ends."""

    starts: tuple[float, ...]
    inward: DmaTiming
    outward: DmaTiming

    @staticmethod
    def of(durations: Sequence[float], target: Target) -> Timeline:
        engine = target.engine(L3, L2)
        return Timeline((0.0, *accumulate(durations)), engine.inward, engine.outward)

    @property
    def end(self) -> int:
        return len(self.starts) - 1

    def stays(self, tensor: Tensor) -> tuple[Stay, ...]:
        """The least: from a first use to the last one before it is worth leaving L2."""
        away = self.inward.cycles(tensor.size_bytes) + self.outward.cycles(tensor.size_bytes)
        groups: list[list[Use]] = []
        for use in tensor.uses:
            if groups and self.starts[use.launch] - self.starts[groups[-1][-1].launch + 1] < away:
                groups[-1].append(use)
            else:
                groups.append([use])
        return tuple(self._stay(tensor, groups, k) for k in range(len(groups)))

    def _stay(self, tensor: Tensor, groups: Sequence[Sequence[Use]], k: int) -> Stay:
        group = groups[k]
        writes = [use.launch for use in group if use.writes]
        # What the first use only writes need not be brought; a use that does both reads the old content.
        load = (k > 0 or tensor.is_state) and group[0].reads
        store = bool(writes) and (k + 1 < len(groups) or tensor.is_state)
        first, last = group[0].launch, group[-1].launch
        return Stay(first, first, writes[-1] if writes else last, last, load, store)

    def timed(self, least: Mapping[str, tuple[Stay, ...]], sizes: Mapping[str, int]) -> dict[str, list[Stay]]:
        """Stays that begin and end as their transfers need, each direction in order."""
        result = {name: list(stays) for name, stays in least.items()}
        every = [(name, k, stay) for name, stays in least.items() for k, stay in enumerate(stays)]
        free = 0.0
        for name, k, stay in sorted(every, key=lambda one: (one[2].changed, one[0])):
            if stay.store:
                free = max(free, self.starts[stay.changed + 1]) + self.outward.cycles(sizes[name])
                last = min(bisect_left(self.starts, free) - 1, self.end - 1)
                result[name][k] = replace(result[name][k], last=max(stay.last, last))
        free = inf
        for name, k, stay in sorted(every, key=lambda one: (-one[2].used, one[0])):
            if stay.load:
                free = min(free, self.starts[stay.used]) - LOAD_MARGIN * self.inward.cycles(sizes[name])
                first = max(bisect_right(self.starts, free) - 1, 0)
                result[name][k] = replace(result[name][k], first=min(stay.first, first))
        for stays in result.values():
            for k in range(1, len(stays)):  # what goes to L3 must be there before it is fetched again
                last = min(stays[k - 1].last, stays[k].used - 1)
                stays[k - 1] = replace(stays[k - 1], last=last)
                stays[k] = replace(stays[k], first=max(stays[k].first, last + 1))
        return result
