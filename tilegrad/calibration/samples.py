"""Random tiles of every kernel: the nests of random nodes and of their gradients, cut at random."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilegrad.calibration.counting import Sample
from tilegrad.calibration.examples import graphs
from tilegrad.ir.graph import Graph
from tilegrad.ir.nest import AxisKind, Nest, Range, operand_box, ordered_sizes
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw

LARGEST_TILE_BYTES = 160 * 1024
MOST_STEPS = 250_000
CORE_COUNTS = (1, 2, 4, 8, 8, 8)


def nests_of(graph: Graph) -> list[tuple[str, Nest]]:
    """(operator, nest) of every node that computes."""
    found = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        if not operator.is_view:
            found += [(node.op, nest) for nest in operator.nests(NodeView(node, graph.types))]
    return found


def random_tile(nest: Nest, draw: Draw) -> dict[str, Range]:
    """Small enough for a scratchpad and for counting."""
    whole = {axis.name: axis.extent for axis in nest.axes}
    sizes = ordered_sizes(nest, {n: e if draw.is_so(0.6) else draw.between(1, max(e, 1)) for n, e in whole.items()})
    while True:
        tile = {}
        for axis in nest.axes:
            last = max(0, -(-axis.extent // sizes[axis.name]) - 1)
            start = int(draw.generator.integers(0, last + 1)) * sizes[axis.name]
            tile[axis.name] = Range(start, min(axis.extent, start + sizes[axis.name]))
        size_bytes = sum(4 * prod(r.size for r in operand_box(operand, tile)) for operand in nest.present)
        steps = prod(r.size for r in tile.values())
        if size_bytes <= LARGEST_TILE_BYTES and steps <= MOST_STEPS:
            return tile
        cuttable = [axis.name for axis in nest.axes if axis.kind is not AxisKind.INNER and sizes[axis.name] > 1]
        if not cuttable:
            return tile
        largest = max(cuttable, key=lambda name: sizes[name])
        sizes = ordered_sizes(nest, {**sizes, largest: -(-sizes[largest] // 2)})


def draw_samples(operator: Operator, draw: Draw) -> Iterator[list[Sample]]:
    """The nests of one node after the other, each cut at random, on varying numbers of cores."""
    for number, graph in enumerate(graphs(operator, draw)):
        yield [
            Sample(op, nest, random_tile(nest, draw), draw.one_of(*CORE_COUNTS), seed=number)
            for op, nest in nests_of(graph)
            if all(axis.extent > 0 for axis in nest.axes)
        ]
