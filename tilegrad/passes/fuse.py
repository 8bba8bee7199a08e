"""Puts together what exporters take apart: GELU in both forms, LayerNormalization, products with a transposed matrix.

A fused operator saves the intermediate tensors of the forward pass and has one gradient kernel. Only the last node of
a pattern is replaced; its other nodes stay if somebody else reads them, and die as dead code otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import pi, prod, sqrt

import numpy as np

from tilegrad.analysis.verify import verify_graph
from tilegrad.bounds import MAX_FOLDED_BYTES
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant, TensorType
from tilegrad.passes.canonicalize import remove_dead_code
from tilegrad.passes.patterns import Patterns, Polynomial

_HALF_GATED: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}  # x (1 + s) / 2
_ERF_ARGUMENT: Polynomial = {(1, 0): 1 / sqrt(2)}
_TANH_ARGUMENT: Polynomial = {(1, 0): sqrt(2 / pi), (3, 0): sqrt(2 / pi) * 0.044715}


def fuse_gelu(graph: Graph) -> Graph:
    """`x (1 + erf(x / √2)) / 2` and its tanh approximation, however they are multiplied out."""
    patterns = Patterns(graph)
    for node in graph.nodes:
        if node not in patterns:
            continue
        if node.op == "Erf":
            wanted, attributes = _ERF_ARGUMENT, {}
        elif node.op == "Tanh":
            wanted, attributes = _TANH_ARGUMENT, {"approximate": "tanh"}
        else:
            continue
        for x in patterns.ancestors(node.inputs[0]):
            if not patterns.equals(node.inputs[0], {x: (1, 0)}, wanted):
                continue
            atoms = {x: (1, 0), node.outputs[0]: (0, 1)}
            following = patterns.descendants(node)
            root = next((n for n in following if patterns.equals(n.outputs[0], atoms, _HALF_GATED)), None)
            if root is not None:
                patterns.replace(root, Node(root.name, "Gelu", (x,), root.outputs, dict(attributes)))
                break
    return patterns.finish()


def fuse_layer_normalization(graph: Graph) -> Graph:
    """`(x - mean) / sqrt(variance + epsilon)` over trailing dimensions, with the scale and bias that follow."""
    patterns = Patterns(graph)
    for node in graph.nodes:
        match = _match_normalization(patterns, node) if node.op in ("Div", "Mul") and node in patterns else None
        if match is None:
            continue
        x, axis, epsilon = match
        shape = graph.types[x].shape[axis:]
        if 4 * prod(shape) > MAX_FOLDED_BYTES:
            continue  # a scale of ones would be as large as that
        scale_node, scale = _following(patterns, node, "Mul", shape)
        last = scale_node or node
        bias_node, bias = _following(patterns, last, "Add", shape) if scale_node is not None else (None, "")
        last = bias_node or last
        if not scale:
            scale = _ones(shape, patterns.constants, patterns.types)
        inputs = (x, scale, bias) if bias else (x, scale)
        attributes: dict[str, Attribute] = {"axis": axis, "epsilon": epsilon}
        patterns.replace(last, Node(last.name, "LayerNormalization", inputs, last.outputs, attributes))
    return patterns.finish()


def _match_normalization(patterns: Patterns, node: Node) -> tuple[str, int, float] | None:
    """(x, first normalised dimension, epsilon) if the node is the division that ends a normalisation."""
    for centred, spread in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        inverse = node.op == "Mul"
        root = patterns.producers.get(spread)
        if inverse and root is not None and root.op in ("Reciprocal", "Div"):
            if root.op == "Div" and patterns.scalar(root.inputs[0]) != 1.0:
                continue
            root = patterns.producers.get(root.inputs[-1])
            inverse = False
        shifted = None if root is None else _under_root(patterns, root, -0.5 if inverse else 0.5)
        sub = patterns.producers.get(centred)
        if shifted is not None and sub is not None and sub.op == "Sub":
            found = _match_statistics(patterns, sub, shifted)
            if found is not None:
                return found
        if node.op == "Div":
            break
    return None


def _under_root(patterns: Patterns, node: Node, power: float) -> Node | None:
    """The Add of epsilon below a square root, or below a Pow with this exponent."""
    is_root = (node.op == "Sqrt" and power > 0) or (node.op == "Pow" and patterns.scalar(node.inputs[1]) == power)
    below = patterns.producers.get(node.inputs[0]) if is_root else None
    return below if below is not None and below.op == "Add" else None


def _match_statistics(patterns: Patterns, sub: Node, shifted: Node) -> tuple[str, int, float] | None:
    x, mean = sub.inputs
    first = _trailing_mean(patterns, mean)
    if first is None or first[0] != x:
        return None
    for variance, offset in (shifted.inputs, shifted.inputs[::-1]):
        epsilon = patterns.scalar(offset)
        second = _trailing_mean(patterns, variance)
        if epsilon is None or second is None or second[1] != first[1]:
            continue
        square = patterns.producers.get(second[0])
        if square is not None and _is_square_of(patterns, square, x, mean):
            return x, first[1], epsilon
    return None


def _trailing_mean(patterns: Patterns, value: str) -> tuple[str, int] | None:
    """(what is averaged, first of the trailing dimensions that are averaged over and kept)."""
    node = patterns.producers.get(value)
    if node is None or node.op != "ReduceMean" or node.attributes.get("keepdims", 1) != 1:
        return None
    rank = patterns.graph.types[node.inputs[0]].rank
    axes = node.attributes.get("axes", ())
    if not isinstance(axes, tuple) or not axes:
        return None
    normal = sorted(int(axis) % rank for axis in axes)
    return (node.inputs[0], normal[0]) if normal == list(range(normal[0], rank)) else None


def _is_square_of(patterns: Patterns, square: Node, x: str, mean: str) -> bool:
    """Of `x - mean`, which some exporters compute twice."""
    is_square = (square.op == "Pow" and patterns.scalar(square.inputs[1]) == 2.0) or (
        square.op == "Mul" and square.inputs[0] == square.inputs[1]
    )
    sub = patterns.producers.get(square.inputs[0]) if is_square else None
    return sub is not None and sub.op == "Sub" and sub.inputs == (x, mean)


def _following(patterns: Patterns, node: Node, op: str, shape: tuple[int, ...]) -> tuple[Node | None, str]:
    """The node's only reader, if it applies a constant of this shape; and that constant."""
    value = node.outputs[0]
    readers = patterns.consumers.get(value, [])
    if len(readers) != 1 or readers[0].op != op or patterns.is_output(value) or value not in readers[0].inputs:
        return None, ""
    others = [name for name in readers[0].inputs if name != value]
    if len(others) != 1 or others[0] not in patterns.constants or patterns.types[others[0]].shape != shape:
        return None, ""
    return readers[0], others[0]


def _ones(shape: tuple[int, ...], constants: dict[str, Constant], types: dict[str, TensorType]) -> str:
    """The scale of a normalisation that has none."""
    ones = Constant(np.ones(shape, np.float32))
    name = f"tg.ones_{'x'.join(map(str, shape))}"
    while name in types and constants.get(name) != ones:
        name += "_"
    constants[name], types[name] = ones, ones.type
    return name


def fuse_transposed_operands(graph: Graph) -> Graph:
    """A MatMul that reads `Transpose(w)` with the last two dimensions swapped reads `w` itself, transposed in place."""
    producers = graph.producers()
    nodes = []
    for node in graph.nodes:
        if node.op in ("MatMul", "FusedMatMul"):
            inputs, attributes = list(node.inputs), dict(node.attributes)
            for position, flag in enumerate(("transA", "transB")):
                transpose = producers.get(inputs[position])
                if transpose is not None and _swaps_last_two(transpose, graph):
                    inputs[position] = transpose.inputs[0]
                    attributes[flag] = 1 - int(attributes.get(flag, 0) == 1)
            if tuple(inputs) != node.inputs:
                node = Node(node.name, "FusedMatMul", tuple(inputs), node.outputs, attributes)
        nodes.append(node)
    return remove_dead_code(replace(graph, nodes=tuple(nodes)))


def _swaps_last_two(node: Node, graph: Graph) -> bool:
    rank = graph.types[node.inputs[0]].rank
    perm = node.attributes.get("perm", tuple(reversed(range(rank))))
    return node.op == "Transpose" and rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


PATTERNS: Mapping[str, Callable[[Graph], Graph]] = {
    "fuse-gelu": fuse_gelu,
    "fuse-layer-normalization": fuse_layer_normalization,
    "fuse-transposed-operands": fuse_transposed_operands,
}
"""Each is applied once, in this order."""


def fuse(graph: Graph) -> Graph:
    """All patterns, once each."""
    for pattern in PATTERNS.values():
        graph = pattern(graph)
    return verify_graph(graph)
