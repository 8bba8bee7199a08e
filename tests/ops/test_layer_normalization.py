from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


@given(
    st.lists(st.integers(1, 6), max_size=2),
    st.sampled_from([(8,), (13,), (4, 3), (2, 3, 4)]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_against_pytorch(
    batch: list[int], normalised: tuple[int, ...], has_bias: bool, is_negative: bool, saves: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((*batch, *normalised)) + 2 * draw.standard_normal()).astype(np.float32)
    inputs = [x, draw.uniform(0.5, 2.0, normalised).astype(np.float32)]
    if has_bias:
        inputs.append(draw.standard_normal(normalised).astype(np.float32))

    def reference(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.layer_norm(x, normalised, scale, bias, 1e-3)

    attributes = {"axis": -len(normalised) if is_negative else len(batch), "epsilon": 1e-3}
    check_operator(
        "LayerNormalization",
        inputs,
        reference,
        attributes,
        differentiate=range(len(inputs)),
        outputs=(True, saves, saves),
        tolerance=1e-4,
        seed=seed,
    )


def test_a_single_wanted_gradient() -> None:
    draw = np.random.default_rng(5)
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (8,), (8,))]
    for position in range(3):
        check_operator(
            "LayerNormalization",
            arrays,
            lambda x, scale, bias: F.layer_norm(x, (8,), scale, bias),
            differentiate=(position,),
            tolerance=1e-4,
        )


def test_training_keeps_the_statistics_for_the_gradient() -> None:
    x, scale = np.random.default_rng(6).standard_normal((3, 4)).astype(np.float32), np.ones(4, np.float32)
    graph = one_node_graph("LayerNormalization", [x, scale])
    form = registry.get("LayerNormalization").training_form(NodeView(graph.nodes[0], graph.types), 0)
    assert form is not None
    assert form.outputs == ("y0", "y0.mean", "y0.inv_std")
    saved = one_node_graph("LayerNormalization", [x, scale], outputs=(True, True, True))
    values = run_graph(saved, {"x0": x, "x1": scale})
    assert np.allclose(values["y1"], x.mean(1, keepdims=True), atol=1e-6)
    assert np.allclose(values["y2"], 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-5)


def test_refusals() -> None:
    x = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(UserError, match=r"LayerNormalization: the scale \('x1'\) has a wrong shape"):
        one_node_graph("LayerNormalization", [x, np.zeros(3, np.float32)])
    with pytest.raises(UserError, match="axis 3 does not exist"):
        one_node_graph("LayerNormalization", [x, np.zeros(3, np.float32)], {"axis": 3})
    with pytest.raises(UserError, match="epsilon must not be negative"):
        one_node_graph("LayerNormalization", [x, np.zeros(4, np.float32)], {"epsilon": -1.0})
