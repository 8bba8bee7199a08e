"""Makes a loss and its gradient one node, where that is declared to be one: most of their code is the same.

It takes the place of the loss. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program

TOGETHER = {("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"): "SoftmaxCrossEntropyLossWithGrad"}
"""Losses (prediction, target) -> (loss, saved), their gradients (dY, saved, target), and what is both."""


@dataclass(frozen=True)
class FuseLossGrad:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_fused(program.entries["step"]))


def _fused(graph: Graph) -> Graph:
    producers, consumers = graph.producers(), graph.consumers()
    kept = {*graph.outputs, *(value for value, _ in graph.writes)}
    at = {node.name: i for i, node in enumerate(graph.nodes)}
    made: dict[str, Node] = {}
    gone: set[str] = set()
    between: set[str] = set()
    for gradient in graph.nodes:
        loss = producers.get(gradient.inputs[1]) if len(gradient.inputs) == 3 else None
        op = TOGETHER.get((loss.op, gradient.op)) if loss is not None else None
        if loss is None or op is None or not _are_plain(loss, gradient):
            continue
        saved, upstream = gradient.inputs[1], producers.get(gradient.inputs[0])
        is_late = upstream is not None and at[upstream.name] >= at[loss.name]
        if is_late or saved in kept or len(consumers[saved]) > 1:
            continue
        made[loss.name] = replace(
            loss,
            op=op,
            name=loss.name.replace(loss.op, op),
            inputs=(*loss.inputs, gradient.inputs[0]),
            outputs=(loss.outputs[0], gradient.outputs[0]),
        )
        gone.add(gradient.name)
        between.add(saved)
    if not made:
        return graph
    nodes = tuple(made.get(node.name, node) for node in graph.nodes if node.name not in gone)
    types = {name: tensor_type for name, tensor_type in graph.types.items() if name not in between}
    return verify_graph(replace(graph, nodes=nodes, types=types))


def _are_plain(loss: Node, gradient: Node) -> bool:
    """Of the same labels, without what only the two have: class weights, an ignored class, smoothing, a loss by row."""
    return (
        len(loss.inputs) == 2
        and loss.inputs[1] == gradient.inputs[2]
        and len(loss.outputs) == 2
        and bool(loss.outputs[0])
        and loss.attributes == gradient.attributes
        and not loss.attributes.keys() - {"reduction"}
        and loss.attributes.get("reduction", "mean") != "none"
    )
