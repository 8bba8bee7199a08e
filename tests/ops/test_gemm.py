from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operators import check_operator

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
