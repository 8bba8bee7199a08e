"""Checks of one operator: forward and gradient against PyTorch and finite differences, tiled == untiled bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from tests.support.kernels import run_graph
from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.passes.autodiff import append_backward
from tilegrad.passes.builder import GraphBuilder

TorchFunction = Callable[..., torch.Tensor]


def one_node_graph(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    outputs: Sequence[bool] = (True,),
) -> Graph:
    """A graph of one node: inputs are called x0, x1, …, outputs y0, y1, …"""
    builder = GraphBuilder("test")
    names = []
    for i, array in enumerate(inputs):
        if array is None:
            names.append("")
            continue
        dtype = next(each for each in DType if each.numpy == array.dtype)
        names.append(builder.add_input(f"x{i}", TensorType(dtype, array.shape)))
    results = tuple(f"y{i}" if wanted else "" for i, wanted in enumerate(outputs))
    builder.append(Node("node", op, tuple(names), results, dict(attributes or {})))
    return verify_graph(builder.finish(filter(None, results)))


def with_gradient(graph: Graph, differentiate: Sequence[str], output: str = "y0") -> tuple[Graph, dict[str, str]]:
    """The graph with its backward pass; the new input `seed` is the gradient of `output`."""
    builder = GraphBuilder.from_graph(graph)
    seed = builder.add_input("seed", graph.types[output])
    gradients: dict[str, str] = {}
    append_backward(builder, graph, output, seed, differentiate, gradients.__setitem__)
    return verify_graph(builder.finish((*graph.outputs, *gradients.values()))), gradients


def assert_same_bits_tiled(graph: Graph, feeds: Mapping[str, np.ndarray], seed: int = 0, rounds: int = 3) -> None:
    """Any tile sizes and any number of cores give the bits of the untiled, single-core run, for every value."""
    expected = run_graph(graph, feeds)
    draw = np.random.default_rng(seed)
    axes = {
        (axis.name, axis.extent)
        for node in graph.nodes
        if not registry.get(node.op).is_view
        for nest in registry.get(node.op).nests(NodeView(node, graph.types))
        for axis in nest.axes
    }
    for round_number in range(rounds):
        sizes = {name: int(draw.integers(1, max(extent, 1) + 1)) for name, extent in sorted(axes)}
        cores = (1, 2, 8)[round_number % 3]
        got = run_graph(graph, feeds, sizes, cores)
        for name, array in expected.items():
            assert array.tobytes() == got[name].tobytes(), f"'{name}' differs with tiles {sizes} on {cores} cores"


def _relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    if got.size == 0:
        return 0.0
    scale = max(float(np.max(np.abs(wanted))), 1e-6)
    return float(np.max(np.abs(got.astype(np.float64) - wanted))) / scale


def check_operator(
    op: str,
    inputs: Sequence[np.ndarray | None],
    torch_function: TorchFunction,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    differentiate: Sequence[int] = (0,),
    outputs: Sequence[bool] = (True,),
    tolerance: float = 2e-5,
    finite_differences: bool = True,
    seed: int = 0,
) -> None:
    """The whole check. `torch_function` takes the non-absent inputs (float64 tensors) and returns output 0.

    Forward and every gradient asked for are compared with PyTorch in float64; the gradients also with central
    differences of the float64 function along random directions; and tiling must not change a bit.
    """
    graph = one_node_graph(op, inputs, attributes, outputs=outputs)
    names = [f"x{i}" for i in differentiate]
    full, gradients = with_gradient(graph, names) if names else (graph, {})
    draw = np.random.default_rng(seed)
    feeds = {f"x{i}": array for i, array in enumerate(inputs) if array is not None}
    weights = draw.standard_normal(graph.types["y0"].shape).astype(np.float32)
    if names:
        feeds["seed"] = weights
    values = run_graph(full, feeds)

    tensors = {
        name: torch.tensor(array.astype(np.float64) if array.dtype == np.float32 else array)
        for name, array in feeds.items()
        if name != "seed"
    }
    for name in names:
        tensors[name].requires_grad_(True)
    wanted = torch_function(*tensors.values())
    assert _relative_error(values["y0"], wanted.detach().numpy()) <= tolerance, f"{op} forward"
    if names:
        (wanted * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    for name in names:
        expected = tensors[name].grad
        assert expected is not None
        got = values[gradients[name]]
        assert _relative_error(got, expected.numpy()) <= 4 * tolerance, f"{op} gradient of {name} against PyTorch"
        if finite_differences and got.size:
            direction = draw.standard_normal(got.shape)
            step = 1e-6

            def moved(distance: float, name: str = name, direction: np.ndarray = direction) -> float:
                with torch.no_grad():
                    shifted = {**tensors, name: tensors[name] + distance * torch.tensor(direction)}
                    result = torch_function(*shifted.values())
                    return float((result * torch.tensor(weights, dtype=torch.float64)).sum())

            slope = (moved(step) - moved(-step)) / (2 * step)
            ours = float((got.astype(np.float64) * direction).sum())
            scale = float(np.linalg.norm(got.astype(np.float64)) * np.linalg.norm(direction)) + 1e-6
            assert abs(ours - slope) <= 1e-4 * scale, f"{op} gradient of {name} against finite differences"
    assert_same_bits_tiled(full, feeds, seed)


__all__ = ["Constant", "assert_same_bits_tiled", "check_operator", "one_node_graph", "with_gradient"]
