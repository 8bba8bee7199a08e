"""Where an operator says that an output may lie over an input, it does not matter to the result: on nodes drawn for
every registered operator, so that a new one is tested without being named here."""

from __future__ import annotations

from functools import cache
from itertools import islice
from zlib import crc32

import numpy as np
import pytest

from tests.support.in_place import assert_in_place
from tilegrad.calibration.examples import graphs, operators
from tilegrad.ir.graph import Graph
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.ops.example import Draw

LARGEST = 9
GRAPHS_EACH = 10


def _has_pair(graph: Graph, op: str) -> bool:
    views = [NodeView(node, graph.types) for node in graph.nodes if node.op == op]
    return any(
        view.has_output(output) and view.has_input(position)
        for view in views
        for output, position in registry.get(op).in_place(view)
    )


@cache
def _drawn() -> dict[str, list[Graph]]:
    """Small graphs by the operators that occur in them: of each operator and of its gradients. What is drawn of one
    does not depend on which others there are."""
    found: dict[str, list[Graph]] = {name: [] for name in operators()}
    for name, operator in operators().items():
        for graph in islice(graphs(operator, Draw(0, crc32(name.encode()), largest=LARGEST)), GRAPHS_EACH):
            for op in {node.op for node in graph.nodes if node.op in found}:
                found[op].append(graph)
    return found


def _content(tensor: TensorType, draw: np.random.Generator) -> np.ndarray:
    """Positive, and integers that serve as classes and indices too."""
    if tensor.dtype is DType.F32:
        return draw.uniform(0.1, 2.0, tensor.shape).astype(np.float32)
    return draw.integers(0, 2, tensor.shape).astype(tensor.dtype.numpy)


def test_every_operator_is_drawn() -> None:
    """One that is not needs a method `example`, or an operator whose gradient it is."""
    undrawn = {"LearningRate"}  # two numbers of two types, and no output over an input
    assert {op for op, found in _drawn().items() if not found} <= undrawn


@pytest.mark.parametrize("op", [op for op, found in _drawn().items() if any(_has_pair(graph, op) for graph in found)])
def test_outputs_over_inputs_give_the_same_bits(op: str) -> None:
    draw = np.random.default_rng(0)
    for graph in [graph for graph in _drawn()[op] if _has_pair(graph, op)][:GRAPHS_EACH]:
        feeds = {name: _content(graph.types[name], draw) for name in graph.inputs}
        assert assert_in_place(graph, feeds) > 0
