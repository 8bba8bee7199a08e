"""Runs operators with an output over an input, wherever they say that this is allowed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.support.kernels import call_kernel, run_graph
from tilegrad.ir.graph import Graph
from tilegrad.ir.nest import whole
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


def assert_in_place(graph: Graph, feeds: Mapping[str, np.ndarray], cores: int = 3) -> int:
    """Each declared (output, input) pair of each node gives the same bits at one address; returns their number."""
    expected = run_graph(graph, feeds)
    pairs = 0
    for node in graph.nodes:
        operator = registry.get(node.op)
        if operator.is_view:
            continue
        view = NodeView(node, graph.types)
        for output, source in operator.in_place(view):
            if not view.has_output(output) or not view.has_input(source):
                continue
            pairs += 1
            values = {name: array.copy() for name, array in expected.items()}
            for i, temporary in enumerate(operator.temporaries(view)):
                values[view.temporary(i)] = np.zeros(temporary.shape, temporary.dtype.numpy)
            shared = values[node.inputs[source]]
            values[node.outputs[output]] = shared.reshape(graph.types[node.outputs[output]].shape)
            for nest in operator.nests(view):
                arrays = {
                    operand.name: None if operand.value is None else values[operand.value].reshape(operand.shape)
                    for operand in nest.operands
                }
                for core in range(cores):
                    call_kernel(node.op, nest, whole(nest), arrays, core, cores)
            for name in filter(None, node.outputs):
                assert values[name].tobytes() == expected[name].tobytes(), f"{node.op}: '{name}' over input {source}"
    return pairs
