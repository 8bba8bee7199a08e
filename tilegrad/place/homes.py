"""Which tensors are in L2 when: all of them all the time if they fit, and else what costs least is away for a while.

A tensor may be away from L2 in any gap between its uses. Where more is alive than fits, a gap is given up: the one that
costs least cycles of transfers for what it gains, wherever too much is alive. What is not worth moving costs more, and
goes last; nothing that helps is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from tilegrad.errors import DoesNotFit
from tilegrad.ir.schedule import Schedule
from tilegrad.place.stays import Gap, Tensor, forced, gaps, stays_of
from tilegrad.place.tensors import EntryHomes

# Where everything lives in L3, what is less than so much and than a thousandth of all state is not worth a transfer: it
# would be in the way of others in the engine's short queue.
LEAST_BYTES, MOST_LEAST_BYTES = 64, 1024

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Homes:
    entries: Mapping[str, EntryHomes]
    state_in_l3: frozenset[str]


def choose_homes(
    schedule: Schedule,
    mode: str,
    capacity_bytes: int,
    state_bytes: Mapping[str, int],
    entries: Mapping[str, EntryHomes],
) -> Homes:
    """`mode`: auto, L2 or L3. `capacity_bytes` is what L2 has for tensors; `entries` have all of them there."""
    choice = _Choice(schedule, mode, capacity_bytes, state_bytes, entries)
    choice.make_room()
    return Homes({name: own.with_stays() for name, own in choice.entries.items()}, frozenset(choice.in_l3))


class _Entry:
    """Which gaps of an entry's tensors are given up, and how many bytes are in L2 at each launch.

    Position 0 of `alive` is before the first launch. Gaps are rows of arrays, so that one is found quickly.
    """

    def __init__(self, name: str, own: EntryHomes) -> None:
        self.name = name
        self.own = own
        self.tensors = own.tensors
        end = own.launch_count
        self.away = {name: forced(tensor, end) for name, tensor in self.tensors.items()}
        self.alive: _Counts = self.with_stays().alive()
        self.rows: list[tuple[str, Gap]] = []
        self.rows_of: dict[str, list[int]] = {}
        for tensor in self.tensors.values():
            for gap in gaps(tensor, end):
                if gap.before not in self.away[tensor.name]:
                    self.rows_of.setdefault(tensor.name, []).append(len(self.rows))
                    self.rows.append((tensor.name, gap))
        self.first = np.array([gap.first + 1 for _, gap in self.rows], dtype=np.int64)
        self.stop = np.array([gap.last + 2 for _, gap in self.rows], dtype=np.int64)
        self.size = np.array([self.tensors[one].size_bytes for one, _ in self.rows], dtype=np.int64)
        self.cost = np.full(len(self.rows), inf)

    def is_away(self, tensor: Tensor) -> bool:
        return bool(self.away[tensor.name] or tensor.streamed or tensor.whole is not None or tensor.is_outside)

    def give_up(self, row: int) -> None:
        name, gap = self.rows[row]
        if gap.before in self.away[name]:
            return
        self.away[name].add(gap.before)
        self.alive[self.first[row] : self.stop[row]] -= self.size[row]

    def with_stays(self) -> EntryHomes:
        away = [tensor for tensor in self.tensors.values() if self.is_away(tensor)]
        return replace(self.own, stays={tensor.name: stays_of(tensor, self.away[tensor.name]) for tensor in away})


class _Choice:
    """What is decided so far. `elsewhere` is of each entry the state that it does not use but that lies in L2."""

    def __init__(
        self,
        schedule: Schedule,
        mode: str,
        capacity_bytes: int,
        state_bytes: Mapping[str, int],
        entries: Mapping[str, EntryHomes],
    ) -> None:
        self.mode = mode
        self.capacity_bytes = capacity_bytes
        self.state_bytes = state_bytes
        self.schedule = schedule
        self.engine = schedule.target.far_engine
        self.entries = {name: _Entry(name, own) for name, own in entries.items()}
        self.in_l3: set[str] = set()
        self.elsewhere = {name: own.unused_bytes(state_bytes) for name, own in entries.items()}
        self.unused = {
            name: [tensor for tensor, size in state_bytes.items() if size and tensor not in own.tensors]
            for name, own in entries.items()
        }
        self.home_costs = {name: self._home_cost(name) for name in state_bytes}
        least_bytes = max(LEAST_BYTES, min(MOST_LEAST_BYTES, sum(state_bytes.values()) // 1000))
        for tensor, size in state_bytes.items():
            is_streamed = any(tensor in own.tensors and own.tensors[tensor].streamed for own in entries.values())
            if is_streamed or (mode == "L3" and size >= least_bytes):
                self.move_home(tensor)
        for entry in self.entries.values():
            for row in range(len(entry.rows)):
                entry.cost[row] = self._cost(entry, row)

    def move_home(self, name: str) -> None:
        """A state tensor lives in L3 from now on: at both ends of every entry it is away."""
        if name in self.in_l3:
            return
        self.in_l3.add(name)
        for entry in self.entries.values():
            tensor = entry.tensors.get(name)
            if tensor is None:
                self.elsewhere[entry.name] -= self.state_bytes[name]
                continue
            for row in entry.rows_of.get(name, ()):
                if entry.rows[row][1].before in (0, len(tensor.uses)):
                    entry.give_up(row)
            entry.away[name] |= {0, len(tensor.uses)}
            for row in entry.rows_of.get(name, ()):
                entry.cost[row] = self._cost(entry, row)

    def _moves(self, tensor: Tensor, reads: bool, writes: bool) -> float:
        """Cycles of the engine, and of the conductor that starts it and waits for it."""
        if self.engine is None:
            return inf
        enqueue = 2.0 * self.engine.enqueue_cycles
        inward = self.engine.inward.cycles(tensor.size_bytes) + enqueue if reads else 0.0
        return inward + (self.engine.outward.cycles(tensor.size_bytes) + enqueue if writes else 0.0)

    def _home_cost(self, name: str) -> float:
        """Cycles of one call of every entry that a home in L3 costs."""
        total = 0.0
        for entry in self.entries.values():
            tensor = entry.tensors.get(name)
            if tensor is not None and tensor.uses:
                total += self._moves(tensor, tensor.uses[0].reads, any(use.writes for use in tensor.uses))
        return total

    def _cost(self, entry: _Entry, row: int) -> float:
        """Cycles that it costs to be away in a gap."""
        name, gap = entry.rows[row]
        tensor = entry.tensors[name]
        if gap.before in entry.away[name]:
            return inf
        total = self.home_costs[name] if tensor.is_state and name not in self.in_l3 else 0.0
        if gap.before in (0, len(tensor.uses)):
            return total
        own = [k for k in entry.away[name] if k <= gap.before]
        since = tensor.uses[max(own, default=0) : gap.before]
        is_new = any(use.writes for use in since) or (tensor.is_input and not own)
        return total + self._moves(tensor, tensor.uses[gap.before].reads, is_new)

    def make_room(self) -> None:
        while True:
            over = {name: int(own.alive.max()) + self.elsewhere[name] for name, own in self.entries.items()}
            name = max(over, key=lambda one: over[one])
            if over[name] <= self.capacity_bytes:
                return
            entry = self.entries[name]
            room = self.capacity_bytes - self.elsewhere[name]
            found = self._best(entry, room) if self.mode != "L2" else None
            other = self._best_elsewhere(entry, room) if self.mode != "L2" else None
            if other is not None and (found is None or other[0] <= found[0]):
                self.move_home(other[1])
                continue
            if found is None:
                raise self._does_not_fit(entry)
            row = found[1]
            tensor, _ = entry.rows[row]
            if entry.tensors[tensor].is_state:
                self.move_home(tensor)
            entry.give_up(row)
            for other_row in entry.rows_of[tensor]:
                entry.cost[other_row] = self._cost(entry, other_row)

    def _best_elsewhere(self, entry: _Entry, room: int) -> tuple[float, str] | None:
        """State that the entry does not use, which gains in every launch; the cheapest first."""
        unused = [name for name in self.unused[entry.name] if name not in self.in_l3]
        costs = [(self.home_costs[name] / self.state_bytes[name], name) for name in unused]
        if not costs:
            return None
        cost, name = min(costs)
        return cost / max(int((entry.alive > room).sum()), 1), name

    def _best(self, entry: _Entry, room: int) -> tuple[float, int] | None:
        """Of the gaps where most is alive: least cost for what it gains, in bytes and launches that are over."""
        worst = int(entry.alive.argmax())
        here = np.flatnonzero((entry.first <= worst) & (worst < entry.stop) & np.isfinite(entry.cost))
        if not len(here):
            return None
        is_over: _Counts = np.concatenate([[0], np.cumsum(entry.alive > room)])
        launches = is_over[entry.stop[here]] - is_over[entry.first[here]]
        gained = entry.size[here] * np.maximum(launches, 1)
        scores = entry.cost[here] / np.maximum(gained, 1)
        best = int(np.argmin(scores))
        return float(scores[best]), int(here[best])

    def _does_not_fit(self, entry: _Entry) -> DoesNotFit:
        worst = int(entry.alive.argmax())
        launches = self.schedule.entries[entry.name].launches
        launch = launches[max(0, min(worst - 1, len(launches) - 1))]
        stays = entry.with_stays().stays
        state = self.elsewhere[entry.name] + sum(
            tensor.size_bytes
            for name, tensor in entry.tensors.items()
            if tensor.is_state and any(one.first < worst <= one.last + 1 for one in stays.get(name, (tensor,)))
        )
        peak_bytes = int(entry.alive[worst]) + self.elsewhere[entry.name]
        hint = f"give L2 at least {peak_bytes} bytes (--l2)"
        if self.mode == "L2" and self.schedule.target.has_l3:
            hint = "use --home auto, which moves tensors to L3"
        return DoesNotFit(
            f"the {entry.name} entry does not fit into L2",
            stage="memory",
            node=launch.node.name,
            expected=f"at most {self.capacity_bytes} bytes",
            got=f"{peak_bytes} bytes at this node: {state} of state and {peak_bytes - state} of activations",
            hint=hint,
        )
