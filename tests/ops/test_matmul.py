from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph, with_gradient
from tilegrad.errors import UserError

EXTENT = st.integers(1, 11)
SEED = st.integers(0, 2**31)
BATCH = st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=3)


def _normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _batches(batch: list[tuple[int, bool, bool]], a_rank: int, b_rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a = tuple(1 if a_is_one else extent for extent, a_is_one, _ in batch)[len(batch) - min(a_rank, len(batch)) :]
    b = tuple(1 if b_is_one else extent for extent, _, b_is_one in batch)[len(batch) - min(b_rank, len(batch)) :]
    return a, b


@given(BATCH, st.integers(0, 3), st.integers(0, 3), EXTENT, EXTENT, EXTENT, SEED)
def test_broadcast_batches(
    batch: list[tuple[int, bool, bool]], a_rank: int, b_rank: int, m: int, n: int, k: int, seed: int
) -> None:
    a_batch, b_batch = _batches(batch, a_rank, b_rank)
    inputs = [_normal((*a_batch, m, k), seed), _normal((*b_batch, k, n), seed + 1)]
    check_operator("MatMul", inputs, torch.matmul, differentiate=(0, 1), seed=seed)


@given(st.lists(st.integers(1, 3), max_size=2), EXTENT, EXTENT, st.booleans(), SEED)
def test_vectors(batch: list[int], n: int, k: int, a_is_vector: bool, seed: int) -> None:
    inputs = [_normal((k,), seed), _normal((*batch, k, n), seed + 1)]
    if not a_is_vector:
        inputs = [_normal((*batch, n, k), seed), _normal((k,), seed + 1)]
    check_operator("MatMul", inputs, torch.matmul, differentiate=(0, 1), seed=seed)


@given(st.integers(1, 40), SEED)
def test_dot_product(k: int, seed: int) -> None:
    a, b = np.abs(_normal((k,), seed)), np.abs(_normal((k,), seed + 1))  # no cancellation: the result is one number
    check_operator("MatMul", [a, b], torch.matmul, differentiate=(0, 1))


@given(BATCH, st.integers(0, 3), st.integers(0, 3), EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), SEED)
def test_fused_transposes(
    batch: list[tuple[int, bool, bool]],
    a_rank: int,
    b_rank: int,
    m: int,
    n: int,
    k: int,
    trans_a: bool,
    trans_b: bool,
    seed: int,
) -> None:
    a_batch, b_batch = _batches(batch, a_rank, b_rank)
    a = _normal((*a_batch, *((k, m) if trans_a else (m, k))), seed)
    b = _normal((*b_batch, *((n, k) if trans_b else (k, n))), seed + 1)

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": 0.5}
    check_operator("FusedMatMul", [a, b], reference, attributes, differentiate=(0, 1), seed=seed)


@given(st.integers(1, 4), EXTENT, EXTENT, EXTENT, SEED)
def test_sum_over_batches(batch: int, m: int, n: int, k: int, seed: int) -> None:
    inputs = [_normal((batch, m, k), seed), _normal((batch, k, n), seed + 1)]
    check_operator(
        "FusedMatMul",
        inputs,
        lambda a, b: torch.matmul(a, b).sum(0),
        {"sum_batch": 1},
        differentiate=(),
        seed=seed,
    )


def test_shared_weight_gradient_is_one_reduction() -> None:
    graph = one_node_graph("MatMul", [_normal((2, 5, 4), 0), _normal((4, 3), 1)])
    full, _ = with_gradient(graph, ["x0", "x1"])
    assert [node.op for node in full.nodes if node.op != "Reshape"] == ["MatMul", "FusedMatMul", "FusedMatMul"]
    graph = one_node_graph("MatMul", [_normal((4, 3), 1), _normal((2, 3, 5), 0)])
    full, _ = with_gradient(graph, ["x0"])
    assert [node.op for node in full.nodes] == ["MatMul", "FusedMatMul"]


@pytest.mark.parametrize(("a", "b"), [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 2)), ((2, 3), (3, 0))])
def test_zero_sized(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    inputs = [np.ones(a, np.float32), np.ones(b, np.float32)]
    graph = one_node_graph("MatMul", inputs)
    values = run_graph(graph, {"x0": inputs[0], "x1": inputs[1]})
    np.testing.assert_array_equal(values["y0"], inputs[0] @ inputs[1])


def test_refuses_inner_dimensions() -> None:
    with pytest.raises(UserError) as error:
        one_node_graph("MatMul", [_normal((2, 3), 0), _normal((4, 5), 0)])
    assert str(error.value) == (
        "node 'node': MatMul: inner dimensions differ\n"
        "  expected: B ('x1') with 3 rows\n"
        "  got: 4, from A [2, 3] and B [4, 5]"
    )


def test_refuses_scalars() -> None:
    with pytest.raises(UserError, match="MatMul takes no scalars"):
        one_node_graph("MatMul", [_normal((), 0), _normal((4, 5), 0)])
