from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.types import DType

TYPES = [dtype for dtype in DType if not dtype.is_half]  # those are storage, which Store16 and Load16 convert


def cast(x: np.ndarray, to: DType) -> np.ndarray:
    graph = one_node_graph("Cast", [x], {"to": to.short})
    assert_same_bits_tiled(graph, {"x0": x}, rounds=2)
    return run_graph(graph, {"x0": x})["y0"]


@pytest.mark.parametrize(("source", "to"), list(itertools.product(TYPES, TYPES)), ids=lambda dtype: dtype.short)
@given(count=st.integers(0, 20), seed=st.integers(0, 2**31))
def test_in_range_like_numpy(source: DType, to: DType, count: int, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(0, 120, count).astype(source.numpy)
    np.testing.assert_array_equal(cast(x, to), x.astype(to.numpy))


@pytest.mark.parametrize(("source", "to"), list(itertools.permutations([d for d in DType if d.is_integer], 2)), ids=str)
def test_integers_keep_their_low_bits(source: DType, to: DType) -> None:
    info = np.iinfo(source.numpy)
    x = np.array([info.min, info.max, info.max // 3], source.numpy)
    np.testing.assert_array_equal(cast(x, to), x.astype(to.numpy))


@pytest.mark.parametrize("to", [dtype for dtype in DType if dtype.is_integer], ids=str)
def test_floats_saturate(to: DType) -> None:
    info = np.iinfo(to.numpy)
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, float(info.max), float(info.min), -0.9, 1.9], np.float32)
    wanted = [0, info.max, info.min, info.max, info.min, info.max, info.min, 0, 1]
    np.testing.assert_array_equal(cast(x, to), np.array(wanted, to.numpy))
    # The largest float below 2^bits fits exactly.
    below = np.nextafter(np.float32(2.0 ** (8 * to.size_bytes - (info.min < 0))), np.float32(0))
    np.testing.assert_array_equal(cast(np.array([below]), to), [int(min(np.trunc(float(below)), info.max))])


def test_large_integers_round_to_the_nearest_float() -> None:
    x = np.array([2**63 + 2**39 + 1, 2**64 - 1, 2**24 + 1], np.uint64)
    np.testing.assert_array_equal(cast(x, DType.F32), x.astype(np.float32))
    np.testing.assert_array_equal(cast(x, DType.BOOL), [True] * 3)


def test_bools_from_floats() -> None:
    x = np.array([0.0, -0.0, 1e-45, np.nan, 0.5], np.float32)
    np.testing.assert_array_equal(cast(x, DType.BOOL), x.astype(bool))


def test_gradient_and_refusal() -> None:
    x = np.ones((2, 3), np.float32)
    check_operator("Cast", [x], torch.clone, {"to": "f32"})
    with pytest.raises(UserError) as caught:
        one_node_graph("Cast", [x], {"to": "f16"})
    assert str(caught.value) == (
        "node 'node': Cast to an unknown element type\n"
        "  expected: f32 or i8 or i16 or i32 or i64 or u8 or u16 or u32 or u64 or bool\n  got: f16"
    )


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_copy(dtype: DType) -> None:
    x = np.random.default_rng(0).integers(0, 2, (3, 5)).astype(dtype.numpy)
    for op in ("Copy", "Identity"):
        graph = one_node_graph(op, [x])
        np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], x)
        assert_same_bits_tiled(graph, {"x0": x})
