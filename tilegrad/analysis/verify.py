"""The verifier of graphs. It runs after every stage; what it lets through, later stages may rely on."""

from __future__ import annotations

from tilegrad.errors import InternalError, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


def infer_node(
    node: Node, types: dict[str, TensorType], constants: dict[str, Constant] | None = None
) -> tuple[TensorType, ...]:
    """The types of a node's outputs, one per output it names."""
    view = NodeView(node, types, constants or {})
    inferred = registry.get(node.op).infer(view)
    if len(node.outputs) > len(inferred):
        raise view.error(
            f"{node.op} has too many outputs", expected=f"at most {len(inferred)}", got=str(len(node.outputs))
        )
    return inferred[: len(node.outputs)]


def verify_graph(graph: Graph) -> Graph:
    """Checks single assignment, order, and every type; returns the graph so that stages can end with it."""
    known = {*graph.inputs, *graph.constants, *graph.state}
    for name in known:
        if name not in graph.types:
            raise InternalError(f"graph '{graph.name}': '{name}' has no type")
    for name, constant in graph.constants.items():
        if graph.types[name] != constant.type:
            raise InternalError(f"graph '{graph.name}': constant '{name}' is not of its declared type")
    types, constants = dict(graph.types), dict(graph.constants)
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            if name not in known:
                raise UserError(f"reads '{name}', which nothing before it produces", stage="verify", node=node.name)
        inferred = infer_node(node, types, constants)
        for name, wanted in zip(node.outputs, inferred, strict=True):
            if not name:
                continue
            if name in known:
                raise UserError(f"writes '{name}', which exists already", stage="verify", node=node.name)
            if graph.types.get(name) != wanted:
                raise UserError(
                    f"{node.op}: the declared type of output '{name}' is wrong",
                    stage="verify",
                    node=node.name,
                    expected=str(wanted),
                    got=str(graph.types.get(name)),
                )
            known.add(name)
    for name in graph.outputs:
        if name not in known:
            raise UserError(f"output '{name}' of graph '{graph.name}' is never produced", stage="verify")
    states = set(graph.state)
    for value, state in graph.writes:
        if value not in known or state not in states or graph.types[value] != graph.types[state]:
            raise InternalError(f"graph '{graph.name}': cannot write '{value}' to state '{state}'")
    return graph
