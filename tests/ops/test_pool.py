"""MaxPool, AveragePool and the global poolings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph, with_gradient
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute

MAX = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d}


@dataclass(frozen=True)
class Case:
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool
    seed: int

    @property
    def attributes(self) -> dict[str, Attribute]:
        return {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": (*self.pads, *self.pads),
            "ceil_mode": int(self.ceil_mode),
        }

    def distinct(self, *leading: int) -> np.ndarray:
        """Values that differ by much more than a finite difference's step."""
        shape = (*leading, *self.image)
        order = np.random.default_rng(self.seed).permutation(int(np.prod(shape)))
        return ((order - order.size / 2) / 8).astype(np.float32).reshape(shape)


@st.composite
def cases(draw: st.DrawFn, dilated: bool = True) -> Case:
    rank = draw(st.sampled_from((1, 2, 2)))

    def several(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel = draw(st.sampled_from([(2,) * rank, (3,) * rank, several(1, 4)]))
    dilations = several(1, 2) if dilated and draw(st.booleans()) else (1,) * rank
    pads = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    image = tuple(
        draw(st.integers(max(1, (k - 1) * d + 1), 11)) for k, d in zip(kernel, dilations, strict=True)
    )
    return Case(image, kernel, several(1, 3), dilations, pads, draw(st.booleans()), draw(st.integers(0, 2**31)))


@given(cases())
def test_max_pool(case: Case) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return MAX[len(case.image)](x, case.kernel, case.strides, case.pads, case.dilations, case.ceil_mode)

    check_operator("MaxPool", [case.distinct(2, 3)], reference, case.attributes, seed=case.seed)


@given(cases())
def test_max_pool_indices_and_ties(case: Case) -> None:
    """With few distinct values nearly every window has ties: indices and gradients still agree with PyTorch."""
    x = np.random.default_rng(case.seed).integers(-1, 2, (1, 2, *case.image)).astype(np.float32)
    tensor = torch.tensor(x, requires_grad=True)
    y, indices = MAX[len(case.image)](
        tensor, case.kernel, case.strides, case.pads, case.dilations, case.ceil_mode, return_indices=True
    )
    y.sum().backward()
    graph = one_node_graph("MaxPool", [x], case.attributes, outputs=(True, True))
    full, gradients = with_gradient(graph, ["x0"])
    feeds = {"x0": x, "seed": np.ones(y.shape, np.float32)}
    values = run_graph(full, feeds)
    size = int(np.prod(case.image))
    offsets = np.arange(2).reshape(1, 2, *(1,) * len(case.image)) * size  # PyTorch counts within a plane
    np.testing.assert_array_equal(values["y0"], y.detach().numpy())
    np.testing.assert_array_equal(values["y1"], indices.numpy() + offsets)
    assert tensor.grad is not None
    np.testing.assert_array_equal(values[gradients["x0"]], tensor.grad.numpy())
    assert_same_bits_tiled(full, feeds, case.seed)


def test_max_pool_passes_nan() -> None:
    x = np.array([[[1.0, np.nan, 3.0, 0.0, 2.0, 1.0]]], np.float32)
    values = run_graph(one_node_graph("MaxPool", [x], {"kernel_shape": (2,), "strides": (2,)}), {"x0": x})
    np.testing.assert_array_equal(values["y0"], [[[np.nan, 3.0, 2.0]]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_max_pool_of_integers(dtype: type[np.generic]) -> None:
    x = np.random.default_rng(0).integers(0, 100, (1, 2, 7, 7)).astype(dtype)
    graph = one_node_graph("MaxPool", [x], {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)})
    wanted = torch.nn.functional.max_pool2d(torch.tensor(x.astype(np.float32)), 3, 2, 1)
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], wanted.numpy())
    assert_same_bits_tiled(graph, {"x0": x})


@given(cases(dilated=False), st.booleans())
def test_average_pool(case: Case, count_include_pad: bool) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        arguments = (case.kernel, case.strides, case.pads, case.ceil_mode, count_include_pad)
        if len(case.image) == 1:
            return torch.nn.functional.avg_pool1d(x, *arguments)
        return torch.nn.functional.avg_pool2d(x, *arguments)

    attributes = {**case.attributes, "count_include_pad": int(count_include_pad)}
    check_operator("AveragePool", [case.distinct(2, 3)], reference, attributes, seed=case.seed)


@given(cases(), st.booleans())
def test_dilated_average_pool(case: Case, count_include_pad: bool) -> None:
    """PyTorch has no dilated average: it is a depthwise convolution by ones over another one of what is counted."""
    if case.ceil_mode:
        return
    rank = len(case.image)
    conv = torch.nn.functional.conv1d if rank == 1 else torch.nn.functional.conv2d
    ones = torch.ones((1, 1, *case.kernel), dtype=torch.float64)

    def total(x: torch.Tensor) -> torch.Tensor:
        return conv(x, ones, None, case.strides, case.pads, case.dilations)

    def reference(x: torch.Tensor) -> torch.Tensor:
        counted = float(np.prod(case.kernel)) if count_include_pad else total(torch.ones_like(x))
        return total(x) / counted

    attributes = {**case.attributes, "count_include_pad": int(count_include_pad)}
    check_operator("AveragePool", [case.distinct(2, 1)], reference, attributes, seed=case.seed)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad(op: str, mode: str, stride: int) -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    x = np.random.default_rng(stride).standard_normal((1, 2, 8, 7)).astype(np.float32)
    attributes: dict[str, Attribute] = {"kernel_shape": (3, 2), "strides": (stride, stride), "auto_pad": mode}
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(helper.make_graph([node], "g", types[:1], types[1:]), opset_imports=opset, ir_version=10)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    got = run_graph(one_node_graph(op, [x], attributes), {"x0": x})["y0"]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@given(st.lists(st.integers(1, 6), min_size=3, max_size=5), st.integers(0, 2**31))
def test_global_pools(shape: list[int], seed: int) -> None:
    case = Case(tuple(shape[2:]), (), (), (), (), False, seed)
    x = case.distinct(*shape[:2])
    axes = tuple(range(2, len(shape)))
    check_operator("GlobalAveragePool", [x], lambda x: x.mean(axes, keepdim=True), seed=seed)
    check_operator("GlobalMaxPool", [x], lambda x: x.amax(axes, keepdim=True), seed=seed)


def refusal(op: str, shape: tuple[int, ...], attributes: dict[str, Attribute]) -> str:
    with pytest.raises(UserError) as caught:
        one_node_graph(op, [np.zeros(shape, np.float32)], attributes)
    return str(caught.value)


def test_refusals() -> None:
    assert "needs the attribute 'kernel_shape'" in refusal("MaxPool", (1, 2, 5, 5), {})
    assert "'kernel_shape' is wrong" in refusal("MaxPool", (1, 2, 5, 5), {"kernel_shape": (2,)})
    assert "larger than the padded input" in refusal("MaxPool", (1, 2, 5, 5), {"kernel_shape": (6, 2)})
    outside = {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}
    assert "AveragePool: a window lies in padding altogether" in refusal("AveragePool", (1, 2, 5, 5), outside)
    assert "has a wrong rank" in refusal("AveragePool", (1, 2, 5, 5, 5), {"kernel_shape": (2, 2, 2)})
    assert "no spatial positions" in refusal("GlobalMaxPool", (1, 2), {})
    assert "no spatial positions" in refusal("GlobalAveragePool", (1, 2, 0), {})
