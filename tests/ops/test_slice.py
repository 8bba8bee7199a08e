from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError

BOUND = st.one_of(st.integers(-9, 9), st.sampled_from([-(2**63), 2**63 - 1, 2**31 - 1]))
CUT = st.tuples(st.integers(1, 7), BOUND, BOUND, st.integers(-3, 3).filter(bool))


@given(st.lists(CUT, min_size=1, max_size=4), st.booleans(), st.integers(0, 2**31))
def test_like_numpy(cuts: list[tuple[int, int, int, int]], from_the_end: bool, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal([cut[0] for cut in cuts]).astype(np.float32)
    axes = tuple(range(len(cuts)))[::-1]
    attributes = {
        "starts": tuple(cuts[axis][1] for axis in axes),
        "ends": tuple(cuts[axis][2] for axis in axes),
        "steps": tuple(cuts[axis][3] for axis in axes),
        "axes": tuple(axis - len(cuts) for axis in axes) if from_the_end else axes,
    }

    def reference(x: torch.Tensor) -> torch.Tensor:
        for d, (extent, start, end, step) in enumerate(cuts):
            x = x.index_select(d, torch.tensor(np.arange(extent)[start:end:step].copy(), dtype=torch.int64))
        return x

    check_operator("Slice", [x], reference, attributes, seed=seed)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int16, np.int64, np.bool_])
def test_every_type(dtype: type) -> None:
    x: np.ndarray = np.arange(60).reshape(3, 4, 5).astype(dtype)
    graph = one_node_graph("Slice", [x], {"starts": (1, 4), "ends": (3, 0), "axes": (0, 2), "steps": (1, -2)})
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], x[1:3, :, 4:0:-2])
    assert_same_bits_tiled(graph, {"x0": x})


def test_refusals() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UserError) as error:
        one_node_graph("Slice", [x], {"starts": (0,), "ends": (1,), "axes": (2,)})
    assert str(error.value) == (
        "node 'node': Slice: axis 2 does not exist\n  expected: -2 to 1 for rank 2\n  got: 2"
    )
    with pytest.raises(UserError, match="Slice: a step is 0"):
        one_node_graph("Slice", [x], {"starts": (0,), "ends": (1,), "steps": (0,)})
    with pytest.raises(UserError, match="differ in length"):
        one_node_graph("Slice", [x], {"starts": (0,), "ends": (1, 2)})
