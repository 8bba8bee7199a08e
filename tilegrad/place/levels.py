"""Plans for a hierarchy: scratchpad, L2 and L3."""

from __future__ import annotations

from dataclasses import replace

from tilegrad.analysis.lifetimes import align, analyse
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import Address, Buffer, EntryPlan, MemoryUse, Plan, Staging, Stay
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.place.allocate import allocate, lower_bound
from tilegrad.place.homes import EntryHomes, Homes, choose_homes
from tilegrad.place.scratch import place_nests
from tilegrad.targets.base import L1, L2, L3

# The allocator may need more than the sum of live bytes. Then stays grow into less of L2, which leaves it gaps, and at
# last homes are chosen for less of it. Shares of L2: for homes, and up to which stays are longer than they must be.
_SHARES = (
    *((1.0, 1.0), (1.0, 0.95), (1.0, 0.9), (1.0, 0.75), (1.0, 0.5), (1.0, 0.0)),
    *((0.94, 0.0), (0.85, 0.0), (0.7, 0.0)),
)
_MOST_OVER_BOUND = 1.05


def plan_levels(schedule: Schedule, home: str) -> Plan:
    capacity = schedule.target.memory(L2).capacity_bytes
    assert capacity is not None
    _expect_room(schedule)
    durations = _durations(schedule)
    best: Plan | None = None
    for homes_share, stays_share in _SHARES:
        try:
            homes = choose_homes(schedule, home, int(capacity * homes_share), durations, int(capacity * stays_share))
        except DoesNotFit:
            if best is None:
                raise
            break  # a node needs more than this share: the best so far stands, or is refused with the whole budget
        plan = _plan(schedule, homes)
        use = plan.memory[L2]
        if best is None or use.used_bytes < best.memory[L2].used_bytes:
            best = plan
        if use.used_bytes <= min(capacity, _MOST_OVER_BOUND * use.lower_bound_bytes):
            best = plan
            break
    assert best is not None
    _expect_fit(best)
    return _with_nests(best)


def _expect_room(schedule: Schedule) -> None:
    """What is alive at once must fit into L2 and L3 together, wherever each tensor has its home."""
    target = schedule.target
    alignment = target.memory(L2).alignment_bytes
    state_bytes = sum(align(tensor.type.size_bytes, alignment) for tensor in schedule.program.state)
    graphs = (entry.graph for entry in schedule.entries.values())
    activation_bytes = max(lower_bound(analyse(graph, alignment).buffers) for graph in graphs)
    l2, l3 = (target.memory(name).capacity_bytes or 0 for name in (L2, L3))
    needed = state_bytes + activation_bytes
    if needed > l2 + l3:
        raise DoesNotFit(
            f"the program does not fit into {L3} of {target.name}, nor into {L2} and {L3} together",
            stage="memory",
            expected=f"at most {l3} bytes in {L3} and {l2} in {L2}",
            got=f"{needed} bytes: {state_bytes} of state and {activation_bytes} of activations",
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )


def _durations(schedule: Schedule) -> dict[str, list[float]]:
    """Estimated cycles of each launch."""
    target, costs = schedule.target, KernelCosts(schedule.target)
    result: dict[str, list[float]] = {}
    for name, entry in schedule.entries.items():
        result[name] = []
        for launch in entry.launches:
            total = 0.0
            for nest, tiling in zip(launch.nests, launch.tilings or (None,) * len(launch.nests), strict=True):
                sizes = {axis.name: max(axis.extent, 1) for axis in nest.axes}
                if tiling is None:
                    total += costs.cycles(nest, sizes, target.home, target.cores)
                else:
                    total += tiling.estimate.cycles
            result[name].append(total)
    return result


def _plan(schedule: Schedule, homes: Homes) -> Plan:
    target, program = schedule.target, schedule.program
    alignment = target.memory(L2).alignment_bytes
    placed = _place_state(program, homes, alignment)
    state_addresses, state_bytes, image_bytes, l3_state_bytes, l3_image_bytes = placed
    entries = {}
    l3_bytes = l3_bound = l3_state_bytes
    for name, entry in homes.entries.items():
        end = len(program.entries[name].nodes)
        entries[name], used, bound = _plan_entry(entry, state_addresses, l3_state_bytes, end)
        l3_bytes, l3_bound = max(l3_bytes, used), max(l3_bound, bound)
    arena_bytes = max(entry.arena_bytes for entry in entries.values())
    arena_bound = max(entry.lower_bound_bytes for entry in entries.values())
    memory = {
        L1: MemoryUse(0, target.memory(L1).capacity_bytes, 0),
        L2: MemoryUse(state_bytes + arena_bytes, target.memory(L2).capacity_bytes, state_bytes + arena_bound),
        L3: MemoryUse(l3_bytes, target.memory(L3).capacity_bytes, l3_bound),
    }
    return Plan(
        schedule, alignment, state_addresses, state_bytes, image_bytes, arena_bytes, entries, memory, l3_image_bytes
    )


def _with_nests(plan: Plan) -> Plan:
    """The plan with nests in L1, where it is tiled: that follows from everything else."""
    if not plan.schedule.is_tiled:
        return plan
    placed, scratch_bytes = place_nests(plan)
    l1 = replace(plan.memory[L1], used_bytes=scratch_bytes, lower_bound_bytes=scratch_bytes)
    return replace(placed, memory={**plan.memory, L1: l1})


def _expect_fit(plan: Plan) -> None:
    for name, use in plan.memory.items():
        if use.capacity_bytes is not None and use.used_bytes > use.capacity_bytes:
            raise DoesNotFit(
                f"the program does not fit into {name} of {plan.schedule.target.name}",
                stage="memory",
                expected=f"at most {use.capacity_bytes} bytes",
                got=f"{use.used_bytes} bytes",
                hint="a smaller batch, or train fewer parameters (--train last:K)",
            )


def _place_state(program: Program, homes: Homes, alignment: int) -> tuple[dict[str, Address], int, int, int, int]:
    """State of L2 one after the other, initialised tensors first; state of L3 likewise in its own memory."""
    addresses = {}
    offset = image_bytes = l3_offset = l3_image_bytes = 0
    for tensor in sorted(program.state, key=lambda tensor: tensor.initial is None):
        size = align(tensor.type.size_bytes, alignment)
        if tensor.name in homes.state_in_l3:
            addresses[tensor.name] = Address(L3, "l3", l3_offset)
            l3_offset += size
            if tensor.initial is not None:
                l3_image_bytes = l3_offset
            continue
        addresses[tensor.name] = Address(L2, "state", offset)
        offset += size
        if tensor.initial is not None:
            image_bytes = offset
    return addresses, offset, image_bytes, l3_offset, l3_image_bytes


def _stay_name(tensor: str, k: int) -> str:
    return f"{tensor}@{k}"


def _plan_entry(
    entry: EntryHomes, state_addresses: dict[str, Address], l3_state_bytes: int, end: int
) -> tuple[EntryPlan, int, int]:
    """The entry's plan, and how much of L3 it uses and needs at least."""
    buffers = [buffer for buffer in entry.lifetimes.buffers if buffer.name not in entry.stays]
    outside = []
    for name, stays in entry.stays.items():
        tensor = entry.tensors[name]
        for k, stay in enumerate(stays):
            buffers.append(Buffer(_stay_name(name, k), tensor.size_bytes, stay.first, stay.last))
        stored = [stay.changed for stay in stays if stay.store]
        if not tensor.is_state and stored:
            outside.append(Buffer(name, tensor.size_bytes, stored[0], stays[-1].used))
    allocation = allocate(buffers)
    l3_allocation = allocate(outside)
    owner = entry.lifetimes.owner
    addresses: dict[str, Address] = {}
    stays_by_value: dict[str, tuple[Stay, ...]] = {}
    tensor_stays = {
        name: tuple(
            Stay(stay.first, stay.last, Address(L2, "arena", allocation.offsets[_stay_name(name, k)]))
            for k, stay in enumerate(stays)
        )
        for name, stays in entry.stays.items()
    }
    for value, tensor_name in [*owner.items(), *((name, name) for name in state_addresses)]:
        if tensor_name in tensor_stays:
            stays_by_value[value] = tensor_stays[tensor_name]
        elif tensor_name in allocation.offsets:
            addresses[value] = Address(L2, "arena", allocation.offsets[tensor_name])
        else:
            addresses[value] = state_addresses[tensor_name]
    staging = []
    for name, stays in entry.stays.items():
        tensor = entry.tensors[name]
        l3_offset = (
            state_addresses[name].offset if tensor.is_state else l3_state_bytes + l3_allocation.offsets.get(name, 0)
        )
        for k, stay in enumerate(stays):
            l2_offset = allocation.offsets[_stay_name(name, k)]
            if stay.load:
                staging.append(Staging(name, l2_offset, l3_offset, tensor.size_bytes, stay.first, stay.used, True))
            if stay.store:
                wait = min(stay.last + 1, end)
                staging.append(Staging(name, l2_offset, l3_offset, tensor.size_bytes, stay.changed + 1, wait, False))
    plan = EntryPlan(
        addresses,
        tuple(buffers),
        allocation.offsets,
        allocation.size_bytes,
        lower_bound(buffers),
        stays_by_value,
        tuple(sorted(staging, key=lambda s: (s.start, s.wait, s.tensor))),
    )
    return plan, l3_state_bytes + l3_allocation.size_bytes, l3_state_bytes + lower_bound(outside)
