"""Moves the optimizer into the backward pass: no gradient buffers, and `update` is empty.

With one mini-batch per update the gradient is used as soon as it is complete and nobody reads it afterwards. The bits
are those of the unfused program, because accumulating into a reset buffer is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import RESET_FLAG, Program, Role

_ACCUMULATE = "InPlaceAccumulatorV2"


def can_fuse(program: Program) -> bool:
    """Clipping needs every gradient before the first update."""
    return program.recipe.accumulate == 1 and program.recipe.clip is None and bool(program.with_role(Role.GRADIENT))


@dataclass(frozen=True)
class FuseUpdate:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        if not can_fuse(program):
            return program
        step, update = program.entries["step"], program.entries["update"]
        dropped = {RESET_FLAG, *(tensor.name for tensor in program.with_role(Role.GRADIENT))}
        updates = {name: node for node in update.nodes for name in node.inputs if name in dropped}
        first = _before_updates(update, updates.values())
        nodes: list[Node] = list(first)
        written = _targets(step)
        for node in step.nodes:
            if node.op == _ACCUMULATE and node.inputs[0] in updates:
                buffer, gradient = node.inputs[:2]
                moved = updates[buffer]
                inputs = tuple(gradient if name == buffer else name for name in moved.inputs)
                # Named after the gradient it ends, so that both are found together in the generated code.
                gradient_of, _, number = node.name.rpartition(_ACCUMULATE)
                nodes.append(replace(moved, name=gradient_of + moved.op + number, inputs=inputs))
            elif not _writes_only(written, node, dropped):
                nodes.append(node)
        moved_names = {node.name for node in (*first, *updates.values())}
        written = _targets(update)
        nodes += [
            node for node in update.nodes if node.name not in moved_names and not _writes_only(written, node, dropped)
        ]
        writes = tuple(
            (value, state) for entry in (step, update) for value, state in entry.writes if state not in dropped
        )
        fused = _assemble(step, update, tuple(nodes), writes, dropped)
        empty = Graph("update", (), (), (), {})
        used = _used(program.entries["infer"], fused)
        state = tuple(tensor for tensor in program.state if tensor.name in used)
        entries = {"infer": program.entries["infer"], "step": verify_graph(fused), "update": empty}
        return replace(program, entries=entries, state=state, is_fused=True)


def _before_updates(update: Graph, moved: Iterable[Node]) -> list[Node]:
    """What the updates share and the step has to begin with: the rate of this update."""
    producers = update.producers()
    found: set[str] = set()
    pending = [name for node in moved for name in node.inputs]
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            pending += node.inputs
    return [node for node in update.nodes if node.name in found]


def _targets(graph: Graph) -> dict[str, list[str]]:
    """The state that each value becomes."""
    found: dict[str, list[str]] = {}
    for value, state in graph.writes:
        found.setdefault(value, []).append(state)
    return found


def _writes_only(written: Mapping[str, list[str]], node: Node, dropped: set[str]) -> bool:
    """Whether all a node is for is state that no longer exists."""
    targets = [state for value in node.outputs for state in written.get(value, ())]
    return bool(targets) and all(state in dropped for state in targets)


def _assemble(
    step: Graph, update: Graph, nodes: tuple[Node, ...], writes: tuple[tuple[str, str], ...], dropped: set[str]
) -> Graph:
    types = {**update.types, **step.types}
    read = {name for node in nodes for name in node.inputs} | {state for _, state in writes} | set(step.outputs)
    state = tuple(name for name in dict.fromkeys((*step.state, *update.state)) if name in read and name not in dropped)
    produced = {name for node in nodes for name in node.outputs if name}
    known = produced | set(state) | set(step.inputs)
    return Graph(
        "step",
        step.inputs,
        step.outputs,
        nodes,
        {name: tensor_type for name, tensor_type in types.items() if name in known},
        {},
        state,
        writes,
    )


def _used(*graphs: Graph) -> set[str]:
    return {name for graph in graphs for name in graph.state}
