"""Random nodes of any registered operator.

Most operators say nothing about themselves: which of the usual kinds of inputs one takes is found by asking `infer`.
One that needs attributes, or inputs that fit each other in its own way, has a method `example`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, Shape, floats
from tilegrad.passes.autodiff import append_backward
from tilegrad.passes.builder import GraphBuilder

TRIES = 50
Types = tuple[TensorType, ...]
Kind = Callable[[Draw], Types]


def _alike(draw: Draw, dtype: DType, count: int) -> Types:
    """Of a map, of its gradient, of a mean loss."""
    rank = draw.one_of(1, 1, 1, 2, 3, 4)
    shape = tuple(draw.between(1, (6000, 90, 24, 12)[rank - 1]) for _ in range(rank))
    return (TensorType(dtype, shape),) * count


def _broadcast(draw: Draw, dtype: DType, count: int) -> Types:
    full = (*(draw.between(1, 12) for _ in range(draw.one_of(0, 1, 2, 3, 4))), draw.between(1, 200))
    shapes = [full, *(tuple(1 if draw.is_so() else extent for extent in full) for _ in range(count - 1))]
    return tuple(TensorType(dtype, shapes[i]) for i in draw.order(count))


def _with_channels(draw: Draw, count: int) -> Types:
    """Of a normalisation, of a pool of whole planes."""
    shape: Shape = draw.image() if draw.is_so(0.7) else (draw.one_of(1, 1, 2, 4), draw.between(1, 600))
    return floats(shape, *((shape[1],),) * count)


def _with_rows(draw: Draw, count: int) -> Types:
    rows, width = draw.between(1, 100), draw.between(1, 300)
    return floats((rows, width), *((width,),) * count)


def _update(draw: Draw, slots: int, counts_updates: bool) -> Types:
    """Weight, gradient and slots, the learning rate, and where it is wanted the number of updates."""
    tensors = floats(*((draw.between(1, 6000),),) * (2 + slots), ())
    return (*tensors, TensorType(DType.I64, ())) if counts_updates else tensors


def _labelled(draw: Draw, label: DType, is_weighted: bool) -> Types:
    rows, classes = draw.between(1, 40), draw.between(2, 120)
    positions = () if draw.is_so(0.7) else (draw.between(1, 6),)
    weights = floats((classes,)) if is_weighted else ()
    return (*floats((rows, classes, *positions)), TensorType(label, (rows, *positions)), *weights)


_WHOLE = (DType.I32, DType.I64, DType.BOOL, DType.I16)
_KINDS: tuple[Kind, ...] = (
    *(partial(_alike, dtype=DType.F32, count=count) for count in (1, 2, 3)),
    *(partial(_broadcast, dtype=DType.F32, count=count) for count in (2, 3)),
    *(partial(_with_channels, count=count) for count in (0, 1, 2, 4)),
    *(partial(_with_rows, count=count) for count in (1, 2)),
    *(partial(_update, slots=slots, counts_updates=counts) for slots, counts in product((0, 1, 2), (False, True))),
    *(partial(_labelled, label=label, is_weighted=w) for label, w in product((DType.I64, DType.I32), (False, True))),
)
_WHOLE_KINDS: tuple[Kind, ...] = tuple(
    partial(make, dtype=dtype, count=count)
    for dtype in _WHOLE
    for make, count in ((_alike, 1), (_alike, 2), (_broadcast, 2))
)


def _node(operator: Operator, example: Example) -> tuple[Node, dict[str, TensorType]]:
    types = {f"x{i}": found for i, found in enumerate(example.inputs) if found is not None}
    inputs = tuple("" if found is None else f"x{i}" for i, found in enumerate(example.inputs))
    names = tuple(f"y{i}" if is_wanted else "" for i, is_wanted in enumerate(example.outputs or (True,)))
    return Node("node", operator.name, inputs, names, dict(example.attributes)), types


def _outputs(operator: Operator, example: Example) -> int:
    """How many outputs the operator has, 0 if it refuses the example."""
    node, types = _node(operator, example)
    try:
        return len(operator.infer(NodeView(node, types)))
    except UserError:
        return 0


def graph_of(operator: Operator, example: Example, draw: Draw) -> Graph:
    """The node, and the gradients of some of its inputs where it has any; their upstream is the input `seed`."""
    node, types = _node(operator, example)
    builder = GraphBuilder("example")
    for name, found in types.items():
        builder.add_input(name, found)
    builder.append(node)
    graph = builder.finish(filter(None, node.outputs))
    inputs = [i for i in range(len(example.inputs)) if i not in operator.nondifferentiable_inputs]
    able = [f"x{i}" for i in inputs if f"x{i}" in types and types[f"x{i}"].dtype is DType.F32]
    wanted = able if draw.is_so() else [name for name in able if draw.is_so()]
    has_gradient = type(operator).gradient is not Operator.gradient and "y0" in graph.types
    if not wanted or not has_gradient or graph.types["y0"].dtype is not DType.F32:
        return graph
    try:
        return _with_gradients(graph, wanted)
    except UserError:
        return graph  # no gradient of this one


def _with_gradients(graph: Graph, wanted: list[str]) -> Graph:
    builder = GraphBuilder.from_graph(graph)
    seed = builder.add_input("seed", graph.types["y0"])
    gradients: dict[str, str] = {}
    append_backward(builder, graph, "y0", seed, wanted, gradients.__setitem__)
    return builder.finish((*graph.outputs, *gradients.values()))


def examples(operator: Operator, draw: Draw) -> Iterator[Example]:
    """Nodes that an operator accepts: its own examples, or its attributes with inputs of a kind that it takes."""

    def complete(kind: Kind) -> Example:
        own = operator.example(draw) or Example(())
        return own if own.inputs else replace(own, inputs=kind(draw))

    def is_accepted(kind: Kind) -> bool:
        return any(_outputs(operator, complete(kind)) for _ in range(3))

    accepted = [[kind for kind in kinds if is_accepted(kind)] for kinds in (_KINDS, _WHOLE_KINDS)]
    able, tries = [kinds for kinds in accepted if kinds], 0
    while able and tries < TRIES:
        example = complete(draw.one_of(*able[0 if draw.is_so(0.7) else -1]))
        count, tries = _outputs(operator, example), tries + 1
        if count:
            yield replace(example, outputs=example.outputs or (True,) * count)
            tries = 0


def graphs(operator: Operator, draw: Draw) -> Iterator[Graph]:
    """One graph after the other, without end; none where no example is found."""
    return (graph_of(operator, example, draw) for example in examples(operator, draw))


def operators() -> Mapping[str, Operator]:
    """Those that have kernels of their own, or the gradient of which has."""
    found = {name: registry.get(name) for name in registry.names()}
    return {name: operator for name, operator in found.items() if not operator.is_view}
