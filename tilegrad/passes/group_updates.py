"""Groups small SGD steps of a fused backward pass: one call for up to three of them, at its end.

The biases and scales of a layer have as many elements each, and a step on one takes less than calling it. Between two
layers it would be in the way: the next one's gradient would find what the one before made in L2, not in scratchpad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops.sgd_group import MOST_TENSORS

LARGEST_ELEMENTS = 512
"""Of a tensor in a group: a gradient that waits takes memory."""


@dataclass(frozen=True)
class GroupUpdates:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        step = program.entries["step"]
        groups = _groups(step)
        if not groups:
            return program
        last = {group[-1]: group for group in groups}
        moved = {i for group in groups for i in group[:-1]}
        nodes = [
            _grouped([step.nodes[k] for k in last[i]]) if i in last else node
            for i, node in enumerate(step.nodes)
            if i not in moved
        ]
        return program.with_step(verify_graph(replace(step, nodes=tuple(_with_groups_last(nodes)))))


def _groups(graph: Graph) -> list[list[int]]:
    """Positions of steps that go together, each group in order."""
    done: list[list[int]] = []
    waiting: dict[tuple[int, str], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for key, group in list(waiting.items()):
            # A later reader of the weight must not find it before its step.
            if any(graph.nodes[k].inputs[0] in node.inputs for k in group):
                done.append(waiting.pop(key))
        if node.op != "SGD" or node.attributes.get("weight_decay", 0.0):
            continue
        size = graph.types[node.inputs[0]].size
        if size > LARGEST_ELEMENTS:
            continue
        key = (size, node.inputs[2])
        waiting.setdefault(key, []).append(i)
        if len(waiting[key]) == MOST_TENSORS:
            done.append(waiting.pop(key))
    return [group for group in [*done, *waiting.values()] if len(group) > 1]


def _grouped(nodes: Sequence[Node]) -> Node:
    pairs = [name for node in nodes for name in node.inputs[:2]]
    absent = [""] * (2 * MOST_TENSORS - len(pairs))
    rate = nodes[0].inputs[2]
    outputs = tuple(node.outputs[0] for node in nodes)
    return Node(nodes[-1].name.replace("SGD", "SGDGroup"), "SGDGroup", (*pairs, *absent, rate), outputs)


def _with_groups_last(nodes: Sequence[Node]) -> list[Node]:
    """But for those that have a weight which is read behind them."""
    ordered: list[Node] = []
    waiting: list[Node] = []
    for node in nodes:
        if node.op == "SGDGroup":
            waiting.append(node)
            continue
        needed = [group for group in waiting if {*group.inputs[:-1:2], *group.outputs} & {*node.inputs} - {""}]
        waiting = [group for group in waiting if group not in needed]
        ordered += [*needed, node]
    return [*ordered, *waiting]
