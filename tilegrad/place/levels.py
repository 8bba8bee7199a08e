"""Plans for a hierarchy: scratchpad, L2 and, where there is one, L3."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.room import closing_hint
from tilegrad.costs.kernel_cost import kernel_costs
from tilegrad.errors import DoesNotFit
from tilegrad.ir.nest import Nest
from tilegrad.ir.plan import Address, Buffer, EntryPlan, MemoryUse, Plan, Staging, Stay
from tilegrad.ir.program import StateTensor
from tilegrad.ir.schedule import Launch, Rows, Schedule, Tiling
from tilegrad.place.allocate import allocate, lower_bound
from tilegrad.place.homes import Homes, choose_homes
from tilegrad.place.prefetch import taken_cycles, with_transfers
from tilegrad.place.scratch import place_nests
from tilegrad.place.shorten import shorten
from tilegrad.place.tensors import EntryHomes, all_in_l2, stay_name
from tilegrad.targets.base import L1, L2, L3

# The allocator may need more than the sum of live bytes. Then single stays are shortened; where that takes much time,
# all of them grow into less of L2, which leaves gaps, and at last homes are chosen for less of it. Shares of L2 up to
# which stays are longer than they must be, and for homes: less of it at home leaves room for what is on its way, and
# the first of these are tried for their time alone.
_STAYS_SHARES = (1.0, 0.97, 0.95, 0.9, 0.75, 0.5, 0.0)
_HOMES_SHARES = (1.0, 0.94, 0.88, 0.85, 0.7, 0.55)
_MOST_OVER_BOUND = 1.05
_LITTLE_FASTER, _LITTLE_SLOWER = 0.99, 1.02
# Of a program of so many launches, as a small L2 makes of a large model, the first plan that fits is taken.
MANY_LAUNCHES, _FIRST_SHARES = 2000, (0.9, 0.5, 0.0)


@dataclass(frozen=True)
class _Packed:
    """An entry whose buffers have their places in L2."""

    entry: EntryHomes
    buffers: Sequence[Buffer]
    offsets: Mapping[str, int]


class _Levels:
    def __init__(self, schedule: Schedule, home: str) -> None:
        self.schedule = schedule
        target = schedule.target
        self.home = home if target.has_l3 else L2
        alignment = target.memory(L2).alignment_bytes
        self.capacity = target.memory(L2).capacity_bytes or 0
        self.state_bytes = {t.name: align(t.type.size_bytes, alignment) for t in schedule.program.state}
        taken = durations(schedule)
        self.entries = {
            name: all_in_l2(entry, taken[name], self.state_bytes, alignment) for name, entry in schedule.entries.items()
        }
        self.is_long = sum(len(entry.launches) for entry in schedule.entries.values()) > MANY_LAUNCHES

    def homes(self) -> Iterator[tuple[Homes, float]]:
        """For less and less of L2, and the cycles of all entries that may come of them. Where nothing is moved, there
        is one."""
        last: Homes | None = None
        for share in _HOMES_SHARES:
            try:
                room = int(self.capacity * share)
                homes = choose_homes(self.schedule, self.home, room, self.state_bytes, self.entries)
            except DoesNotFit:
                if last is None:
                    raise
                return  # a node needs more than this share
            if homes != last:
                yield homes, 0.0 if self.is_long else self.transfers(homes, 1.0)[1]
            last = homes
            if not any(entry.stays for entry in homes.entries.values()):
                return

    def attempts(self) -> Iterable[tuple[Homes, float]]:
        """The fastest first; behind it those that leave more of L2 free."""
        if self.is_long:
            return self.homes()
        found = [*self.homes()]
        best = 0
        for i, (_, cycles) in enumerate(found):
            best = i if cycles < found[best][1] * _LITTLE_FASTER else best
        return found[best:]

    def transfers(self, homes: Homes, share: float) -> tuple[Homes, float]:
        room = int(self.capacity * share)
        entries: dict[str, EntryHomes] = {}
        total = 0.0
        for name, entry in homes.entries.items():
            free = room - entry.unused_bytes(self.state_bytes, homes.state_in_l3)
            entries[name], cycles = with_transfers(entry, self.schedule, free)
            total += self.schedule.program.calls(name) * cycles
        return replace(homes, entries=entries), total

    def plan(self) -> Plan:
        """The fastest of what fits; where nothing does, what is nearest to it."""
        attempts = self.attempts()
        fastest = inf if self.is_long else min(cycles for _, cycles in attempts)
        best: Plan | None = None
        fitting: tuple[float, Plan] | None = None
        for homes, _ in attempts:
            found = self.fitted(homes)
            if best is None or found[1].memory[L2].used_bytes < best.memory[L2].used_bytes:
                best = found[1]
            if found[1].memory[L2].used_bytes <= self.capacity:
                fitting = found if fitting is None or found[0] < fitting[0] * _LITTLE_FASTER else fitting
            if fitting is not None and fitting[0] * _LITTLE_FASTER <= fastest:
                break
        assert best is not None
        return best if fitting is None else fitting[1]

    def fitted(self, least: Homes) -> tuple[float, Plan]:
        """Its cycles and its plan, with stays as long as the allocator finds room for."""
        found: list[tuple[int, bool, float, Plan]] = []
        for share in _FIRST_SHARES if self.is_long else _STAYS_SHARES:
            homes, wanted = self.transfers(least, share)
            packed = self.packed(homes, least)
            plan = _plan(self.schedule, packed, homes.state_in_l3)
            use = plan.memory[L2]
            cycles = wanted
            if any(one.entry is not homes.entries[name] for name, one in packed.items()):
                calls = self.schedule.program.calls
                cycles = sum(calls(name) * taken_cycles(one.entry, self.schedule) for name, one in packed.items())
            is_loose = cycles == wanted and use.used_bytes > _MOST_OVER_BOUND * use.lower_bound_bytes
            found.append((max(use.used_bytes - self.capacity, 0), is_loose, cycles, plan))
            if not found[-1][0] and (self.is_long or (not is_loose and cycles <= _LITTLE_SLOWER * wanted)):
                break
        _, _, cycles, plan = min(found, key=lambda one: one[:3])
        return cycles, plan

    def packed(self, homes: Homes, least: Homes) -> dict[str, _Packed]:
        """Where buffers are; those of `least` are there as long as they must be."""
        room = self.capacity - sum(size for name, size in self.state_bytes.items() if name not in homes.state_in_l3)
        found = {}
        for name, entry in homes.entries.items():
            buffers = _buffers(entry)
            allocation = allocate(buffers)
            found[name] = _Packed(entry, buffers, allocation.offsets)
            if allocation.size_bytes > room:
                found[name] = _shortened(found[name], least.entries[name], room)
        return found


def plan_levels(schedule: Schedule, home: str) -> Plan:
    plan = _Levels(schedule, home).plan()
    _expect_fit(plan)
    return place_nests(plan) if schedule.is_tiled else plan  # where nests are in L1 follows from everything else


def durations(schedule: Schedule, is_tiled: bool = True) -> dict[str, list[float]]:
    """Estimated cycles of each launch; as they would be if nothing was tiled, where that is asked for."""
    target, costs = schedule.target, kernel_costs(schedule.target)

    def cycles(nest: Nest, tiling: Tiling | None) -> float:
        if tiling is not None and is_tiled:
            return tiling.estimate.cycles
        sizes = {axis.name: max(axis.extent, 1) for axis in nest.axes}
        return costs.cycles(nest, sizes, target.home, target.cores)

    def of_launch(launch: Launch) -> float:
        tilings = launch.tilings or (None,) * len(launch.nests)
        return sum((cycles(nest, tiling) for nest, tiling in zip(launch.nests, tilings, strict=True)), 0.0)

    return {name: [*map(of_launch, entry.launches)] for name, entry in schedule.entries.items()}


def _buffers(entry: EntryHomes) -> list[Buffer]:
    buffers = [buffer for buffer in entry.lifetimes.buffers if buffer.name not in entry.stays]
    return buffers + [Buffer(name, t.size_bytes, s.first, s.last) for name, (t, s) in entry.named_stays().items()]


def _shortened(packed: _Packed, least: EntryHomes, room_bytes: int) -> _Packed:
    """With shorter stays within the room, or as it is where there are none."""
    needed = {name: (stay.first, stay.last) for name, (_, stay) in least.named_stays().items()}
    found = shorten(packed.buffers, needed, packed.offsets, room_bytes)
    if found is None:
        return packed
    buffers, offsets = found
    spans = {buffer.name: (buffer.first, buffer.last) for buffer in buffers}
    stays = {
        name: tuple(stay.within(*spans[stay_name(name, k)]) for k, stay in enumerate(own))
        for name, own in packed.entry.stays.items()
    }
    return _Packed(replace(packed.entry, stays=stays), buffers, offsets)


def _plan(schedule: Schedule, packed: Mapping[str, _Packed], state_in_l3: Collection[str]) -> Plan:
    target, program = schedule.target, schedule.program
    alignment = target.memory(L2).alignment_bytes
    near, far = ([t for t in program.state if (t.name in state_in_l3) == is_far] for is_far in (False, True))
    l2_addresses, state_bytes, image_bytes = place_state(near, L2, "state", alignment)
    l3_addresses, l3_state_bytes, l3_image_bytes = place_state(far, L3, "l3", alignment)
    state_addresses = l2_addresses | l3_addresses
    entries = {}
    l3_bytes = l3_bound = l3_state_bytes
    for name, own in packed.items():
        entries[name], used, bound = _plan_entry(own, state_addresses, l3_state_bytes)
        l3_bytes, l3_bound = max(l3_bytes, used), max(l3_bound, bound)
    arena_bytes = max(entry.arena_bytes for entry in entries.values())
    arena_bound = max(entry.lower_bound_bytes for entry in entries.values())
    memory = {
        L1: MemoryUse(0, target.memory(L1).capacity_bytes, 0),
        L2: MemoryUse(state_bytes + arena_bytes, target.memory(L2).capacity_bytes, state_bytes + arena_bound),
    }
    if target.has_l3:
        memory[L3] = MemoryUse(l3_bytes, target.memory(L3).capacity_bytes, l3_bound)
    return Plan(
        schedule, alignment, state_addresses, state_bytes, image_bytes, arena_bytes, entries, memory, l3_image_bytes
    )


def _expect_fit(plan: Plan) -> None:
    for name, use in plan.memory.items():
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise DoesNotFit(
                f"the program does not fit into {name} of {plan.schedule.target.name}",
                stage="memory",
                expected=f"at most {use.capacity_bytes} bytes",
                got=f"{use.used_bytes} bytes",
                hint=_hint(plan, name, use),
            )


def _hint(plan: Plan, name: str, use: MemoryUse) -> str:
    missing = use.used_bytes - (use.capacity_bytes or 0)
    if name != L3:
        return f"give {name} at least {use.used_bytes} bytes (--{name.lower()})"
    activations = use.used_bytes - sum(
        tensor.type.size_bytes
        for tensor in plan.schedule.program.state
        if plan.state_addresses[tensor.name].memory == L3
    )
    return closing_hint(plan.schedule.program, missing, activations, L3, use.used_bytes)


def place_state(
    tensors: Iterable[StateTensor], memory: str, region: str, alignment: int
) -> tuple[dict[str, Address], int, int]:
    """One after the other; those with initial values come first and form an image. With the bytes of all, and of it."""
    addresses: dict[str, Address] = {}
    offset = image_bytes = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.initial is None):
        addresses[tensor.name] = Address(memory, region, offset)
        offset += align(tensor.type.size_bytes, alignment)
        image_bytes = image_bytes if tensor.initial is None else offset
    return addresses, offset, image_bytes


def _plan_entry(
    packed: _Packed, state_addresses: dict[str, Address], l3_state_bytes: int
) -> tuple[EntryPlan, int, int]:
    """The entry's plan, and how much of L3 it uses and needs at least."""
    entry, buffers, offsets = packed.entry, packed.buffers, packed.offsets
    outside = _outside(entry)
    l3_allocation = allocate(outside)
    l3_offsets = {name: l3_state_bytes + offset for name, offset in l3_allocation.offsets.items()}
    l3_offsets |= {name: address.offset for name, address in state_addresses.items() if address.memory == L3}
    addresses, stays_by_value = _where(entry, offsets, state_addresses, l3_offsets)
    plan = EntryPlan(
        addresses,
        tuple(buffers),
        dict(offsets),
        max((offsets[buffer.name] + buffer.size_bytes for buffer in buffers), default=0),
        lower_bound(buffers),
        stays_by_value,
        _staging(entry, offsets, l3_offsets),
        l3_offsets=l3_offsets,
        parts={tensor.name: tensor.whole for tensor in entry.tensors.values() if tensor.whole is not None},
    )
    return plan, l3_state_bytes + l3_allocation.size_bytes, l3_state_bytes + lower_bound(outside)


def _outside(entry: EntryHomes) -> list[Buffer]:
    """Activations in L3: from when the first of their bytes leaves L2 until all that comes back has arrived."""
    times: dict[str, list[int]] = {}
    for tensor, stay in entry.named_stays().values():
        whole = tensor.whole or tensor.name
        moved = [time for is_moved, time in ((stay.store, stay.changed), (stay.load, stay.used)) if is_moved]
        if moved and not entry.tensors[whole].is_state:
            times[whole] = times.get(whole, []) + moved
    for tensor in entry.tensors.values():
        if tensor.is_outside:
            own = times.setdefault(tensor.name, [tensor.first, tensor.last])
            own += [-1] if tensor.is_input else []
            own += [entry.launch_count] if tensor.is_output else []
    return [Buffer(name, entry.tensors[name].size_bytes, min(own), max(own)) for name, own in times.items()]


def _where(
    entry: EntryHomes,
    offsets: Mapping[str, int],
    state_addresses: Mapping[str, Address],
    l3_offsets: Mapping[str, int],
) -> tuple[dict[str, Address], dict[str, tuple[Stay, ...]]]:
    """Addresses of values that stay put, and of those that come and go."""
    addresses: dict[str, Address] = {}
    found: dict[str, tuple[Stay, ...]] = {}
    stays = {
        name: tuple(
            Stay(stay.first, stay.last, Address(L2, "arena", offsets[stay_name(name, k)])) for k, stay in enumerate(own)
        )
        for name, own in entry.stays.items()
    }
    for value, name in [*entry.lifetimes.owner.items(), *((name, name) for name in state_addresses)]:
        if name in entry.tensors and entry.tensors[name].is_outside:
            addresses[value] = Address(L3, "l3", l3_offsets[name])
        if name in stays:
            found[value] = stays[name]
        elif name in offsets:
            addresses[value] = Address(L2, "arena", offsets[name])
        else:
            addresses[value] = state_addresses[name]
    for value, names in entry.parts.items():
        found[value] = tuple(stay for name in names for stay in stays[name])
    return addresses, found


def _staging(entry: EntryHomes, offsets: Mapping[str, int], l3_offsets: Mapping[str, int]) -> tuple[Staging, ...]:
    staging: list[Staging] = []
    for buffer, (tensor, stay) in entry.named_stays().items():
        for way in stay.transfers(entry.launch_count):
            offset = l3_offsets[tensor.whole or tensor.name]
            if tensor.rows is None:
                staging.append(Staging(tensor.name, offsets[buffer], offset, tensor.size_bytes, *way))
            else:
                staging += _rows(tensor.rows, tensor.name, offsets[buffer], offset, way)
    return tuple(sorted(staging, key=lambda s: (s.start, s.wait, s.tensor, s.l3_offset)))


def _rows(rows: Rows, name: str, l2_offset: int, l3_offset: int, way: tuple[int, int, bool]) -> list[Staging]:
    """One transfer for each set of rows that are the same distance apart."""
    (count, stride), *outer = rows.levels or ((1, 0),)
    found = []
    near = l2_offset
    for index in product(*(range(n) for n, _ in reversed(outer))):
        far = l3_offset + rows.offset + sum(i * step for i, (_, step) in zip(index, reversed(outer), strict=True))
        found.append(Staging(name, near, far, rows.row_bytes * count, *way, rows=count, l3_stride=stride))
        near += rows.row_bytes * count
    return found
