"""Removes what computes nothing: identities in all their forms, and nodes and constants that nobody needs."""

from __future__ import annotations

from dataclasses import replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node

# These are identities when their output has the type of their input.
_SAME_WHEN_SAME_TYPE = frozenset(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Cast"))


def canonicalize(graph: Graph) -> Graph:
    """Dropout stays: it is an identity at inference only."""
    return verify_graph(remove_dead_code(own_statistics(remove_identities(graph))))


def own_statistics(graph: Graph) -> Graph:
    """BatchNormalization in training mode whose new statistics nobody reads needs none of the old ones either."""
    types = dict(graph.types)
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    nodes = []
    for node in graph.nodes:
        is_training = node.op == "BatchNormalization" and bool(node.attributes.get("training_mode", 0))
        if is_training and not any(name in read for name in node.outputs[1:]):
            saved = tuple(f"{node.outputs[0]}.{word}" for word in ("saved_mean", "saved_inv_std"))
            if all(name not in types for name in saved):
                types |= dict.fromkeys(saved, graph.types[node.inputs[1]])
                attributes = {key: value for key, value in node.attributes.items() if key == "epsilon"}
                outputs = (node.outputs[0], "", "", *saved)
                node = Node(node.name, "BatchNormInternal", node.inputs[:3], outputs, attributes)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


def _is_identity(node: Node, graph: Graph) -> bool:
    if len(node.outputs) != 1 or not node.inputs:
        return False
    if node.op == "Transpose":
        perm = node.attributes.get("perm")
        rank = graph.types[node.inputs[0]].rank
        return perm == tuple(range(rank)) or rank < 2
    return node.op in _SAME_WHEN_SAME_TYPE and graph.types[node.inputs[0]] == graph.types[node.outputs[0]]


def remove_identities(graph: Graph) -> Graph:
    """Readers of an identity read its source. A graph output keeps its name."""
    produced = {name for node in graph.nodes for name in node.outputs}
    source_of: dict[str, str] = {}
    kept = []
    for node in graph.nodes:
        node = node.with_inputs(tuple(source_of.get(name, name) for name in node.inputs))
        if not _is_identity(node, graph):
            kept.append(node)
            continue
        source, output = node.inputs[0], node.outputs[0]
        if output not in graph.outputs:
            source_of[output] = source
        elif source in produced and source not in graph.outputs and source not in source_of.values():
            # The node that computes the source now computes the output directly.
            kept = [_renamed(other, source, output) for other in kept]
            source_of[source] = output
        else:
            kept.append(node)
    return replace(graph, nodes=tuple(kept))


def _renamed(node: Node, old: str, new: str) -> Node:
    def swap(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    return replace(node, inputs=swap(node.inputs), outputs=swap(node.outputs))


def remove_dead_code(graph: Graph) -> Graph:
    """Keeps what outputs and state writes depend on; inputs and state stay whether they are read or not."""
    wanted = {*graph.outputs, *(value for value, _ in graph.writes)}
    kept = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs if name):
            kept.append(node)
            wanted.update(filter(None, node.inputs))
    nodes = tuple(reversed(kept))
    constants = {name: constant for name, constant in graph.constants.items() if name in wanted}
    named = {*graph.inputs, *graph.state, *constants, *(name for node in nodes for name in node.outputs)}
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name in named}
    return replace(graph, nodes=nodes, constants=constants, types=types)
