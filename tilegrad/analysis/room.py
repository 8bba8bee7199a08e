"""Whether a program fits at all, before anything is decided: what is alive at once, against L2, and L3 if there is."""

from __future__ import annotations

from tilegrad.analysis.lifetimes import align, analyse, peak_of
from tilegrad.errors import DoesNotFit
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import Program, Role
from tilegrad.targets.base import L2, L3, Target

STREAMED_SHARE = 0.6
"""Of L2: a launch whose operands are more together works on parts of them."""


def live_peak(graph: Graph, alignment: int) -> tuple[int, int]:
    """The most bytes of activations that are alive at once, and at which node."""
    return peak_of(analyse(graph, alignment).buffers)


def expect_room(program: Program, target: Target) -> None:
    """What is alive at once must fit into L2 and L3 together, wherever each tensor has its home, or into L2 alone."""
    alignment = target.memory(L2).alignment_bytes
    state_bytes = sum(align(tensor.type.size_bytes, alignment) for tensor in program.state)
    peaks = {name: live_peak(graph, alignment) for name, graph in program.entries.items()}
    entry = max(peaks, key=lambda name: peaks[name][0])
    peak_bytes, where = peaks[entry]
    l2, l3 = (target.memory(name).capacity_bytes or 0 if target.has_memory(name) else 0 for name in (L2, L3))
    missing = state_bytes + peak_bytes - l2 - l3
    if missing <= 0:
        return
    # What is large for L2 is in L3 whole, and comes in parts.
    streamed = sum(t.type.size_bytes for t in program.state if t.type.size_bytes > STREAMED_SHARE * l2)
    more = max(l3 + missing, streamed)
    nodes = program.entries[entry].nodes
    node = nodes[max(0, min(where, len(nodes) - 1))].name if nodes else None
    where_to = f"{L3} of {target.name}, nor into {L2} and {L3} together" if target.has_l3 else f"{L2} of {target.name}"
    raise DoesNotFit(
        f"the program does not fit into {where_to}",
        stage="memory",
        node=node,
        expected=f"at most {l3} bytes in {L3} and {l2} in {L2}" if target.has_l3 else f"at most {l2} bytes in {L2}",
        got=f"{state_bytes + peak_bytes} bytes: {state_bytes} of state and {peak_bytes} of activations",
        hint=closing_hint(program, missing, peak_bytes, *((L3, more) if target.has_l3 else (L2, l2 + missing))),
    )


def closing_hint(program: Program, missing: int, activation_bytes: int, memory: str, size_bytes: int) -> str:
    """What would close the gap, each by itself."""
    by_role = {
        role: sum(tensor.type.size_bytes for tensor in program.state if tensor.role is role)
        for role in (Role.GRADIENT, Role.OPTIMIZER)
    }
    ways = []
    batch = program.recipe.batch
    if activation_bytes > missing and batch > 1:
        smaller = int(batch * (activation_bytes - missing) / activation_bytes)
        ways += [f"a batch of {smaller} (--batch)"] if smaller >= 1 else []
    if by_role[Role.OPTIMIZER] >= missing:
        ways.append("a stateless optimizer (--optimizer sgd)")
    if sum(by_role.values()) >= missing:
        ways.append("train fewer parameters (--train last:K)")
    ways.append(f"an {memory} of {size_bytes} bytes (--{memory.lower()}), which only a simulator has")
    return ", or ".join(ways)
