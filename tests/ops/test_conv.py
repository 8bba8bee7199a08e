from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import check_operator, one_node_graph, with_gradient
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

FUNCTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}
TRANSPOSED = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d}


def normal(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)


def pad(x: torch.Tensor, pads: tuple[int, ...]) -> torch.Tensor:
    """ONNX pads (all beginnings, then all ends), as zeros around the image."""
    rank = len(pads) // 2
    order = [side for d in reversed(range(rank)) for side in (pads[d], pads[rank + d])]
    return torch.nn.functional.pad(x, order)


@dataclass(frozen=True)
class Case:
    batch: int
    groups: int
    inputs: int
    outputs: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    bias: bool
    seed: int

    @property
    def attributes(self) -> dict[str, Attribute]:
        return {
            "group": self.groups,
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
        }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from((1, 2, 2, 2)))

    def several(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel = draw(st.sampled_from([(1,) * rank, (3,) * rank, several(1, 5)]))
    strides = draw(st.sampled_from([(1,) * rank, several(1, 3)]))
    dilations = draw(st.sampled_from([(1,) * rank, several(1, 3)]))
    pads = draw(st.sampled_from([(0,) * 2 * rank, several(0, 4, 2 * rank)]))
    image = tuple(
        draw(st.integers(max(1, (kernel[d] - 1) * dilations[d] + 1 - pads[d] - pads[rank + d]), 14))
        for d in range(rank)
    )
    groups, inputs, outputs = draw(
        st.one_of(
            st.tuples(st.just(1), st.integers(1, 9), st.integers(1, 9)),  # dense
            st.tuples(st.integers(2, 6), st.just(1), st.integers(1, 2)),  # depthwise
            st.tuples(st.integers(2, 3), st.integers(1, 4), st.integers(1, 5)),  # grouped
        )
    )
    batch = draw(st.integers(1, 3))
    return Case(
        batch, groups, inputs, outputs, image, kernel, strides, dilations, pads, draw(st.booleans()),
        draw(st.integers(0, 2**31)),
    )  # fmt: skip


def check_conv(case: Case, attributes: Mapping[str, Attribute] | None = None) -> None:
    draw = np.random.default_rng(case.seed)
    x = normal(draw, case.batch, case.groups * case.inputs, *case.image)
    w = normal(draw, case.groups * case.outputs, case.inputs, *case.kernel)
    b = [normal(draw, case.groups * case.outputs)] if case.bias else []

    def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return FUNCTIONS[len(case.image)](pad(x, case.pads), w, b, case.strides, 0, case.dilations, case.groups)

    check_operator(
        "Conv", [x, w, *b], reference, attributes or case.attributes, differentiate=range(2 + case.bias), seed=case.seed
    )


@given(cases())
def test_conv(case: Case) -> None:
    check_conv(case)


def square(kernel: int, stride: int = 1, dilation: int = 1, pad: int = 0, **other: object) -> Case:
    """A 2-D case of equal sides; anything else can be replaced."""
    case = Case(2, 1, 5, 6, (9, 11), (kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 4, True, 1)
    return replace(case, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case",
    [
        square(3, pad=1, image=(1, 8)),
        square(3, pad=1, image=(8, 1)),
        square(3, pad=1, image=(1, 1)),
        square(2, stride=5, image=(12, 13)),
        square(1, stride=2),
        square(1, stride=3, pad=2),
        square(3, pad=3),
        square(2, pad=5, image=(2, 3)),
        square(3, dilation=4, pad=4),
        square(3, stride=2, dilation=2, pad=2),
        square(3, stride=4, dilation=2, pad=3, image=(10, 17)),
        square(3, stride=2, pad=1, groups=6, inputs=1, outputs=1, image=(12, 12)),
        square(3, stride=1, pad=1, groups=6, inputs=1, outputs=1, image=(25, 5)),
        square(3, stride=1, pad=1, groups=3, inputs=1, outputs=1, image=(3, 3)),
        square(5, stride=1, pad=2, groups=3, inputs=1, outputs=1, image=(12, 12)),
        square(3, stride=1, pad=1, groups=2, inputs=1, outputs=3, image=(12, 12)),
        Case(1, 1, 1, 9, (49, 10), (10, 4), (2, 2), (1, 1), (5, 1, 5, 1), False, 3),
        Case(2, 1, 3, 8, (16, 16), (3, 3), (2, 2), (1, 1), (0, 0, 1, 1), False, 4),
        Case(2, 1, 8, 8, (12, 12), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), True, 5),
        Case(2, 2, 8, 12, (7,), (1,), (1,), (1,), (0, 0), True, 6),
    ],
    ids=repr,
)
def test_conv_corner(case: Case) -> None:
    check_conv(case)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@given(st.integers(4, 12), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_conv_auto_pad(mode: str, extent: int, kernel: int, stride: int, dilation: int) -> None:
    reach = (kernel - 1) * dilation + 1
    if mode == "VALID" and reach > extent:
        return
    total = 0 if mode == "VALID" else max((-(-extent // stride) - 1) * stride + reach - extent, 0)
    small, large = total // 2, total - total // 2
    begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
    case = Case(1, 1, 2, 3, (extent,), (kernel,), (stride,), (dilation,), (begin, end), True, extent)
    check_conv(case, {"auto_pad": mode, "strides": (stride,), "dilations": (dilation,)})


@given(cases(), st.data())
def test_conv_transpose(case: Case, data: st.DataObject) -> None:
    rank = len(case.image)
    limit = [max(s, d) - 1 for s, d in zip(case.strides, case.dilations, strict=True)]
    extra = tuple(data.draw(st.integers(0, most)) for most in limit)
    natural = [
        (case.image[d] - 1) * case.strides[d] + (case.kernel[d] - 1) * case.dilations[d] + 1 + extra[d]
        for d in range(rank)
    ]
    pads = tuple(
        min(case.pads[side * rank + d], (natural[d] - 1) // 2) for side in (0, 1) for d in range(rank)
    )
    draw = np.random.default_rng(case.seed)
    x = normal(draw, case.batch, case.groups * case.inputs, *case.image)
    w = normal(draw, case.groups * case.inputs, case.outputs, *case.kernel)
    b = [normal(draw, case.groups * case.outputs)] if case.bias else []

    def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        y = TRANSPOSED[rank](x, w, None, case.strides, 0, 0, case.groups, case.dilations)
        y = pad(y, (*(0,) * rank, *extra))
        y = y if b is None else y + b.reshape(1, -1, *(1,) * rank)
        return pad(y, tuple(-amount for amount in pads))

    attributes = {**case.attributes, "pads": pads, "output_padding": extra}
    check_operator(
        "ConvTranspose", [x, w, *b], reference, attributes, differentiate=range(2 + case.bias), seed=case.seed
    )


@pytest.mark.parametrize(
    ("attributes", "output"),
    [
        ({"strides": (3, 2), "output_shape": (10, 8)}, (10, 8)),
        ({"strides": (3, 2), "output_shape": (10, 8), "output_padding": (1, 1)}, (10, 8)),
        ({"strides": (2, 2), "auto_pad": "SAME_UPPER"}, (6, 6)),
        ({"strides": (2, 2), "auto_pad": "SAME_LOWER"}, (6, 6)),
        ({"strides": (2, 2), "auto_pad": "VALID"}, (7, 7)),
    ],
)
def test_conv_transpose_output_shape(attributes: dict[str, Attribute], output: tuple[int, int]) -> None:
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    draw = np.random.default_rng(0)
    x, w = normal(draw, 1, 1, 3, 3), normal(draw, 1, 2, 3, 3)
    node = helper.make_node("ConvTranspose", ["x0", "x1"], ["y0"], **attributes)
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x0", "x1", "y0")]
    model = helper.make_model(helper.make_graph([node], "g", types[:2], types[2:]))
    wanted = ReferenceEvaluator(model).run(None, {"x0": x, "x1": w})[0]
    graph = one_node_graph("ConvTranspose", [x, w], attributes)
    assert graph.types["y0"].shape == (1, 2, *output)
    np.testing.assert_allclose(run_graph(graph, {"x0": x, "x1": w})["y0"], wanted, rtol=1e-5, atol=1e-5)


def test_macs_are_nominal_and_equal_in_all_directions() -> None:
    draw = np.random.default_rng(0)
    attributes = {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 2}
    graph = one_node_graph("Conv", [normal(draw, 2, 6, 9, 9), normal(draw, 4, 3, 3, 3)], attributes)
    full, _ = with_gradient(graph, ["x0", "x1"])
    nests = [n for node in full.nodes for n in registry.get(node.op).nests(NodeView(node, full.types))]
    assert [nest.macs for nest in nests if nest.counts_macs] == [2 * 4 * 3 * 5 * 5 * 9] * 3


def test_an_empty_batch_has_zero_gradients() -> None:
    draw = np.random.default_rng(0)
    check_operator(
        "Conv",
        [normal(draw, 0, 3, 5, 5), normal(draw, 4, 3, 3, 3), normal(draw, 4)],
        torch.nn.functional.conv2d,
        differentiate=(0, 1, 2),
        finite_differences=False,
    )


def refusal(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Attribute] | None = None) -> str:
    draw = np.random.default_rng(0)
    with pytest.raises(UserError) as caught:
        one_node_graph(op, [normal(draw, *shape) for shape in shapes], attributes)
    return str(caught.value)


def test_refusals() -> None:
    text = refusal("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)])
    assert "Conv: the channels of the input ('x0') do not match the weight ('x1')" in text
    assert "2 channels (one group, from weight [4, 2, 3, 3])" in text
    assert "3, from input [1, 3, 8, 8]" in text
    assert "6 channels (3 groups of 2" in refusal("Conv", [(1, 4, 8, 8), (6, 2, 3, 3)], {"group": 3})
    assert "does not divide into groups" in refusal("Conv", [(1, 4, 8, 8), (5, 2, 3, 3)], {"group": 2})
    assert "the window is larger than the padded input" in refusal("Conv", [(1, 2, 2, 8), (5, 2, 3, 3)])
    assert "the bias ('x2') has a wrong shape" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3), (4,)])
    assert "3-D convolutions" in refusal("Conv", [(1, 2, 8, 8, 8), (5, 2, 3, 3, 3)])
    assert "kernel_shape does not match" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3)], {"kernel_shape": (3, 2)})
    assert "'strides' is wrong" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3)], {"strides": (0, 1)})
    assert "'pads' is wrong" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3)], {"pads": (1, 1)})
    assert "unknown auto_pad" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3)], {"auto_pad": "SAME"})
    both = {"auto_pad": "VALID", "pads": (1, 1, 1, 1)}
    assert "exclude each other" in refusal("Conv", [(1, 2, 8, 8), (5, 2, 3, 3)], both)
    assert "3 channels (the weight's dimension 0" in refusal("ConvTranspose", [(1, 2, 8, 8), (3, 2, 3, 3)])
    assert "output_padding is too large" in refusal(
        "ConvTranspose", [(1, 2, 8, 8), (2, 2, 3, 3)], {"output_padding": (1, 0)}
    )
    assert "leave nothing" in refusal("ConvTranspose", [(1, 2, 1, 1), (2, 2, 3, 3)], {"pads": (1, 1, 2, 2)})
    shapes = [(1, 4, 5, 6), (1, 2, 8, 8), (4, 2, 3, 3)]
    assert "the gradient of Y ('x0') has a wrong shape" in refusal("ConvGrad", shapes)


def in_written_order(x: np.ndarray, w: np.ndarray, dy: np.ndarray, case: Case) -> tuple[np.ndarray, ...]:
    """NUMERICS.md's orders, spelt out with the C library's fmaf: y (ic, kh, kw), dx (oc, kh, kw), dw (n, oh, ow)."""
    libm = ctypes.CDLL("libm.so.6")
    libm.fmaf.restype = ctypes.c_float
    libm.fmaf.argtypes = [ctypes.c_float] * 3
    (sh, sw), (dh, dw_), (top, left) = case.strides, case.dilations, case.pads[:2]
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    outputs, inputs = case.outputs, case.inputs
    taps = np.ndindex(case.batch, case.groups, outputs, inputs, *case.kernel, *dy.shape[2:])
    for n, g, o, i, kh, kw, oh, ow in taps:  # this order of loops has all three orders in it
        ih, iw = oh * sh + kh * dh - top, ow * sw + kw * dw_ - left
        if 0 <= ih < x.shape[2] and 0 <= iw < x.shape[3]:
            o_, i_ = g * outputs + o, g * inputs + i
            value, weight, gradient = x[n, i_, ih, iw], w[o_, i, kh, kw], dy[n, o_, oh, ow]
            y[n, o_, oh, ow] = libm.fmaf(value, weight, y[n, o_, oh, ow])
            dx[n, i_, ih, iw] = libm.fmaf(gradient, weight, dx[n, i_, ih, iw])
            dw[o_, i, kh, kw] = libm.fmaf(gradient, value, dw[o_, i, kh, kw])
    return y, dx, dw


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1, 3, 6, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False, 0),
        Case(1, 1, 5, 5, (8, 10), (3, 3), (2, 2), (1, 1), (0, 0, 1, 1), False, 1),
        Case(1, 1, 5, 9, (4, 5), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), False, 2),
        Case(2, 1, 4, 3, (6, 8), (2, 4), (2, 1), (1, 2), (1, 3, 0, 2), False, 3),
        Case(1, 3, 1, 1, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False, 4),
        Case(2, 3, 1, 1, (8, 17), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False, 5),
        Case(1, 2, 1, 2, (7, 7), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), False, 6),
    ],
    ids=repr,
)
def test_bits_follow_the_written_order(case: Case) -> None:
    """Infinite weights too: a padding tap that is multiplied instead of skipped would give NaN."""
    draw = np.random.default_rng(case.seed)
    x = normal(draw, case.batch, case.groups * case.inputs, *case.image)
    w = normal(draw, case.groups * case.outputs, case.inputs, *case.kernel)
    w[0, 0, 0, 0] = np.inf
    full, gradients = with_gradient(one_node_graph("Conv", [x, w], case.attributes), ["x0", "x1"])
    dy = normal(draw, *full.types["y0"].shape)
    values = run_graph(full, {"x0": x, "x1": w, "seed": dy})
    for name, wanted in zip(
        ("y0", gradients["x0"], gradients["x1"]), in_written_order(x, w, dy, case), strict=True
    ):
        np.testing.assert_array_equal(values[name].view(np.int32), wanted.view(np.int32), err_msg=name)
