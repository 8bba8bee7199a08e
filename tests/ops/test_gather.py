"""Gather and GatherElements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError

SHAPE = st.lists(st.integers(1, 5), min_size=1, max_size=4)
SEED = st.integers(0, 2**31)
INDEX_TYPE = st.sampled_from([np.int32, np.int64])


@given(SHAPE, st.lists(st.integers(1, 4), max_size=2), st.data(), INDEX_TYPE, SEED)
def test_gather(shape: list[int], index_shape: list[int], data: st.DataObject, index_type: type, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape).astype(np.float32)
    indices: np.ndarray = draw.integers(-shape[axis], shape[axis], index_shape).astype(index_type)

    def reference(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        flat = indices.reshape(-1).to(torch.int64) % shape[axis]
        d = axis % len(shape)
        return x.index_select(d, flat).reshape([*shape[:d], *index_shape, *shape[d + 1 :]])

    check_operator("Gather", [x, indices], reference, {"axis": axis}, seed=seed)


@given(SHAPE, st.data(), INDEX_TYPE, SEED)
def test_gather_elements(shape: list[int], data: st.DataObject, index_type: type, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape).astype(np.float32)
    d = axis % len(shape)
    partial = data.draw(st.integers(0, len(shape) - 1))
    index_shape = [extent if i != partial else data.draw(st.integers(1, extent)) for i, extent in enumerate(shape)]
    index_shape[d] = data.draw(st.integers(1, 6))
    indices: np.ndarray = draw.integers(-shape[axis], shape[axis], index_shape).astype(index_type)

    def reference(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, d, indices.to(torch.int64) % shape[d])

    check_operator("GatherElements", [x, indices], reference, {"axis": axis}, seed=seed)


@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int16, np.int32, np.int64, np.bool_])
def test_out_of_range_reads_nothing(op: str, dtype: type) -> None:
    x: np.ndarray = np.array([1, 2, 3]).astype(dtype)
    indices = np.array([2, 3, -3, -4, 2**40, -(2**40), 2**63 - 1, -(2**63)])
    graph = one_node_graph(op, [x, indices])
    missing = np.nan if dtype is np.float32 else 0
    wanted = [x[2], missing, x[0], missing, missing, missing, missing, missing]
    feeds = {"x0": x, "x1": indices}
    np.testing.assert_array_equal(run_graph(graph, feeds)["y0"], np.array(wanted).astype(dtype))
    assert_same_bits_tiled(graph, feeds)


def test_no_indices() -> None:
    x, indices = np.ones((3, 2), np.float32), np.zeros((0,), np.int64)
    assert run_graph(one_node_graph("Gather", [x, indices]), {"x0": x, "x1": indices})["y0"].shape == (0, 2)


def test_refusals() -> None:
    x = np.ones((3, 2), np.float32)
    with pytest.raises(UserError) as error:
        one_node_graph("Gather", [x, np.zeros(2, np.float32)])
    assert str(error.value) == (
        "node 'node': Gather does not take element type f32 for input 1 ('x1')\n  expected: i64 or i32\n  got: f32"
    )
    with pytest.raises(UserError, match="axis 2 does not exist"):
        one_node_graph("Gather", [x, np.zeros(2, np.int64)], {"axis": 2})
    with pytest.raises(UserError, match="the indices reach beyond the data"):
        one_node_graph("GatherElements", [x, np.zeros((1, 3), np.int64)])
    with pytest.raises(UserError, match="data and indices differ in rank"):
        one_node_graph("GatherElements", [x, np.zeros(3, np.int64)])
