from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=5).map(tuple)
FLAGS = st.integers(0, 1)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...], int, int]:
    """x (all elements distinct, so that extrema have no ties), axes (some negative), keepdims, seed."""
    shape = draw(SHAPES)
    rank = len(shape)
    axes = draw(st.sets(st.integers(0, rank - 1))) if rank else set()
    seed = draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    size = int(np.prod(shape))
    x = (random.permutation(size).astype(np.float32) - size / 2 + 0.3) / max(size, 1)
    signed = tuple(axis - rank if random.random() < 0.5 else axis for axis in axes)
    return x.astype(np.float32).reshape(shape), signed, draw(FLAGS), seed


def _all_axes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[int, ...]:
    return axes or tuple(range(x.ndim))


TORCH: dict[str, Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]] = {
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: torch.mean(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: torch.amax(x, axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: torch.amin(x, axes, keepdim=keep),
    "ReduceL1": lambda x, axes, keep: torch.abs(x).sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt((x * x).sum(axes, keepdim=keep)),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
}


@pytest.mark.parametrize("op", TORCH)
@given(case=reductions())
def test_against_pytorch(op: str, case: tuple[np.ndarray, tuple[int, ...], int, int]) -> None:
    x, axes, keepdims, seed = case

    def reference(x: torch.Tensor) -> torch.Tensor:
        return TORCH[op](x, _all_axes(x, axes), bool(keepdims)) if x.ndim else TORCH[op](x[None], (0,), False)

    differentiate = () if op == "ReduceL1" else (0,)
    check_operator(op, [x], reference, {"axes": axes, "keepdims": keepdims}, differentiate=differentiate, seed=seed)


@given(reductions())
def test_product(case: tuple[np.ndarray, tuple[int, ...], int, int]) -> None:
    x, axes, keepdims, seed = case
    axes = _all_axes(torch.tensor(x), axes)
    expected = np.prod(x.astype(np.float64), axes, keepdims=bool(keepdims))
    attributes = {"axes": axes, "keepdims": keepdims}
    check_operator("ReduceProd", [x], lambda _: torch.tensor(expected), attributes, differentiate=(), seed=seed)


def test_ties_share_the_gradient_as_in_amax() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], np.float32)
    check_operator(
        "ReduceMax", [x], lambda x: torch.amax(x, 1), {"axes": (1,), "keepdims": 0}, finite_differences=False
    )


@given(reductions())
def test_noop_with_empty_axes_returns_the_input(case: tuple[np.ndarray, tuple[int, ...], int, int]) -> None:
    x = case[0]
    check_operator("ReduceSum", [x], lambda x: x * 1.0, {"noop_with_empty_axes": 1}, seed=case[3])


@pytest.mark.parametrize(
    ("op", "dtype", "numpy_function"),
    [
        ("ReduceSum", np.int32, np.sum),
        ("ReduceSum", np.int64, np.sum),
        ("ReduceMax", np.int32, np.max),
        ("ReduceMin", np.int32, np.min),
        ("ReduceMax", np.bool_, np.max),
        ("ReduceMin", np.bool_, np.min),
    ],
)
def test_integers(op: str, dtype: type, numpy_function: Callable[..., np.ndarray]) -> None:
    x = np.random.default_rng(0).integers(0 if dtype is np.bool_ else -9, 2 if dtype is np.bool_ else 9, (3, 4, 5))
    x = x.astype(dtype)
    graph = one_node_graph(op, [x], {"axes": (0, 2), "keepdims": 0})
    assert np.array_equal(run_graph(graph, {"x0": x})["y0"], numpy_function(x, axis=(0, 2)))
    assert_same_bits_tiled(graph, {"x0": x})


@pytest.mark.parametrize(("op", "expected"), [("ReduceSum", 0.0), ("ReduceMax", -np.inf), ("ReduceProd", 1.0)])
def test_an_empty_reduction_gives_the_neutral_element(op: str, expected: float) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    graph = one_node_graph(op, [x], {"axes": (1,), "keepdims": 0})
    assert np.array_equal(run_graph(graph, {"x0": x})["y0"], np.full((2, 3), expected, np.float32))


def test_a_nan_is_the_maximum() -> None:
    x = np.array([[1.0, np.nan, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, np.nan]], np.float32)
    graph = one_node_graph("ReduceMax", [x], {"axes": (1,), "keepdims": 0})
    assert np.isnan(run_graph(graph, {"x0": x})["y0"]).all()


def test_refuses_bad_axes() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UserError, match="axis 2 does not exist"):
        one_node_graph("ReduceSum", [x], {"axes": (2,)})
    with pytest.raises(UserError, match="an axis is named twice"):
        one_node_graph("ReduceSum", [x], {"axes": (1, -1)})
    with pytest.raises(UserError, match="does not take element type bool"):
        one_node_graph("ReduceSum", [x.astype(np.bool_)], {})
