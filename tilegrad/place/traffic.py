"""The least that an entry moves between L3 and L2: what any plan moves whose state lives where this one's does.

State that lives in L3 comes once where it is read, and goes once where it is written. Between two operators, what is
needed again is in L2 or comes back: of what is more than L2 holds beside the state that lives there, state in L3 costs
its bytes once more, and activations cost theirs twice, out and in. No plan moves less; whether one can move as little is
not said.
"""

from __future__ import annotations

from itertools import accumulate

from tilegrad.analysis.lifetimes import align, analyse
from tilegrad.ir.plan import Plan
from tilegrad.targets.base import L2, L3


def least_traffic_bytes(plan: Plan, entry: str) -> int:
    graph = plan.schedule.program.entries[entry]
    alignment = plan.schedule.target.memory(L2).alignment_bytes
    lifetimes = analyse(graph, alignment)
    uses: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in filter(None, (*node.inputs, *node.outputs)):
            uses.setdefault(lifetimes.owner.get(value, value), []).append(i)
    read = {value for node in graph.nodes for value in node.inputs if value}
    written = {state for _, state in graph.writes}
    total, room = 0, plan.schedule.target.memory(L2).capacity_bytes or 0
    # Bytes that are needed on both sides of the place behind each node.
    state, activations = ([0] * (len(graph.nodes) + 1) for _ in range(2))

    def add(needed: list[int], size_bytes: int, first: int, last: int) -> None:
        if first < last:
            needed[max(first, 0)] += size_bytes
            needed[min(last, len(graph.nodes))] -= size_bytes

    for tensor in plan.schedule.program.state:
        size_bytes = align(tensor.type.size_bytes, alignment)
        if plan.state_addresses[tensor.name].memory != L3:
            room -= size_bytes
            continue
        total += size_bytes * ((tensor.name in read) + (tensor.name in written))
        own = uses.get(tensor.name, [0])
        add(state, size_bytes, own[0], own[-1])
    for buffer in lifetimes.buffers:
        add(activations, buffer.size_bytes, buffer.first, buffer.last)
    more = 0
    for kept, made in zip(accumulate(state), accumulate(activations), strict=True):
        over = max(0, kept + made - room)
        more = max(more, min(over, kept) + 2 * max(0, over - kept))
    return total + more
