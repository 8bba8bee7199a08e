"""How large the numbers of an integer input may be: the rows of what they index.

An index out of range reads nothing in the C, and training goes on with NaN; so data is checked before it is sent.
"""

from __future__ import annotations

from tilegrad.ir.graph import Graph

_MOVES = frozenset(
    (
        *("Identity", "Copy", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"),
        *("Slice", "Split", "Concat"),
    )
)


def index_bounds(graph: Graph) -> dict[str, int]:
    """For each integer input that is used as indices, moved or not, the smallest extent that it indexes."""
    bounds: dict[str, int] = {}
    for name in graph.inputs:
        if graph.types[name].dtype.is_float:
            continue
        same = {name}
        extents = []
        for node in graph.nodes:
            if node.op in ("Gather", "GatherElements") and node.inputs[1] in same:
                axis = node.attributes.get("axis", 0)
                extents.append(graph.types[node.inputs[0]].shape[axis if isinstance(axis, int) else 0])
            moves = node.op in _MOVES or (node.op in ("Gather", "GatherElements") and node.inputs[0] in same)
            if moves and any(value in same for value in node.inputs):
                same.update(value for value in node.outputs if value and not graph.types[value].dtype.is_float)
        if extents:
            bounds[name] = min(extents)
    return bounds
