from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

BOUND = st.one_of(st.none(), st.floats(-2, 2, width=32))


@given(st.lists(st.integers(0, 7), max_size=4), BOUND, BOUND, st.integers(0, 2**31))
def test_clip(shape: list[int], low: float | None, high: float | None, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)
    bounds = {name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}
    for bound in bounds.values():
        x = np.where(np.abs(x - bound) < 1e-3, x + np.float32(0.01), x)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, low, high) if bounds else x.clone()

    check_operator("Clip", [x], reference, bounds, seed=seed)


def test_on_a_bound_the_gradient_is_that_of_hardtanh() -> None:
    x = np.array([0.0, 3.0, 6.0], np.float32)
    bounds = {"min": 0.0, "max": 6.0}
    check_operator("Clip", [x], torch.nn.functional.relu6, bounds, finite_differences=False)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers(dtype: type) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, 1, 5, 100, info.max], dtype)
    graph = one_node_graph("Clip", [x], {"min": 3, "max": 50})
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], [3, 3, 5, 50, 50])


def test_nan_and_infinity() -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(
        run_graph(one_node_graph("Clip", [x], {"min": 0.0}), {"x0": x})["y0"], [np.nan, np.inf, 0]
    )
    with pytest.raises(UserError) as caught:
        one_node_graph("Clip", [x], {"max": float("nan")})
    assert str(caught.value) == "node 'node': Clip: bad bound 'max'\n  expected: a number\n  got: nan"
    with pytest.raises(UserError) as caught:
        one_node_graph("Clip", [x], {"max": (1.0, 2.0)})
    assert str(caught.value) == "node 'node': Clip: 'max' is not one number\n  expected: a scalar\n  got: (1.0, 2.0)"
