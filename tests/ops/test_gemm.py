from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

EXTENT = st.integers(1, 12)


@given(EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_gemm_without_bias(m: int, n: int, k: int, trans_a: bool, trans_b: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = draw.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 0.5 * (a.T if trans_a else a) @ (b.T if trans_b else b)

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": 0.5}
    check_operator("Gemm", [a, b], reference, attributes, differentiate=(0, 1), seed=seed)


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from(["", "n", "1n", "m1", "mn", "11", "1"]),
    st.sampled_from([(1.0, 1.0), (0.25, 1.0), (1.0, 0.5), (-2.0, 3.0), (1.0, 0.0)]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_gemm_with_every_form_of_bias(
    m: int, n: int, k: int, form: str, scale: tuple[float, float], trans_a: bool, trans_b: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    alpha, beta = scale
    a = draw.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = draw.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    c = draw.standard_normal([{"m": m, "n": n, "1": 1}[letter] for letter in form]).astype(np.float32)

    def reference(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return alpha * (a.T if trans_a else a) @ (b.T if trans_b else b) + beta * c

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha, "beta": beta}
    check_operator("Gemm", [a, b, c], reference, attributes, differentiate=(0, 1, 2), seed=seed)


@given(EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_relu_of_gemm(m: int, n: int, k: int, trans_a: bool, trans_b: bool, has_bias: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = draw.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    arrays = [a, b, draw.standard_normal(n).astype(np.float32)] if has_bias else [a, b]
    alpha = 0.5 if seed % 3 == 0 else 1.0

    def reference(a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        product = alpha * (a.T if trans_a else a) @ (b.T if trans_b else b)
        return torch.relu(product + bias[0] if bias else product)

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha}
    check_operator("GemmRelu", arrays, reference, attributes, differentiate=tuple(range(len(arrays))), seed=seed)


@given(EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_gradient_of_a_relu_behind_gemm(m: int, n: int, k: int, trans_a: bool, trans_b: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = draw.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    output = np.maximum(draw.standard_normal((m, n)), 0.0).astype(np.float32)
    alpha = 0.5 if seed % 3 == 0 else 1.0

    def reference(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return alpha * (a.T if trans_a else a) @ (b.T if trans_b else b) * (output > 0)

    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha}
    check_operator("GemmReluGrad", [a, b, output], reference, attributes, differentiate=(), seed=seed)


def test_a_relu_s_output_has_the_shape_of_the_product() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 5), np.float32)
    with pytest.raises(UserError) as error:
        one_node_graph("GemmReluGrad", [a, b, np.zeros((1, 5), np.float32)])
    assert str(error.value) == (
        "node 'node': GemmReluGrad: the Relu's output ('x2') has a wrong shape\n  expected: [2, 5]\n  got: [1, 5]"
    )


def test_gemm_over_nothing_is_the_bias() -> None:
    arrays = [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), np.arange(3, dtype=np.float32)]
    values = run_graph(one_node_graph("Gemm", arrays), {f"x{i}": array for i, array in enumerate(arrays)})
    np.testing.assert_array_equal(values["y0"], [[0, 1, 2], [0, 1, 2]])


def test_refusals() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32)
    with pytest.raises(UserError) as error:
        one_node_graph("Gemm", [a, b])
    assert str(error.value) == (
        "node 'node': Gemm: inner dimensions differ\n"
        "  expected: B ('x1') with 3 rows after transposition\n"
        "  got: 4, from A [2, 3] and B [4, 5]\n"
        "  hint: check transA and transB"
    )
    with pytest.raises(UserError, match="Gemm takes two matrices"):
        one_node_graph("Gemm", [a, np.zeros(3, np.float32)])
    with pytest.raises(UserError, match="shapes do not broadcast"):
        one_node_graph("Gemm", [a, np.zeros((3, 5), np.float32), np.zeros(4, np.float32)])
    with pytest.raises(UserError, match="does not broadcast to the result"):
        one_node_graph("Gemm", [a[:1], np.zeros((3, 5), np.float32), np.zeros((2, 5), np.float32)])
