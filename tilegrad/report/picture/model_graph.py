"""The model as rows: a forward node, and beside it what its gradient became.

Gradients are named after the node they belong to (`NODE_Grad/…`), in this record as in the C.
"""

from __future__ import annotations

from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.ir.graph import Graph

GRADIENT = "_Grad/"


def origin_of(node: str) -> str:
    """The forward node that a node belongs to."""
    return node.split(GRADIENT)[0]


def graph_json(compiled: Compiled) -> dict[str, Any]:
    """`rows` in the order of execution; `edges` are pairs of rows that a forward value connects."""
    step = compiled.program.entries["step"]
    rows: dict[str, dict[str, Any]] = {}
    for node in step.nodes:
        is_gradient = GRADIENT in node.name
        row = rows.setdefault(origin_of(node.name), {"name": origin_of(node.name), "forward": [], "gradient": []})
        shapes = [str(step.types[name]) for name in node.outputs if name]
        row["gradient" if is_gradient else "forward"].append({"op": node.op, "node": node.name, "types": shapes})
    return {"rows": list(rows.values()), "edges": _edges(step, list(rows))}


def _edges(step: Graph, names: list[str]) -> list[tuple[int, int]]:
    place = {name: i for i, name in enumerate(names)}
    made = {
        output: place[origin_of(node.name)]
        for node in step.nodes
        if GRADIENT not in node.name
        for output in node.outputs
        if output
    }
    found = {
        (made[name], place[origin_of(node.name)])
        for node in step.nodes
        if GRADIENT not in node.name
        for name in node.inputs
        if name in made
    }
    return sorted(edge for edge in found if edge[0] != edge[1])
