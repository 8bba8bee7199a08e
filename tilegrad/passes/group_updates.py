"""Small SGD steps of a fused backward pass come at its end, in groups: one call for up to three of them.

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
"""Of a step that is small: a gradient that waits takes memory."""


@dataclass(frozen=True)
class GroupUpdates:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        if not _groups(program.entries["step"]):
            return program
        step = _with_small_ones_last(program.entries["step"])
        groups = _groups(step)
        last = {group[-1]: group for group in groups}
        moved = {i for group in groups for i in group[:-1]}
        nodes = [
            _grouped([step.nodes[k] for k in last[i]]) if i in last else node
            for i, node in enumerate(step.nodes)
            if i not in moved
        ]
        return program.with_step(verify_graph(replace(step, nodes=tuple(nodes))))


def _with_small_ones_last(graph: Graph) -> Graph:
    """But for those whose weight is read behind them, and must not be found before its step."""
    nodes: list[Node] = []
    waiting: list[Node] = []
    for node in graph.nodes:
        if _is_small(graph, node):
            waiting.append(node)
            continue
        needed = [step for step in waiting if {step.inputs[0], *step.outputs} & set(node.inputs)]
        waiting = [step for step in waiting if step not in needed]
        nodes += [*needed, node]
    return replace(graph, nodes=(*nodes, *waiting))


def _is_small(graph: Graph, node: Node) -> bool:
    is_plain = node.op == "SGD" and not node.attributes.get("weight_decay", 0.0)
    return is_plain and graph.types[node.inputs[0]].size <= LARGEST_ELEMENTS


def _groups(graph: Graph) -> list[list[int]]:
    """Positions of steps that go together, each group in order."""
    done: list[list[int]] = []
    waiting: dict[tuple[int, str], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for key, group in list(waiting.items()):
            if any(graph.nodes[k].inputs[0] in node.inputs for k in group):
                done.append(waiting.pop(key))
        if not _is_small(graph, node):
            continue
        key = (graph.types[node.inputs[0]].size, node.inputs[2])
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
