"""A convolution's weight gradient before its input gradient: the input, which only the first one reads, can go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program

_SPLIT = ("ConvGrad", "ConvTransposeGrad")


@dataclass(frozen=True)
class SplitConvGrad:
    """A program pass: valid in, valid out. The nests are the same, in another order."""

    def apply(self, program: Program) -> Program:
        return program.with_step(_split(program.entries["step"]))


def _split(graph: Graph) -> Graph:
    nodes = tuple(part for node in graph.nodes for part in _parts(node))
    return graph if nodes == graph.nodes else verify_graph(replace(graph, nodes=nodes))


def _parts(node: Node) -> Iterator[Node]:
    if node.op not in _SPLIT or not all(node.outputs[:2]):
        yield node
        return
    image, *others = node.outputs
    yield replace(node, name=f"{node.name}.weight", outputs=("", *others))
    yield replace(node, name=f"{node.name}.image", outputs=(image,))
