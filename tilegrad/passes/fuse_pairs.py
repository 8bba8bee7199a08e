"""What the passes share that make one node of two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node


def fuse_pairs(graph: Graph, second_op: str, fused: Callable[[Node, Node], Node | None]) -> Graph:
    """Where a node of `second_op` alone reads the result of another, `fused` of both, if it makes one, replaces them.

    It stands in the place of the first, whose result is the second's first input, if all else that the second reads is
    there by then.
    """
    producers, consumers = graph.producers(), graph.consumers()
    kept = {*graph.outputs, *(value for value, _ in graph.writes)}
    made_by = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    made: dict[str, Node] = {}
    gone: set[str] = set()
    between: set[str] = set()
    for second in graph.nodes:
        first = producers.get(second.inputs[0]) if second.op == second_op else None
        if first is None or len(consumers[second.inputs[0]]) > 1 or second.inputs[0] in kept:
            continue
        if any(made_by.get(name, -1) > made_by[second.inputs[0]] for name in second.inputs[1:]):
            continue
        node = fused(first, second)
        if node is not None:
            made[first.name] = node
            gone.add(second.name)
            between.add(second.inputs[0])
    if not made:
        return graph
    nodes = tuple(made.get(node.name, node) for node in graph.nodes if node.name not in gone)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in between}
    return verify_graph(replace(graph, nodes=nodes, types=types))
