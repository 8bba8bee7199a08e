"""When transfers between L2 and L3 start and are waited for: as early, and as late, as L2 has room.

Stays are the least that launches need. An entry is gone through once, with the time that launches are estimated to
take: what was changed leaves at once and is waited for when it should have arrived, and while the engine would
otherwise be idle, what is needed next is brought, as long as there is room for it until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.place.homes import EntryHomes
from tilegrad.place.stays import Stay, Tensor
from tilegrad.targets.base import Target

# Launches take longer than estimated: the engine is given so much more than they take.
DURATION_MARGIN, MARGIN_CYCLES = 1.3, 1000.0
# How many of the next transfers are looked at, and how many launches ahead.
MOST_LOOKED_AT, MOST_LAUNCHES_AHEAD = 32, 4096


@dataclass(eq=False)
class _Transfer:
    """A load or a store of one stay, while the entry is gone through. `launch` is the one that needs or changed it."""

    tensor: Tensor
    number: int
    launch: int
    is_load: bool
    after: list[_Transfer]
    pending: list[_Transfer]  # of these, those that may not be done yet
    before: int = 0
    start: int | None = None
    done: float = 0.0

    @property
    def span(self) -> tuple[str, int, int]:
        """Bytes of L3."""
        tensor = self.tensor
        if tensor.rows is None:
            return tensor.whole or tensor.name, 0, tensor.size_bytes
        return tensor.whole or tensor.name, tensor.rows.offset, tensor.rows.stop


def with_transfers(entry: EntryHomes, target: Target, room_bytes: int, overlaps: bool) -> tuple[EntryHomes, float]:
    """Stays that begin and end as their transfers like, and the cycles that the entry should take. `room_bytes` of L2
    may be taken; without `overlaps`, nothing happens before it must. Without L3 nothing happens at all."""
    if target.far_engine is None:
        return entry, sum(entry.durations)
    walk = _Walk(entry, target, room_bytes if overlaps else 0)
    stays = walk.run()
    if not overlaps:
        stays = _settled(entry)
    return replace(entry, stays={name: tuple(own) for name, own in stays.items()}), walk.now


def taken_cycles(entry: EntryHomes, target: Target) -> float:
    """What the entry should take with the stays that it has."""
    if target.far_engine is None:
        return sum(entry.durations)
    return _Walk(entry, target, 0).follow()


def _settled(entry: EntryHomes) -> dict[str, list[Stay]]:
    return {name: list(own) for name, own in entry.stays.items()}


class _Walk:
    def __init__(self, entry: EntryHomes, target: Target, room_bytes: int) -> None:
        self.entry = entry
        assert target.far_engine is not None
        self.engine = target.far_engine
        self.crowded = KernelCosts(target).conduct.far_crowded
        self.end = entry.launch_count
        self.stays = _settled(entry)
        self.free = room_bytes - _taken(entry)
        self.loads, self.stores = self._transfers()
        self.waiting: list[_Transfer] = []  # loads that have not started, the next few
        self.passed = 0  # loads before the first of these
        self.ends: list[float] = []  # when commands end, in their order
        self.leaving: list[_Transfer] = []  # stores that have not started
        self.due: dict[int, list[_Transfer]] = {}  # stores that are waited for before a launch, which needs their room
        self.now = 0.0

    def _transfers(self) -> tuple[list[_Transfer], dict[int, list[_Transfer]]]:
        loads: list[_Transfer] = []
        stores: list[_Transfer] = []
        for name, own in self.stays.items():
            tensor = self.entry.tensors[name]
            for k, stay in enumerate(own):
                before = own[k - 1].last if k else -1
                if stay.load:
                    loads.append(_Transfer(tensor, k, stay.used, True, [], [], before))
                if stay.store:
                    stores.append(_Transfer(tensor, k, stay.changed, False, [], []))
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
                load.pending = load.after[::-1]
        left: dict[int, list[_Transfer]] = {}
        for store in stores:
            left.setdefault(store.launch + 1, []).append(store)
        return loads, left

    def run(self) -> dict[str, list[Stay]]:
        self._wait_for_next()
        needed: dict[int, list[_Transfer]] = {}
        for load in self.loads:
            needed.setdefault(load.launch, []).append(load)
        for launch in range(self.end + 1):
            self.now = max([self.now, *(store.done for store in self.due.pop(launch, ()))])
            self.leaving += self.stores.get(launch, ())
            needs = needed.get(launch, ())
            urgent = {store for load in needs if load.start is None for store in load.after}
            waiting, self.leaving = self.leaving, []
            for store in waiting:
                if store in urgent or launch == self.end or self._must_leave(store, launch):
                    self._leave(store, launch)
            if launch == self.end:
                break
            for load in needs:
                if load.start is None:
                    self._bring(load, launch)
            for store in waiting:
                if store.start is None and not self._postponed(store, launch):
                    self._leave(store, launch)
            self.now = max([self.now, *(load.done for load in needed.get(launch, ()))])
            after = self.now + self.entry.durations[launch]
            self._look_ahead(launch, after)
            self.now = max(self.now, after)
        self.now = max([self.now, *self.ends[-1:]])
        return self.stays

    def follow(self) -> float:
        """The cycles, if every transfer starts and is waited for where its stay says."""
        started: dict[int, list[tuple[int, str, bool]]] = {}
        for name, own in self.stays.items():
            for stay in own:
                if stay.load:
                    started.setdefault(stay.first, []).append((stay.used, name, True))
                if stay.store:
                    started.setdefault(stay.leaves, []).append((max(stay.last + 1, stay.leaves), name, False))
        awaited: dict[int, float] = {}
        for launch in range(self.end + 1):
            for needed, name, inward in sorted(started.get(launch, ())):
                done = self._command(self.entry.tensors[name], inward)
                awaited[min(needed, self.end)] = max(awaited.get(min(needed, self.end), 0.0), done)
            self.now = max(self.now, awaited.get(launch, 0.0))
            self.now += self.entry.durations[launch] if launch < self.end else 0.0
        return max([self.now, *self.ends[-1:]])

    def _command(self, tensor: Tensor, inward: bool) -> float:
        """Gives the engine a transfer; its queue may be full, and then the conductor waits."""
        timing = self.engine.inward if inward else self.engine.outward
        commands = tensor.commands
        for _ in range(min(commands, 2 * self.engine.queue_depth)):
            share = commands / min(commands, 2 * self.engine.queue_depth)
            if len(self.ends) >= self.engine.queue_depth:
                self.now = max(self.now, self.ends[-self.engine.queue_depth])
            start = max(self.now, self.ends[-1] if self.ends else 0.0)
            cycles = share * timing.setup_cycles + tensor.size_bytes / commands * share * timing.cycles_per_byte
            self.ends.append(start + self.crowded[not inward] * cycles)
        return self.ends[-1]

    @property
    def is_full(self) -> bool:
        """Whether the conductor would wait for the queue."""
        depth = self.engine.queue_depth
        return len(self.ends) >= depth and self.ends[-depth] > self.now

    def _must_leave(self, store: _Transfer, launch: int) -> bool:
        """Whether this launch needs its room."""
        stay = self.stays[store.tensor.name][store.number]
        return bool(launch > stay.last and self.free[launch + 1] < store.tensor.size_bytes)

    def _postponed(self, store: _Transfer, launch: int) -> bool:
        """Where the queue is full, what leaves waits for the next launch, if it may stay as long."""
        stay = self.stays[store.tensor.name][store.number]
        size = store.tensor.size_bytes
        if not self.is_full or self._must_leave(store, launch):
            return False
        if launch > stay.last:
            self.free[launch + 1] -= size
            stay = replace(stay, last=launch)
        self.stays[store.tensor.name][store.number] = replace(stay, later=stay.later + 1)
        self.leaving.append(store)
        return True

    def _leave(self, store: _Transfer, launch: int) -> None:
        """Away with it, and it stays until it has arrived, if there is room."""
        store.start = launch
        store.done = self._command(store.tensor, inward=False)
        stay = self.stays[store.tensor.name][store.number]
        last, time, size = stay.last, self.now, store.tensor.size_bytes
        for later in range(launch, min(self.end, launch + MOST_LAUNCHES_AHEAD)):
            if later > last:
                if time >= store.done or not self._has_room(store, later, launch):
                    break
                last = later
                self.free[later + 1] -= size
            time += self.entry.durations[later]
        if last < launch:
            self.now = max(self.now, store.done)
        else:
            self.due.setdefault(last + 1, []).append(store)
        self.stays[store.tensor.name][store.number] = replace(stay, last=last)

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
            if due > later and one.done < store.done and self._least_last(one) < later
        ]
        older.sort(key=lambda one: one[0].done)
        while older and missing > 0:
            one, due = older.pop(0)
            missing -= one.tensor.size_bytes
            self.due[due].remove(one)
            self.free[later + 1 : due + 1] += one.tensor.size_bytes
            stay = self.stays[one.tensor.name][one.number]
            self.stays[one.tensor.name][one.number] = replace(stay, last=later - 1)
            if later == launch:
                self.now = max(self.now, one.done)
            else:
                self.due.setdefault(later, []).append(one)
        return bool(missing <= 0)

    def _settle(self, store: _Transfer, launch: int) -> None:
        """What was stored is needed again: it is waited for before this launch, and takes no room longer."""
        stay = self.stays[store.tensor.name][store.number]
        # It is waited for here, and by nobody later who is short of room.
        self.due[stay.last + 1] = [one for one in self.due.get(stay.last + 1, ()) if one is not store]
        last = max(min(stay.last, launch - 1), self._least_last(store))
        self.free[last + 2 : stay.last + 2] += store.tensor.size_bytes
        self.stays[store.tensor.name][store.number] = replace(stay, last=last)
        self.now = max(self.now, store.done)

    def _least_last(self, store: _Transfer) -> int:
        """The last launch that needs what is stored in L2."""
        return self.entry.stays[store.tensor.name][store.number].last

    def _bring(self, load: _Transfer, launch: int) -> None:
        for store in load.after:
            stay = self.stays[store.tensor.name][store.number]
            if stay.last >= launch:
                self._settle(store, launch)
        load.start = launch
        load.done = self._command(load.tensor, inward=True)
        stay = self.stays[load.tensor.name][load.number]
        self.free[launch + 1 : stay.first + 1] -= load.tensor.size_bytes
        self.stays[load.tensor.name][load.number] = replace(stay, first=min(stay.first, launch))

    def _look_ahead(self, launch: int, after: float) -> None:
        """While this launch computes, what later ones need, the next one first."""
        if self.waiting and self.waiting[0].start is not None:
            self._wait_for_next()
        horizon = self.now + DURATION_MARGIN * (after - self.now) + MARGIN_CYCLES
        looked = [load for load in self.waiting if load.start is None]
        while looked and not self.is_full and not (self.ends and self.ends[-1] >= horizon):
            load = self._next(looked, launch)
            if load is None:
                return
            self._bring(load, launch)
            looked.remove(load)

    def _wait_for_next(self) -> None:
        while self.passed < len(self.loads) and self.loads[self.passed].start is not None:
            self.passed += 1
        left = (self.loads[i] for i in range(self.passed, len(self.loads)) if self.loads[i].start is None)
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
        if launch <= max(load.before, -1):
            return False
        while load.pending:
            store = load.pending[-1]
            if store.start is None or store.done > self.now or self._least_last(store) >= launch:
                return False
            load.pending.pop()
        room = self.free[launch + 1 : load.launch + 1]
        return bool(room.size == 0 or room.min() >= load.tensor.size_bytes + kept)


def _taken(entry: EntryHomes) -> np.ndarray:  # type: ignore[type-arg]
    """Bytes in L2 at each launch, from before the first one on."""
    alive = np.zeros(entry.launch_count + 2, dtype=np.int64)
    for name, tensor in entry.tensors.items():
        own = entry.stays.get(name)
        spans = [(tensor.first, tensor.last)] if own is None else [(stay.first, stay.last) for stay in own]
        for first, last in spans:
            alive[first + 1 : last + 2] += tensor.size_bytes
    return alive


def state_elsewhere(entry: EntryHomes, state_bytes: Mapping[str, int], in_l3: frozenset[str]) -> int:
    """State in L2 that the entry does not use."""
    return sum(size for name, size in state_bytes.items() if name not in entry.tensors and name not in in_l3)
