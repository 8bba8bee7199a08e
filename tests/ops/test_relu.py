from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operators import check_operator


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(0, 2**31))
def test_relu(shape: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    check_operator("Relu", [x], torch.relu, seed=seed)
