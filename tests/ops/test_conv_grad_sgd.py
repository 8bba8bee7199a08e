"""A convolution's weight gradient and the SGD step along it in one call: the same bits as the two operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute

RATE = np.array(0.05, dtype=np.float32)


@given(
    st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 1)]), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
    st.tuples(*[st.integers(0, 2)] * 2), st.tuples(*[st.integers(3, 13)] * 2), st.integers(1, 2),
    st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**31),
)  # fmt: skip
def test_same_bits_as_conv_grad_and_sgd(
    groups_of: tuple[int, int], rows: int, stride_h: int, stride_w: int, pads: tuple[int, int], image: tuple[int, int],
    batch: int, outs: int, dilation: int, seed: int,
) -> None:  # fmt: skip
    groups, channels = groups_of
    image = (max(image[0], (rows - 1) * dilation + 1), image[1])
    attributes: dict[str, Attribute] = {
        "strides": (stride_h, stride_w), "group": groups, "pads": (*pads, *reversed(pads)), "dilations": (dilation, 1),
    }  # fmt: skip
    draw = np.random.default_rng(seed)
    x, w = (
        draw.standard_normal(shape).astype(np.float32)
        for shape in ((batch, groups * channels, *image), (groups * outs, channels, rows, 3))
    )
    dy = run_graph(one_node_graph("Conv", [x, w], attributes), {"x0": x, "x1": w})["y0"]
    fused = one_node_graph("ConvGradSGD", [dy, x, w, RATE], attributes)
    feeds = {"x0": dy, "x1": x, "x2": w, "x3": RATE}
    apart = one_node_graph("ConvGrad", [dy, x, w], attributes, outputs=(False, True))
    gradient = run_graph(apart, {"x0": dy, "x1": x, "x2": w})["y1"]
    wanted = run_graph(one_node_graph("SGD", [w, gradient, RATE]), {"x0": w, "x1": gradient, "x2": RATE})["y0"]
    assert run_graph(fused, feeds)["y0"].tobytes() == wanted.tobytes()
    assert_same_bits_tiled(fused, feeds, seed)


@pytest.mark.parametrize(("stride", "extent"), [(1, 8), (2, 8), (2, 7)])
def test_is_a_step_along_pytorchs_gradient(stride: int, extent: int) -> None:
    layer = torch.nn.Conv2d(5, 6, 3, stride, 1, bias=False).double()
    x = torch.randn(2, 5, extent, extent, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None
    values = [value.detach().numpy().astype(np.float32) for value in (2 * layer(x), x, layer.weight)]
    attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (1, 1, 1, 1)}
    feeds = dict(zip(("x0", "x1", "x2", "x3"), [*values, RATE], strict=True))
    got = run_graph(one_node_graph("ConvGradSGD", [*values, RATE], attributes), feeds)["y0"]
    wanted = layer.weight.detach() - 0.05 * layer.weight.grad
    assert np.allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shapes", "attributes", "said"),
    [
        (((1, 4, 6, 6), (1, 2, 6, 6), (4, 2, 1, 1)), {}, "expected: three columns, dilation 1 and stride 1 or 2 along"),
        (((1, 4, 6, 2), (1, 2, 8, 8), (4, 2, 3, 3)), {"strides": (1, 3)}, "got: 3, dilation 1, stride 3"),
        (((1, 4, 6, 6), (1, 2, 6, 6), (4, 2, 3, 3)), {}, "the gradient of Y ('x0') has a wrong shape"),
    ],
)
def test_refuses_other_windows(
    shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Attribute], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        one_node_graph("ConvGradSGD", [*(np.ones(shape, np.float32) for shape in shapes), RATE], attributes)
    assert said in str(caught.value)
