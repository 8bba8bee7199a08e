from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

PLANES = st.lists(st.integers(2, 4), min_size=2, max_size=3)


def _arrays(shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape) + draw.standard_normal()
    affine = draw.uniform(0.5, 2.0, shape[1]), draw.standard_normal(shape[1])
    return [array.astype(np.float32) for array in (x, *affine)]


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    PLANES,
    st.sampled_from([(0,), (1,), (0, 1, 2), (2,)]),
    st.integers(0, 2**31),
)
def test_group_normalization_against_pytorch(
    batch: int, groups: int, per_group: int, plane: list[int], differentiate: tuple[int, ...], seed: int
) -> None:
    arrays = _arrays((batch, groups * per_group, *plane), seed)

    def reference(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, groups, scale, bias, 1e-3)

    attributes = {"num_groups": groups, "epsilon": 1e-3}
    check_operator(
        "GroupNormalization", arrays, reference, attributes, differentiate=differentiate, tolerance=1e-4, seed=seed
    )


@given(st.integers(1, 3), st.integers(1, 9), PLANES, st.integers(0, 2**31))
def test_instance_normalization_against_pytorch(batch: int, channels: int, plane: list[int], seed: int) -> None:
    arrays = _arrays((batch, channels, *plane), seed)

    def reference(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x, None, None, scale, bias, eps=1e-3)

    check_operator(
        "InstanceNormalization",
        arrays,
        reference,
        {"epsilon": 1e-3},
        differentiate=(0, 1, 2),
        tolerance=1e-4,
        seed=seed,
    )


def test_refusals() -> None:
    x, c = np.zeros((1, 6, 2), np.float32), np.zeros(6, np.float32)
    with pytest.raises(UserError, match="the channels do not divide into groups"):
        one_node_graph("GroupNormalization", [x, c, c], {"num_groups": 4})
    with pytest.raises(UserError, match="needs the attribute 'num_groups'"):
        one_node_graph("GroupNormalization", [x, c, c])
    with pytest.raises(UserError, match=r"the scale \('x1'\) has a wrong shape"):
        one_node_graph("InstanceNormalization", [x, c[:2], c])
