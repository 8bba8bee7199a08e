"""When transfers between L2 and L3 start and are waited for: as early, and as late, as L2 has room.

Stays are the least that launches need. An entry is gone through once, with the time that launches are estimated to
take: what was changed leaves at once and is waited for when it should have arrived, and while the engine would
otherwise be idle, what is needed next is brought, as long as there is room for it until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

import numpy as np

from tilegrad.costs.kernel_cost import kernel_costs
from tilegrad.ir.schedule import Schedule
from tilegrad.place.stays import Stay, Tensor
from tilegrad.place.tensors import EntryHomes

# Launches take longer than estimated: the engine is given so much more than they take.
DURATION_MARGIN, MARGIN_CYCLES = 1.3, 1000.0
# How many of the next transfers are looked at, and how many launches ahead.
MOST_LOOKED_AT, MOST_LAUNCHES_AHEAD = 32, 4096


@dataclass(eq=False)
class _Transfer:
    """A load or a store of one stay, while the entry is gone through. `launch` is the one that needs or changed it."""

    tensor: Tensor
    stays: list[Stay]  # of the tensor, as they are now
    number: int
    launch: int
    least_last: int  # the last launch that needs the tensor in L2
    before: int  # the last launch that needs it there before this stay
    after: Sequence[_Transfer] = ()  # stores behind which a load comes
    pending: list[_Transfer] = field(default_factory=list)  # of these, those that may not be done yet
    done: float = inf  # until it has started

    @property
    def has_started(self) -> bool:
        return self.done < inf

    @property
    def stay(self) -> Stay:
        return self.stays[self.number]

    @stay.setter
    def stay(self, changed: Stay) -> None:
        self.stays[self.number] = changed

    @property
    def span(self) -> tuple[str, int, int]:
        """Bytes of L3."""
        tensor = self.tensor
        if tensor.rows is None:
            return tensor.whole or tensor.name, 0, tensor.size_bytes
        return tensor.whole or tensor.name, tensor.rows.offset, tensor.rows.stop


def with_transfers(entry: EntryHomes, schedule: Schedule, room_bytes: int) -> tuple[EntryHomes, float]:
    """Stays that begin and end as their transfers like, and the cycles that the entry should take. `room_bytes` of L2
    may be taken; where transfers do not overlap, nothing happens before it must. Without L3 nothing happens at all."""
    if schedule.target.far_engine is None:
        return entry, sum(entry.durations)
    overlaps = schedule.overlaps_l3
    walk = _Walk(entry, schedule, room_bytes if overlaps else 0)
    walk.run()
    found = {name: tuple(own) for name, own in walk.stays.items()}
    return replace(entry, stays=found) if overlaps else entry, walk.now


def taken_cycles(entry: EntryHomes, schedule: Schedule) -> float:
    """What the entry should take with the stays that it has."""
    if schedule.target.far_engine is None:
        return sum(entry.durations)
    return _Walk(entry, schedule, 0).follow()


class _Walk:
    def __init__(self, entry: EntryHomes, schedule: Schedule, room_bytes: int) -> None:
        self.entry = entry
        assert schedule.target.far_engine is not None
        self.engine = schedule.target.far_engine
        self.depth = min(self.engine.queue_depth, schedule.queued_moves)
        self.crowded = kernel_costs(schedule.target).conduct.far_crowded
        self.end = entry.launch_count
        self.stays = {name: list(own) for name, own in entry.stays.items()}
        self.free = room_bytes - entry.alive()
        self.loads, self.stores = self._transfers()
        self.waiting: list[_Transfer] = []  # loads that have not started, the next few
        self.passed = 0  # loads before the first of these
        self.ends: list[float] = []  # when commands end, in their order
        self.leaving: list[_Transfer] = []  # stores that have not started
        self.due: dict[int, list[_Transfer]] = {}  # stores that are waited for before a launch, which needs their room
        self.now = 0.0

    def _transfers(self) -> tuple[list[_Transfer], list[_Transfer]]:
        loads: list[_Transfer] = []
        stores: list[_Transfer] = []
        for name, own in self.stays.items():
            for k, stay in enumerate(own):
                before = own[k - 1].last if k else -1
                for found, is_moved, launch in ((loads, stay.load, stay.used), (stores, stay.store, stay.changed)):
                    if is_moved:
                        found.append(_Transfer(self.entry.tensors[name], own, k, launch, stay.last, before))
        loads.sort(key=lambda one: (one.launch, one.tensor.name))
        stores.sort(key=lambda one: (one.launch, one.tensor.name))
        by_tensor: dict[str, list[_Transfer]] = {}
        for store in stores:
            by_tensor.setdefault(store.span[0], []).append(store)
        places = {whole: np.array([(o.launch, *o.span[1:]) for o in own]).T for whole, own in by_tensor.items()}
        for load in loads:
            whole, first, stop = load.span
            if whole in by_tensor:
                launches, firsts, stops = places[whole]
                met = (launches < load.launch) & (firsts < stop) & (first < stops)
                load.after = [by_tensor[whole][i] for i in np.flatnonzero(met).tolist()]
                load.pending = list(reversed(load.after))
        return loads, stores

    def run(self) -> None:
        self._wait_for_next()
        needed, changed = defaultdict[int, list[_Transfer]](list), defaultdict[int, list[_Transfer]](list)
        for load in self.loads:
            needed[load.launch].append(load)
        for store in self.stores:
            changed[store.launch].append(store)
        for launch in range(self.end + 1):
            self.now = max([self.now, *(store.done for store in self.due.pop(launch, ()))])
            self.leaving += changed[launch - 1]
            needs = needed[launch]
            urgent = {store for load in needs if not load.has_started for store in load.after}
            waiting, self.leaving = self.leaving, []
            for store in waiting:
                if store in urgent or launch == self.end or self._must_leave(store, launch):
                    self._leave(store, launch)
            if launch == self.end:
                break
            for load in needs:
                if not load.has_started:
                    self._bring(load, launch)
            for store in waiting:
                if not store.has_started and not self._postponed(store, launch):
                    self._leave(store, launch)
            self.now = max([self.now, *(load.done for load in needs)])
            after = self.now + self.entry.durations[launch]
            self._look_ahead(launch, after)
            self.now = max(self.now, after)
        self.now = max([self.now, *self.ends[-1:]])

    def follow(self) -> float:
        """The cycles, if every transfer starts and is waited for where its stay says."""
        started: dict[int, list[tuple[int, str, bool]]] = {}
        for name, own in self.entry.stays.items():
            for start, wait, inward in (way for stay in own for way in stay.transfers(self.end)):
                started.setdefault(start, []).append((wait, name, inward))
        awaited: dict[int, float] = {}
        for launch in range(self.end + 1):
            for wait, name, inward in sorted(started.get(launch, ())):
                done = self._command(self.entry.tensors[name], inward)
                awaited[wait] = max(awaited.get(wait, 0.0), done)
            self.now = max(self.now, awaited.get(launch, 0.0))
            self.now += self.entry.durations[launch] if launch < self.end else 0.0
        return max([self.now, *self.ends[-1:]])

    def _command(self, tensor: Tensor, inward: bool) -> float:
        """Gives the engine a transfer; its queue may be full, and then the conductor waits."""
        timing = self.engine.inward if inward else self.engine.outward
        commands = tensor.commands
        for _ in range(min(commands, 2 * self.depth)):
            share = commands / min(commands, 2 * self.depth)
            if len(self.ends) >= self.depth:
                self.now = max(self.now, self.ends[-self.depth])
            start = max(self.now, self.ends[-1] if self.ends else 0.0)
            cycles = share * timing.setup_cycles + tensor.size_bytes / commands * share * timing.cycles_per_byte
            self.ends.append(start + self.crowded[not inward] * cycles)
        return self.ends[-1]

    @property
    def is_full(self) -> bool:
        """Whether the conductor would wait for the queue."""
        return len(self.ends) >= self.depth and self.ends[-self.depth] > self.now

    def _must_leave(self, store: _Transfer, launch: int) -> bool:
        """Whether this launch needs its room."""
        return bool(launch > store.stay.last and self.free[launch + 1] < store.tensor.size_bytes)

    def _postponed(self, store: _Transfer, launch: int) -> bool:
        """Where the queue is full, what leaves waits for the next launch, if it may stay as long."""
        if not self.is_full or self._must_leave(store, launch):
            return False
        if launch > store.stay.last:
            self.free[launch + 1] -= store.tensor.size_bytes
            store.stay = replace(store.stay, last=launch)
        store.stay = replace(store.stay, later=store.stay.later + 1)
        self.leaving.append(store)
        return True

    def _leave(self, store: _Transfer, launch: int) -> None:
        """Away with it, and it stays until it has arrived, if there is room."""
        store.done = self._command(store.tensor, inward=False)
        last, time = store.stay.last, self.now
        for later in range(launch, min(self.end, launch + MOST_LAUNCHES_AHEAD)):
            if later > last:
                if time >= store.done or not self._has_room(store, later, launch):
                    break
                last = later
                self.free[later + 1] -= store.tensor.size_bytes
            time += self.entry.durations[later]
        if last < launch:
            self.now = max(self.now, store.done)
        else:
            self.due.setdefault(last + 1, []).append(store)
        store.stay = replace(store.stay, last=last)

    def _has_room(self, store: _Transfer, later: int, launch: int) -> bool:
        """Whether what leaves may stay through launch `later`. It is done after those that left before it, so these are
        waited for where there is too little room, the first one first."""
        missing = store.tensor.size_bytes - self.free[later + 1]
        if missing <= 0:
            return True
        older = [
            (one, due)
            for due, stores in self.due.items()
            for one in stores
            if due > later and one.done < store.done and one.least_last < later
        ]
        older.sort(key=lambda one: one[0].done)
        while older and missing > 0:
            one, due = older.pop(0)
            missing -= one.tensor.size_bytes
            self.due[due].remove(one)
            self.free[later + 1 : due + 1] += one.tensor.size_bytes
            one.stay = replace(one.stay, last=later - 1)
            if later == launch:
                self.now = max(self.now, one.done)
            else:
                self.due.setdefault(later, []).append(one)
        return bool(missing <= 0)

    def _settle(self, store: _Transfer, launch: int) -> None:
        """What was stored is needed again: it is waited for before this launch, and takes no room longer."""
        stay = store.stay
        # It is waited for here, and by nobody later who is short of room.
        self.due[stay.last + 1] = [one for one in self.due.get(stay.last + 1, ()) if one is not store]
        last = max(min(stay.last, launch - 1), store.least_last)
        self.free[last + 2 : stay.last + 2] += store.tensor.size_bytes
        store.stay = replace(stay, last=last)
        self.now = max(self.now, store.done)

    def _bring(self, load: _Transfer, launch: int) -> None:
        for store in load.after:
            if store.stay.last >= launch:
                self._settle(store, launch)
        load.done = self._command(load.tensor, inward=True)
        self.free[launch + 1 : load.stay.first + 1] -= load.tensor.size_bytes
        load.stay = replace(load.stay, first=min(load.stay.first, launch))

    def _look_ahead(self, launch: int, after: float) -> None:
        """While this launch computes, what later ones need, the next one first."""
        if self.waiting and self.waiting[0].has_started:
            self._wait_for_next()
        horizon = self.now + DURATION_MARGIN * (after - self.now) + MARGIN_CYCLES
        looked = [load for load in self.waiting if not load.has_started]
        while looked and not self.is_full and not (self.ends and self.ends[-1] >= horizon):
            load = self._next(looked, launch)
            if load is None:
                return
            self._bring(load, launch)
            looked.remove(load)

    def _wait_for_next(self) -> None:
        while self.passed < len(self.loads) and self.loads[self.passed].has_started:
            self.passed += 1
        left = (self.loads[i] for i in range(self.passed, len(self.loads)) if not self.loads[i].has_started)
        self.waiting = list(islice(left, MOST_LOOKED_AT))

    def _next(self, looked: Sequence[_Transfer], launch: int) -> _Transfer | None:
        """The first that may come and leaves room for those before it, which may not yet: of what is small, and needed
        long after, there is always something, and it would take the room that what is large needs soon."""
        kept = 0
        for load in looked:
            if self._may_come(load, launch, kept):
                return load
            kept = max(kept, load.tensor.size_bytes)
        return None

    def _may_come(self, load: _Transfer, launch: int, kept: int) -> bool:
        if launch <= load.before:
            return False
        while load.pending:
            store = load.pending[-1]
            if store.done > self.now or store.least_last >= launch:
                return False
            load.pending.pop()
        room = self.free[launch + 1 : load.launch + 1]
        return bool(room.size == 0 or room.min() >= load.tensor.size_bytes + kept)
