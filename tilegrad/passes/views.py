"""What views are of: a value by another name or shape, with the same bytes."""

from __future__ import annotations

from tilegrad.ir.graph import Graph
from tilegrad.ops import registry


def roots_of_views(graph: Graph) -> dict[str, str]:
    """For each view, the value at the end of its chain."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if registry.get(node.op).is_view:
            found[node.outputs[0]] = found.get(node.inputs[0], node.inputs[0])
    return found
