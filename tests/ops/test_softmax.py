from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

TORCH = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}


@pytest.mark.parametrize("op", TORCH)
@given(st.data(), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(0, 2**31))
def test_against_pytorch(op: str, data: st.DataObject, shape: list[int], seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = 3 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    check_operator(op, [x], lambda x: TORCH[op](x, axis), {"axis": axis}, seed=seed)


@pytest.mark.parametrize("op", TORCH)
def test_extreme_and_non_finite_rows(op: str) -> None:
    rows = [[1e4, 0.0, -1e4], [-1e30, -1e30, 1.0], [np.inf, 0.0, 0.0], [np.nan, 0.0, 1.0], [0.0, 1.0, np.nan]]
    x = np.array(rows, np.float32)
    expected = TORCH[op](torch.tensor(x, dtype=torch.float64), 1).numpy()
    got = run_graph(one_node_graph(op, [x]), {"x0": x})["y0"]
    assert np.allclose(got, expected, rtol=1e-6, equal_nan=True)


def test_refuses_an_axis_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="axis 2 does not exist"):
        one_node_graph("Softmax", [np.zeros((2, 3), np.float32)], {"axis": 2})
