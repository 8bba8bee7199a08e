"""AddRelu, AddReluGrad and FrozenAddReluGrad: against PyTorch, and bit for bit what separate operators give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder

SHAPE = st.lists(st.integers(1, 9), max_size=4)
IMAGE = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 7), st.integers(1, 7))
SEED = st.integers(0, 2**31)
AWKWARD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-41, -1e-41], np.float32)


def drawn(seed: int, *shapes: tuple[int, ...], awkward: bool = False) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    if not awkward:
        return arrays
    return [np.where(draw.random(a.shape) < 0.3, draw.choice(AWKWARD, a.shape), a).astype(np.float32) for a in arrays]


def apart(arrays: list[np.ndarray], *nodes: Node, outputs: tuple[str, ...]) -> Graph:
    """What the operator does, by separate ones."""
    builder = GraphBuilder("apart")
    for i, array in enumerate(arrays):
        builder.add_input(f"x{i}", TensorType(DType.F32, array.shape))
    for node in nodes:
        builder.append(node)
    return builder.finish(outputs)


def feeds(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


@given(SHAPE, SEED)
def test_relu_of_a_sum(shape: list[int], seed: int) -> None:
    a, b = drawn(seed, tuple(shape), tuple(shape))
    a = np.where(np.abs(a + b) < 1e-3, a + np.float32(0.25), a)
    check_operator("AddRelu", [a, b], lambda a, b: torch.relu(a + b), differentiate=(0, 1), seed=seed)


@given(SHAPE, SEED)
def test_gradient_of_a_relu_behind_a_sum(shape: list[int], seed: int) -> None:
    arrays = drawn(seed, *(tuple(shape),) * 3)
    check_operator("AddReluGrad", arrays, lambda a, b, y: (a + b) * (y > 0), differentiate=(), seed=seed)


@given(st.integers(1, 70), SEED, st.booleans())
def test_bits_are_those_of_two_operators(size: int, seed: int, awkward: bool) -> None:
    arrays = drawn(seed, *((size,),) * 3, awkward=awkward)
    add = Node("add", "Add", ("x0", "x1"), ("sum",))
    relu = Node("relu", "Relu", ("sum",), ("y0",))
    mask = Node("mask", "ReluGrad", ("sum", "x2"), ("y0",))
    for op, given_arrays, last in (("AddRelu", arrays[:2], relu), ("AddReluGrad", arrays, mask)):
        one = run_graph(one_node_graph(op, given_arrays), feeds(given_arrays))["y0"]
        two = run_graph(apart(given_arrays, add, last, outputs=("y0",)), feeds(given_arrays))["y0"]
        assert one.tobytes() == two.tobytes()


def of_an_image(shape: tuple[int, ...], seed: int, awkward: bool = False) -> list[np.ndarray]:
    """A, B, Y, X, scale, mean, inverse deviation."""
    arrays = drawn(seed, *(shape,) * 4, *((shape[1],),) * 2, awkward=awkward)
    return [*arrays, np.random.default_rng(seed).uniform(0.5, 2.0, shape[1]).astype(np.float32)]


@given(IMAGE, st.booleans(), SEED)
def test_gradient_of_a_normalisation_in_front(shape: tuple[int, ...], keeps: bool, seed: int) -> None:
    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        a, b, y, x, scale, mean, inverse = tensors
        image = x.detach().requires_grad_()
        factor, center = ((scale * inverse)[:, None, None], mean[:, None, None])
        ((image - center) * factor * ((a + b) * (y > 0))).sum().backward()
        assert image.grad is not None
        return image.grad

    outputs = (True, True, True, keeps)
    check_operator(
        "FrozenAddReluGrad", of_an_image(shape, seed), reference, differentiate=(), outputs=outputs, seed=seed
    )


@given(IMAGE.filter(lambda shape: shape[2] * shape[3] > 1), SEED, st.booleans())
def test_bits_are_those_of_three_operators(shape: tuple[int, ...], seed: int, awkward: bool) -> None:
    """Of images of one element the pass takes none: their sums are over the samples, and have other bits."""
    arrays = of_an_image(shape, seed, awkward)
    nodes = (
        Node("add", "Add", ("x0", "x1"), ("sum",)),
        Node("mask", "ReluGrad", ("sum", "x2"), ("y3",)),
        Node("norm", "FrozenBatchNormalizationGrad", ("y3", "x4", "x3", "x5", "x6"), ("y0", "y1", "y2")),
    )
    names = ("y0", "y1", "y2", "y3")
    several = run_graph(apart(arrays, *nodes, outputs=names), feeds(arrays))
    one = run_graph(one_node_graph("FrozenAddReluGrad", arrays, outputs=(True,) * 4), feeds(arrays))
    for name in names:
        np.testing.assert_array_equal(one[name], several[name])
        zeros = one[name] == 0.0
        assert np.array_equal(np.signbit(one[name][zeros]), np.signbit(several[name][zeros]))


def test_nothing_is_broadcast() -> None:
    with pytest.raises(UserError) as error:
        one_node_graph("AddRelu", drawn(1, (2, 3), (3,)))
    assert str(error.value) == (
        "node 'node': AddRelu: the operand b ('x1') has a wrong shape\n  expected: [2, 3]\n  got: [3]"
    )


def test_a_normalisation_s_input_has_the_shape_of_its_gradient() -> None:
    arrays = of_an_image((1, 2, 3, 3), 1)
    arrays[3] = arrays[3][:, :, :2]
    with pytest.raises(UserError) as error:
        one_node_graph("FrozenAddReluGrad", arrays, outputs=(True,) * 3)
    assert str(error.value) == (
        "node 'node': FrozenAddReluGrad: the forward input ('x3') has a wrong shape\n"
        "  expected: [1, 2, 3, 3]\n  got: [1, 2, 2, 3]"
    )
