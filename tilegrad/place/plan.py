"""Puts it together: state first, then an arena that the entries reuse."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilegrad.analysis.lifetimes import align, analyse, temporaries
from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import FLASH_REGION, Address, EntryPlan, MemoryUse, Plan
from tilegrad.ir.program import Role
from tilegrad.ir.schedule import EntrySchedule, Schedule
from tilegrad.place.allocate import allocate, lower_bound
from tilegrad.place.board import image_parts, place
from tilegrad.place.levels import place_state, plan_levels
from tilegrad.place.validate import is_valid, validate_plan
from tilegrad.targets.base import FLASH


@lru_cache(maxsize=4)  # what stages compare as a whole is the next one's
def plan_memory(schedule: Schedule, home: str = "auto") -> Plan:
    """`home` says where tensors live on a target with L2 and L3: auto, L2 or L3."""
    if not schedule.target.is_flat:
        return plan_levels(schedule, home)
    memory = schedule.target.memory(schedule.target.home)
    alignment = memory.alignment_bytes
    flash, flash_bytes = _place_constants(schedule)
    in_ram = [tensor for tensor in schedule.program.state if tensor.name not in flash]
    state_addresses, state_bytes, image_bytes = place_state(in_ram, memory.name, "state", alignment)
    state_addresses = flash | state_addresses
    entries = {
        name: _plan_entry(entry, memory.name, alignment, state_addresses) for name, entry in schedule.entries.items()
    }
    arena_bytes = max(entry.arena_bytes for entry in entries.values())
    bound = max(entry.lower_bound_bytes for entry in entries.values())
    beside = sum(image_parts(schedule).values())
    kept = state_bytes + beside
    use = MemoryUse(kept + arena_bytes, memory.capacity_bytes, kept + bound)
    if memory.capacity_bytes is not None and use.used_bytes > memory.capacity_bytes:
        raise DoesNotFit(
            f"the program does not fit into {memory.name} of {schedule.target.name}",
            stage="memory",
            expected=f"at most {memory.capacity_bytes} bytes",
            got=f"{use.used_bytes} bytes: {state_bytes} of state and {arena_bytes} of activations"
            + (f", and {beside} of stacks, buffers and data" if beside else ""),
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )
    if schedule.target.board is not None:
        place(schedule, schedule.target.board, state_bytes, arena_bytes)
    levels = {memory.name: use}
    if schedule.target.has_memory(FLASH):
        levels[FLASH] = MemoryUse(flash_bytes, schedule.target.memory(FLASH).capacity_bytes, flash_bytes)
    sizes_bytes = state_bytes, image_bytes, arena_bytes
    plan = Plan(schedule, alignment, state_addresses, *sizes_bytes, entries, levels, flash_bytes=flash_bytes)
    shared = _at_the_steps_addresses(schedule, entries["step"])
    if shared is not None:
        with_shared_code = replace(plan, entries={**entries, "infer": shared})
        if is_valid(with_shared_code, "infer"):
            plan = with_shared_code
    return validate_plan(plan)


def _at_the_steps_addresses(schedule: Schedule, step: EntryPlan) -> EntryPlan | None:
    """The forward pass of `infer` at the addresses it has in `step`, so that both entries can share its code.

    None where the step computes something else (dropout, batch statistics). The result may still be wrong, where the
    step reuses memory that an output of `infer` needs: the validator tells.
    """
    graph = schedule.entries["infer"].graph
    step_graph = schedule.entries["step"].graph
    if step_graph.nodes[: len(graph.nodes)] != graph.nodes:
        return None
    values = [*graph.inputs, *temporaries(graph), *(name for node in graph.nodes for name in node.outputs if name)]
    addresses = {name: step.addresses[name] for name in values if name in step.addresses}
    if len(addresses) != len(values):
        return None
    buffers = tuple(buffer for buffer in step.buffers if any(name in addresses for name in buffer.members))
    offsets = {buffer.name: step.offsets[buffer.name] for buffer in buffers}
    arena_bytes = max((offsets[buffer.name] + buffer.size_bytes for buffer in buffers), default=0)
    return EntryPlan(addresses, buffers, offsets, arena_bytes, lower_bound(buffers))


def _place_constants(schedule: Schedule) -> tuple[dict[str, Address], int]:
    """What no entry changes and nobody sets stays in flash, where the target has one: the largest first, as far as it
    reaches. The rest is copied to RAM like what trains. With the bytes that they take."""
    target = schedule.target
    if not target.has_memory(FLASH):
        return {}, 0
    flash = target.memory(FLASH)
    written = {state for entry in schedule.entries.values() for _, state in entry.graph.writes}
    addresses = {}
    offset = 0
    for tensor in sorted(schedule.program.state, key=lambda tensor: -tensor.type.size_bytes):
        size = align(tensor.type.size_bytes, flash.alignment_bytes)
        is_constant = tensor.role in _CONSTANT and tensor.initial is not None and tensor.name not in written
        has_room = flash.capacity_bytes is None or offset + size <= flash.capacity_bytes
        if is_constant and size >= LEAST_FLASH_BYTES and has_room:
            addresses[tensor.name] = Address(FLASH, FLASH_REGION, offset)
            offset += size
    return addresses, offset


LEAST_FLASH_BYTES = 16
"""A model of which everything trains has a few numbers that do not: they are not worth a file."""
_CONSTANT = (Role.FROZEN, Role.STATISTIC, Role.CONSTANT)


def _plan_entry(entry: EntrySchedule, memory: str, alignment: int, state_addresses: dict[str, Address]) -> EntryPlan:
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
