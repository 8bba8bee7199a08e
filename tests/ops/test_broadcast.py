"""Operators of several tensors, broadcast together, against PyTorch, NumPy and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.types import DType

SEED = st.integers(0, 2**31)
INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer)


def shapes(count: int, min_side: int = 1) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    return mutually_broadcastable_shapes(num_shapes=count, max_dims=4, min_side=min_side, max_side=6).map(
        lambda drawn: drawn.input_shapes
    )


def distinct(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values no two of which are close, so that no comparison of them is."""
    return (draw.permutation(4096)[: int(np.prod(shape))].reshape(shape) / 1024 - 2).astype(np.float32)


def run(op: str, *inputs: np.ndarray, **attributes: float | str) -> np.ndarray:
    graph = one_node_graph(op, inputs, attributes)
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    assert_same_bits_tiled(graph, feeds)
    return run_graph(graph, feeds)["y0"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@given(shapes=shapes(2, min_side=0), seed=SEED)
def test_arithmetic(op: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal(shapes[0]).astype(np.float32)
    b = (draw.uniform(0.5, 2, shapes[1]) * draw.choice([-1, 1], shapes[1])).astype(np.float32)
    function = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}[op]
    check_operator(op, [a, b], function, differentiate=(0, 1), seed=seed)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(shapes=shapes(2), seed=SEED)
def test_integer_arithmetic_wraps_like_numpy(dtype: DType, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    info = np.iinfo(dtype.numpy)
    a, b = (draw.integers(info.min, info.max, shape, dtype.numpy, endpoint=True) for shape in shapes)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("Add", a, b), np.asarray(a + b))
        np.testing.assert_array_equal(run("Sub", a, b), np.asarray(a - b))
        np.testing.assert_array_equal(run("Mul", a, b), np.asarray(a * b))
        np.testing.assert_array_equal(run("Max", a, b), np.maximum(a, b))
        np.testing.assert_array_equal(run("Min", a, b, a), np.minimum(a, b))
        np.testing.assert_array_equal(run("Less", a, b), np.less(a, b))
        np.testing.assert_array_equal(run("GreaterOrEqual", a, b), np.greater_equal(a, b))
        np.testing.assert_array_equal(run("Equal", a, b), np.equal(a, b))
    b = np.where(b == 0, 3, b).astype(dtype.numpy)
    # In Python's integers, because NumPy's division floors where C's truncates.
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object)) * np.where((a < 0) == (b < 0), 1, -1)
    np.testing.assert_array_equal(run("Div", a, b), np.where(quotient > info.max, info.min, quotient))


def test_integer_division_has_no_trap() -> None:
    lowest = np.array([-(2**31), 7], np.int32)
    np.testing.assert_array_equal(run("Div", lowest, np.array([-1, 0], np.int32)), [-(2**31), 0])


@pytest.mark.parametrize("op", ["Max", "Min"])
@given(shapes=st.integers(1, 4).flatmap(shapes), seed=SEED)
def test_extremum(op: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    inputs = [distinct(draw, shape) + np.float32(i / 5000) for i, shape in enumerate(shapes)]

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        result, *rest = tensors
        for tensor in rest:
            result = (torch.maximum if op == "Max" else torch.minimum)(result, tensor)
        return result

    check_operator(op, inputs, reference, differentiate=range(len(inputs)), seed=seed)


def test_extremum_splits_a_tie_and_keeps_nan() -> None:
    a = np.array([1.0, 2.0], np.float32)
    check_operator("Max", [a, a[::-1].copy()], torch.maximum, differentiate=(0, 1))
    check_operator("Max", [a, a.copy()], torch.maximum, differentiate=(0, 1), finite_differences=False)
    nan = np.array([np.nan, 2.0], np.float32)
    assert np.isnan(run("Max", nan, a)[0]) and np.isnan(run("Min", a, nan)[0])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@given(shapes=st.integers(1, 5).flatmap(shapes), seed=SEED)
def test_sum_and_mean(op: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    inputs = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        total = torch.stack(torch.broadcast_tensors(*tensors)).sum(0)
        return total / len(tensors) if op == "Mean" else total

    check_operator(op, inputs, reference, differentiate=range(len(inputs)), seed=seed)


@given(shapes(3, min_side=0), SEED)
def test_where(shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    condition = draw.random(shapes[0]) < 0.5
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in shapes[1:])
    check_operator("Where", [condition, a, b], torch.where, differentiate=(1, 2), seed=seed)
    for dtype in (*INTEGERS, DType.BOOL):
        wanted = np.where(condition, a.astype(dtype.numpy), b.astype(dtype.numpy))
        np.testing.assert_array_equal(run("Where", condition, a.astype(dtype.numpy), b.astype(dtype.numpy)), wanted)


@given(shapes(2), SEED)
def test_p_relu(shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    slope = draw.standard_normal(shapes[1]).astype(np.float32)
    x = distinct(draw, np.broadcast_shapes(*shapes)) + np.float32(0.3 / 1024)
    check_operator("PRelu", [x, slope], lambda x, s: torch.where(x < 0, s * x, x), differentiate=(0, 1), seed=seed)


@given(shapes(2), SEED)
def test_pow(shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.uniform(0.2, 3, shapes[0]).astype(np.float32)
    exponent = draw.uniform(-3, 3, shapes[1]).astype(np.float32)
    check_operator("Pow", [base, exponent], torch.pow, differentiate=(0, 1), seed=seed)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 4.0, -2.0])
@given(shape=st.lists(st.integers(1, 6), max_size=3), seed=SEED)
def test_pow_of_a_constant(exponent: float, shape: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = (draw.uniform(0.5, 2, shape) * draw.choice([-1, 1], shape)).astype(np.float32)
    check_operator("Pow", [base, np.array(exponent, np.float32)], torch.pow, seed=seed)
    check_operator("Pow", [base, np.array([exponent], np.float32)], torch.pow, seed=seed)


def test_pow_of_mixed_types() -> None:
    base, exponent = np.array([1, 2, -3], np.int32), np.array([4, 3, 3], np.int32)
    np.testing.assert_array_equal(run("Pow", base, exponent), [1, 8, -27])
    np.testing.assert_array_equal(run("Pow", base.astype(np.int64), exponent.astype(np.float32)), [1, 8, -27])
    np.testing.assert_array_equal(run("Pow", base.astype(np.float32), exponent.astype(np.uint64)), [1, 8, -27])
    np.testing.assert_array_equal(run("Pow", base, np.array([-1, -1, -1], np.int64)), [1, 0, 0])
    check_operator("Pow", [base.astype(np.float32), exponent], lambda b, e: torch.pow(b, e.double()))


FLOAT_COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}


@given(st.sampled_from(sorted(FLOAT_COMPARISONS)), shapes(2), SEED)
def test_comparison(op: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    a, b = (draw.choice(np.array([-1, -0.0, 0.0, 1, np.inf, np.nan], np.float32), shape) for shape in shapes)
    np.testing.assert_array_equal(run(op, np.asarray(a), np.asarray(b)), FLOAT_COMPARISONS[op](a, b))


@given(shapes(2), SEED)
def test_logical(shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    draw = np.random.default_rng(seed)
    a, b = (np.asarray(draw.random(shape) < 0.5) for shape in shapes)
    np.testing.assert_array_equal(run("And", a, b), a & b)
    np.testing.assert_array_equal(run("Or", a, b), a | b)
    np.testing.assert_array_equal(run("Xor", a, b), a ^ b)
    np.testing.assert_array_equal(run("Not", a), ~a)
    np.testing.assert_array_equal(run("Equal", a, b), a == b)


def test_rounding() -> None:
    x = np.array(
        [0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 1.5, 2.5, -2.5, 8388607.5, -8388609.0, 3e9, np.inf, -np.inf, np.nan],
        np.float32,
    )
    for op, function in {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Sign": np.sign}.items():
        got = run(op, x)
        np.testing.assert_array_equal(got, function(x))
        if op != "Sign":
            np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(function(x)[:-1]))


def refusal(op: str, *inputs: np.ndarray) -> str:
    with pytest.raises(UserError) as caught:
        one_node_graph(op, inputs)
    return str(caught.value)


def test_refusals() -> None:
    three, four = np.zeros(3, np.float32), np.zeros((2, 4), np.float32)
    assert refusal("Add", three, four) == (
        "node 'node': Add: shapes do not broadcast\n"
        "  expected: equal dimensions, or 1, counted from the last\n  got: [3] and [2, 4]"
    )
    assert refusal("Mul", three, np.zeros(3, np.int32)) == (
        "node 'node': Mul does not take element type i32 for input 1 ('x1')\n  expected: f32\n  got: i32"
    )
    assert refusal("PRelu", three, np.zeros((2, 3), np.float32)) == (
        "node 'node': PRelu: the slope ('x1') does not broadcast to the input\n  expected: [3]\n  got: [2, 3]"
    )
    assert refusal("Where", three, three, three) == (
        "node 'node': Where does not take element type f32 for input 0 ('x0')\n  expected: bool\n  got: f32"
    )
    assert refusal("Max") == "node 'node': Max has no inputs"
