"""Puts it together: state first, then an arena that the entries reuse."""

from __future__ import annotations

from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import Address, EntryPlan, MemoryUse, Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Schedule
from tilegrad.memory.allocate import allocate, lower_bound
from tilegrad.memory.lifetimes import align, analyse
from tilegrad.memory.validate import validate_plan


def plan_memory(schedule: Schedule) -> Plan:
    memory = schedule.target.memory(schedule.target.home)
    alignment = memory.alignment_bytes
    state_addresses, state_bytes, image_bytes = _place_state(schedule.program, memory.name, alignment)
    entries = {
        name: _plan_entry(entry, memory.name, alignment, state_addresses) for name, entry in schedule.entries.items()
    }
    arena_bytes = max(entry.arena_bytes for entry in entries.values())
    bound = max(entry.lower_bound_bytes for entry in entries.values())
    use = MemoryUse(state_bytes + arena_bytes, memory.capacity_bytes, state_bytes + bound)
    if memory.capacity_bytes is not None and use.used_bytes > memory.capacity_bytes:
        raise DoesNotFit(
            f"the program does not fit into {memory.name} of {schedule.target.name}",
            stage="memory",
            expected=f"at most {memory.capacity_bytes} bytes",
            got=f"{use.used_bytes} bytes: {state_bytes} of state and {arena_bytes} of activations",
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )
    return validate_plan(
        Plan(
            schedule,
            alignment,
            state_addresses,
            state_bytes,
            image_bytes,
            arena_bytes,
            entries,
            {memory.name: use},
        )
    )


def _place_state(program: Program, memory: str, alignment: int) -> tuple[dict[str, Address], int, int]:
    """One after the other; those with initial values come first and form the image in weights.bin."""
    addresses = {}
    offset = image_bytes = 0
    for tensor in sorted(program.state, key=lambda tensor: tensor.initial is None):
        addresses[tensor.name] = Address(memory, "state", offset)
        offset += align(tensor.type.size_bytes, alignment)
        if tensor.initial is not None:
            image_bytes = offset
    return addresses, offset, image_bytes


def _plan_entry(
    entry: EntrySchedule, memory: str, alignment: int, state_addresses: dict[str, Address]
) -> EntryPlan:
    lifetimes = analyse(entry.graph, alignment)
    allocation = allocate(lifetimes.buffers)
    addresses = {}
    for value, owner in lifetimes.owner.items():
        if owner in allocation.offsets:
            addresses[value] = Address(memory, "arena", allocation.offsets[owner])
        else:
            addresses[value] = state_addresses[owner]
    return EntryPlan(
        addresses, lifetimes.buffers, allocation.offsets, allocation.size_bytes, lower_bound(lifetimes.buffers)
    )
