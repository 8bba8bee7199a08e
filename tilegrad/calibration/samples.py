"""Random tiles of every kernel: the nests of random nodes and of their gradients, cut at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from tilegrad.calibration.counting import Case
from tilegrad.calibration.sketches import Draw, Sketch, between
from tilegrad.errors import UserError
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import AxisKind, Nest, Range, operand_box, ordered_sizes
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.passes.autodiff import append_backward
from tilegrad.passes.builder import GraphBuilder

LARGEST_TILE_BYTES = 160 * 1024
MOST_STEPS = 250_000
CORE_COUNTS = (1, 8, 2, 8, 4, 8)


def nests_of(sketch: Sketch) -> list[tuple[str, Nest]]:
    """(operator, nest) of the node and of its gradients."""
    builder = GraphBuilder("sample")
    names = []
    for i, entry in enumerate(sketch.inputs):
        if entry is None:
            names.append("")
            continue
        is_typed = len(entry) == 2 and isinstance(entry[0], DType)
        tensor_type = TensorType(*entry) if is_typed else TensorType(DType.F32, entry)  # type: ignore[arg-type]
        names.append(builder.add_input(f"x{i}", tensor_type))
    results = tuple(f"y{i}" if wanted else "" for i, wanted in enumerate(sketch.outputs))
    builder.append(Node("node", sketch.op, tuple(names), results, dict(sketch.attributes)))
    graph = builder.finish(filter(None, results))
    if sketch.wanted:
        builder = GraphBuilder.from_graph(graph)
        seed = builder.add_input("seed", graph.types["y0"])
        gradients: dict[str, str] = {}
        append_backward(builder, graph, "y0", seed, [f"x{i}" for i in sketch.wanted], gradients.__setitem__)
        graph = builder.finish((*graph.outputs, *gradients.values()))
    found = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        if not operator.is_view:
            found += [(node.op, nest) for nest in operator.nests(NodeView(node, graph.types))]
    return found


def random_tile(nest: Nest, draw: Draw) -> dict[str, Range]:
    """Small enough for a scratchpad and for counting."""
    wished = {}
    for axis in nest.axes:
        wished[axis.name] = axis.extent if draw.random() < 0.6 else between(draw, 1, max(axis.extent, 1))
    sizes = ordered_sizes(nest, wished)
    while True:
        tile = {}
        for axis in nest.axes:
            last = max(0, -(-axis.extent // sizes[axis.name]) - 1)
            start = int(draw.integers(0, last + 1)) * sizes[axis.name]
            tile[axis.name] = Range(start, min(axis.extent, start + sizes[axis.name]))
        size_bytes = sum(
            4 * prod(r.size for r in operand_box(operand, tile))
            for operand in nest.operands
            if operand.value is not None
        )
        steps = prod(r.size for r in tile.values())
        if size_bytes <= LARGEST_TILE_BYTES and steps <= MOST_STEPS:
            return tile
        cuttable = [axis.name for axis in nest.axes if axis.kind is not AxisKind.INNER and sizes[axis.name] > 1]
        if not cuttable:
            return tile
        largest = max(cuttable, key=lambda name: sizes[name])
        sizes = ordered_sizes(nest, {**sizes, largest: -(-sizes[largest] // 2)})


@dataclass(frozen=True)
class Sample:
    op: str
    case: Case


def draw_samples(make: Callable[[Draw], Sketch], draw: Draw) -> Iterator[list[Sample]]:
    """The nests of one node after the other, endlessly, each cut at random, on varying numbers of cores."""
    number = 0
    while True:
        samples = []
        try:
            found = nests_of(make(draw))
        except UserError:
            found = []  # an impossible geometry
        for op, nest in found:
            if all(axis.extent > 0 for axis in nest.axes):
                number += 1
                cores = CORE_COUNTS[number % len(CORE_COUNTS)]
                samples.append(Sample(op, Case(nest, random_tile(nest, draw), cores, seed=number)))
        yield samples
