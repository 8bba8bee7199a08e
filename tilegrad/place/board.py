"""RAM that an image takes beside state and arena: known before anything is linked, so that plans count it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tilegrad.analysis.lifetimes import align
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.types import TensorType
from tilegrad.targets.board import Board, Placement

PORT_ALIGNMENT_BYTES = 64
HANDLE_BYTES, INSTANCE_BYTES, GUARD_BYTES, COMMAND_BYTES = 8, 8, 8, 8
"""The harness's own variables: two handles, the instance, what its guard knows, a command for the other cores."""
INDEX_BYTES = 4
"""Of a tensor that is asked for. One request may name them all, and none."""


def packed_offsets(types: Sequence[TensorType]) -> tuple[tuple[int, ...], int]:
    """Where the harness keeps each input or output of an entry, one behind the other, and the size of all."""
    *offsets, end = accumulate((align(own.size_bytes, PORT_ALIGNMENT_BYTES) for own in types), initial=0)
    return tuple(offsets), end


def buffer_bytes(schedule: Schedule) -> tuple[int, int]:
    """The harness's two buffers: inputs and outputs of the entry that has most."""
    graphs = [entry.graph for entry in schedule.entries.values()]
    inputs = max(packed_offsets([graph.types[name] for name in graph.inputs])[1] for graph in graphs)
    outputs = max(packed_offsets([graph.types[name] for name in graph.outputs])[1] for graph in graphs)
    return max(inputs, 1), max(outputs, 1)


def image_parts(schedule: Schedule) -> dict[str, int]:
    """By what it is for; empty where the target is no board."""
    target = schedule.target
    if target.board is None:
        return {}
    stacks = target.cores * target.board.stack_bytes
    data = HANDLE_BYTES + INSTANCE_BYTES + INDEX_BYTES * (len(schedule.program.state) + 1)
    data += GUARD_BYTES if schedule.program.recipe.guard is not None else 0
    data += COMMAND_BYTES if target.cores > 1 else 0
    data = align(data, target.memory(target.home).alignment_bytes)
    return {"stack": stacks, "buffers": sum(buffer_bytes(schedule)), "data": data}


def place(schedule: Schedule, board: Board, state_bytes: int, arena_bytes: int) -> Placement:
    """Which bank holds what; DoesNotFit with the banks where there is no way."""
    target = schedule.target
    if target.memory(target.home).capacity_bytes is None:  # stands for a board that is too small: never linked
        return Placement(board.banks[0], board.banks[-1], board.banks[-1])
    step = max(target.memory(target.home).alignment_bytes, 16)
    beside = sum(align(size, step) for size in image_parts(schedule).values())
    return board.place(beside, align(state_bytes, step), align(max(arena_bytes, 1), step))
