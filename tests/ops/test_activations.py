"""Operators of one tensor, against PyTorch in float64 and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

Tensor = torch.Tensor
SHAPE = st.lists(st.integers(0, 7), max_size=4)
SEED = st.integers(0, 2**31)


@dataclass(frozen=True)
class Case:
    """`kinks` are where the slope jumps: no value is drawn near them."""

    op: str
    function: Callable[..., Tensor]
    attributes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kinks: Callable[..., tuple[float, ...]] = lambda **_: ()
    low: float = -6.0
    high: float = 6.0


CASES = (
    Case("Neg", torch.neg),
    Case("Abs", torch.abs, kinks=lambda: (0.0,)),
    Case("Sqrt", torch.sqrt, low=0.1, high=50.0),
    Case("Reciprocal", torch.reciprocal, low=0.2, high=5.0),
    Case("Exp", torch.exp),
    Case("Log", torch.log, low=1e-2, high=30.0),
    Case("Erf", torch.erf, low=-3.0, high=3.0),
    # Where y is near 1, what the saved output has lost in precision, its gradient has lost too, as in PyTorch.
    Case("Sigmoid", torch.sigmoid),
    Case("Tanh", torch.tanh, low=-3.0, high=3.0),
    Case("Softplus", F.softplus, high=15.0),
    Case("HardSwish", F.hardswish, kinks=lambda: (-3.0, 3.0)),
    Case("Elu", lambda x, alpha: F.elu(x, alpha), {"alpha": (0.1, 2.0)}, lambda alpha: (0.0,)),
    Case("LeakyRelu", lambda x, alpha: F.leaky_relu(x, alpha), {"alpha": (-0.5, 0.9)}, lambda alpha: (0.0,)),
    Case(
        "HardSigmoid",
        lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0, 1),
        {"alpha": (0.1, 0.5), "beta": (0.1, 0.9)},
        lambda alpha, beta: (-beta / alpha, (1 - beta) / alpha),
    ),
)


def away_from(kinks: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    for kink in kinks:
        x = np.where(np.abs(x - kink) < 0.02, kink + 0.05, x)
    return x.astype(np.float32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
@given(shape=SHAPE, seed=SEED)
def test_against_torch(case: Case, shape: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    # Attributes are stored as float32 wherever they come from.
    attributes = {name: float(np.float32(draw.uniform(*bounds))) for name, bounds in case.attributes.items()}
    x = away_from(case.kinks(**attributes), draw.uniform(case.low, case.high, shape))
    check_operator(case.op, [x], lambda x: case.function(x, **attributes), attributes, seed=seed)


@given(st.sampled_from(["none", "tanh"]), SHAPE, SEED)
def test_gelu(approximate: str, shape: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-6, 6, shape).astype(np.float32)
    check_operator("Gelu", [x], lambda x: F.gelu(x, approximate=approximate), {"approximate": approximate}, seed=seed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_nan_passes_through(case: Case) -> None:
    x = np.array([np.nan, 1.0], np.float32)
    assert np.isnan(run_graph(one_node_graph(case.op, [x]), {"x0": x})["y0"][0])


def test_gelu_refuses_an_unknown_form() -> None:
    with pytest.raises(UserError) as caught:
        one_node_graph("Gelu", [np.zeros(3, np.float32)], {"approximate": "sigmoid"})
    assert str(caught.value) == (
        "node 'node': Gelu: bad attribute 'approximate'\n  expected: 'none' or 'tanh'\n  got: 'sigmoid'"
    )


def test_integers_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        one_node_graph("Sigmoid", [np.zeros(3, np.int32)])
    assert str(caught.value) == (
        "node 'node': Sigmoid does not take element type i32 for input 0 ('x0')\n  expected: f32\n  got: i32"
    )


def test_an_infinite_attribute_is_refused() -> None:
    with pytest.raises(UserError, match="Elu: bad attribute 'alpha'"):
        one_node_graph("Elu", [np.zeros(3, np.float32)], {"alpha": float("inf")})
