"""Each training operator of ONNX Runtime in a graph of its own: our kernels and the NumPy reference against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tests.conftest import NO_TORCH

torch: Any = pytest.importorskip("torch") if not NO_TORCH else None
pytestmark = pytest.mark.skipif(NO_TORCH, reason="PyTorch is the reference")
MS = "com.microsoft"
DRAW = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Case:
    """`nodes` make `w_grad`; `expected` gets the inputs as float64 tensors and returns it."""

    inputs: dict[str, Any]
    nodes: list[onnx.NodeProto]
    expected: Callable[..., Any]
    constants: dict[str, Any]
    opset: int = 14


def node(op: str, inputs: str, outputs: str, domain: str = MS, **attributes: Any) -> onnx.NodeProto:
    names = [[("" if name == "_" else name) for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, domain=domain, **attributes)


def gradient_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of x, by autograd: `function` of all tensors, of which `dy` is what flows back."""

    def expected(**tensors: Any) -> Any:
        x = tensors["x"].clone().requires_grad_(True)
        others = {name: value for name, value in tensors.items() if name not in ("x", "dy")}
        y = function(x, **others)
        y.backward(tensors.get("dy", torch.ones_like(y)))
        return x.grad

    return expected


def wide(values: Any) -> Any:
    return torch.tensor(np.asarray(values, np.float64))


def case(inputs: dict[str, Any], nodes: list[onnx.NodeProto], expected: Any, opset: int = 14, **constants: Any) -> Case:
    return Case(inputs, nodes, expected, constants, opset)


F = torch.nn.functional if torch is not None else None
X, DY = floats(2, 5), floats(2, 5)
IMAGE = floats(2, 3, 6, 5)
KERNEL = floats(4, 3, 3, 3)
LABELS = np.array([0, 3, 1, 3])
SCORES = floats(4, 5)
WEIGHTS = np.array([1.0, 2.0, 0.5, 0.25, 3.0], np.float32)


def entropy(x: Any, **options: Any) -> Any:
    return F.cross_entropy(x, torch.tensor(LABELS), **options)


CASES: dict[str, Callable[[], Case]] = {
    "ReluGrad": lambda: case(
        {"x": X, "dy": DY},
        [node("Relu", "x", "y", ""), node("ReluGrad", "dy y", "w_grad")],
        gradient_of(lambda x: torch.relu(x)),
    ),
    "SigmoidGrad": lambda: case(
        {"x": X, "dy": DY},
        [node("Sigmoid", "x", "y", ""), node("SigmoidGrad", "dy y", "w_grad")],
        gradient_of(lambda x: torch.sigmoid(x)),
    ),
    "TanhGrad": lambda: case(
        {"x": X, "dy": DY},
        [node("Tanh", "x", "y", ""), node("TanhGrad", "dy y", "w_grad")],
        gradient_of(lambda x: torch.tanh(x)),
    ),
    "GeluGrad": lambda: case(
        {"x": X, "dy": DY}, [node("GeluGrad", "dy x", "w_grad")], gradient_of(lambda x: F.gelu(x))
    ),
    "GeluGrad without a domain": lambda: case(
        {"x": X, "dy": DY}, [node("GeluGrad", "dy x", "w_grad", "")], gradient_of(lambda x: F.gelu(x))
    ),
    "BiasGelu": lambda: case(
        {"x": X, "dy": DY},
        [
            node("BiasGelu", "x b", "y"),
            node("BiasGeluGrad_dX", "dy x b", "g"),
            node("Sum", "g y", "w_grad", ""),
        ],
        lambda x, dy: gradient_of(lambda x: F.gelu(x + wide(BIAS)))(x=x, dy=dy) + F.gelu(x + wide(BIAS)),
        b=BIAS,
    ),
    "FastGelu": lambda: case(
        {"x": X, "dy": DY},
        [node("FastGeluGrad", "dy x", "w_grad")],
        gradient_of(lambda x: F.gelu(x, approximate="tanh")),
    ),
    "ConvGrad dX": lambda: case(
        {"x": IMAGE, "dy": floats(2, 4, 3, 3)},
        [node("ConvGrad", "dy x k", "w_grad", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], group=1)],
        gradient_of(lambda x: F.conv2d(x, torch.tensor(KERNEL, dtype=torch.float64), stride=2, padding=1)),
        k=KERNEL,
    ),
    "ConvGrad dW": lambda: case(
        {"image": IMAGE, "dy": floats(2, 3, 6, 5)},
        [
            node("Identity", "k", "x", ""),
            node("ConvGrad", "dy image x", "_ w_grad", kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=3),
        ],
        lambda image, dy: gradient_of(lambda x: F.conv2d(image, x, padding=1, groups=3))(
            x=torch.tensor(KERNEL[:3, :1], dtype=torch.float64), dy=dy
        ),
        k=KERNEL[:3, :1],
    ),
    "ConvGrad dB": lambda: case(
        {"x": IMAGE, "dy": floats(2, 4, 6, 5)},
        [node("ConvGrad", "dy x k", "_ _ w_grad", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        lambda x, dy: dy.sum(dim=(0, 2, 3)),
        k=KERNEL,
    ),
    "MaxPoolGrad": lambda: case(
        {"x": IMAGE, "dy": floats(2, 3, 3, 2)},
        [
            node("MaxPool", "x", "y mask", "", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 0]),
            node("MaxPoolGrad", "dy mask", "w_grad", "", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 0]),
        ],
        gradient_of(lambda x: F.max_pool2d(F.pad(x, (0, 0, 1, 0), value=-1e30), 3, 2)),
    ),
    "AveragePoolGrad": lambda: case(
        {"x": IMAGE, "dy": floats(2, 3, 3, 3)},
        [
            node("AveragePool", "x", "y", "", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("AveragePoolGrad", "dy", "g", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Identity", "g", "w_grad", ""),
        ],
        gradient_of(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    ),
    "BatchNormalizationGrad": lambda: case(
        {"x": IMAGE, "dy": floats(2, 3, 6, 5)},
        [
            node("BatchNormInternal", "x g b m v", "y rm rv sm si", epsilon=1e-3, momentum=0.8, training_mode=1),
            node("BatchNormalizationGrad", "dy x g sm si", "w_grad dg db", epsilon=1e-3),
        ],
        gradient_of(lambda x: F.batch_norm(x, None, None, wide([0.5, 2.0, 1.0]), None, True, 0.1, 1e-3)),
        g=np.array([0.5, 2.0, 1.0], np.float32),
        b=np.zeros(3, np.float32),
        m=np.zeros(3, np.float32),
        v=np.ones(3, np.float32),
    ),
    "LayerNormalizationGrad with statistics": lambda: case(
        {"x": X, "dy": DY},
        [
            node("LayerNormalization", "x g b", "y mean inverse", "", axis=-1, epsilon=1e-3),
            node("LayerNormalizationGrad", "dy x g mean inverse", "w_grad dg db", axis=-1),
        ],
        gradient_of(lambda x: F.layer_norm(x, (5,), torch.tensor(BIAS, dtype=torch.float64), None, 1e-3)),
        g=BIAS,
        b=BIAS,
    ),
    "LayerNormalizationGrad of the peer": lambda: case(
        {"x": X, "dy": DY},
        [node("LayerNormalizationGrad", "dy x g b", "w_grad", axis=-1, epsilon=1e-3)],
        gradient_of(lambda x: F.layer_norm(x, (5,), torch.tensor(BIAS, dtype=torch.float64), None, 1e-3)),
        g=BIAS,
        b=BIAS,
    ),
    "SoftmaxGrad_13": lambda: case(
        {"x": floats(2, 3, 4), "dy": floats(2, 3, 4)},
        [node("Softmax", "x", "y", "", axis=1), node("SoftmaxGrad_13", "dy y", "w_grad", axis=1)],
        gradient_of(lambda x: torch.softmax(x, 1)),
    ),
    "SoftmaxGrad of all dimensions behind its axis": lambda: case(
        {"x": floats(2, 3, 4), "dy": floats(2, 3, 4)},
        [node("Softmax", "x", "y", "", axis=1), node("SoftmaxGrad", "dy y", "w_grad", axis=1)],
        gradient_of(lambda x: torch.softmax(x.reshape(2, 12), 1).reshape(2, 3, 4)),
        opset=12,
    ),
    "LogSoftmaxGrad_13": lambda: case(
        {"x": X, "dy": DY},
        [node("LogSoftmax", "x", "y", "", axis=-1), node("LogSoftmaxGrad_13", "dy y", "w_grad", axis=-1)],
        gradient_of(lambda x: torch.log_softmax(x, -1)),
    ),
    "GatherGrad": lambda: case(
        {"x": floats(6, 4), "dy": floats(3, 2, 4)},
        [
            node("Shape", "x", "shape", ""),
            node("GatherGrad", "shape i dy", "w_grad", axis=0),
        ],
        gradient_of(lambda x: x[torch.tensor([[0, 5], [2, 2], [0, 0]])]),
        i=np.array([[0, 5], [2, 2], [0, 0]]),
    ),
    "ConcatTraining": lambda: case(
        {"x": X, "dy": floats(2, 3)},
        [
            node("ConcatTraining", "x dy", "both lengths", axis=1),
            node("Slice", "both zero five one", "w_grad", ""),
        ],
        lambda x, dy: torch.cat([x, dy], 1)[:, :5],
        zero=np.array([0]),
        five=np.array([5]),
        one=np.array([1]),
    ),
    "Scale and Expand": lambda: case(
        {"x": IMAGE, "dy": floats(2, 3, 1, 1)},
        [
            node("Shape", "x", "shape", ""),
            node("Scale", "dy thirty", "scaled", scale_down=1),
            node("Expand", "scaled shape", "w_grad", ""),
        ],
        gradient_of(lambda x: x.mean(dim=(2, 3), keepdim=True)),
        thirty=np.array([30.0], np.float32),
    ),
    "FusedMatMul": lambda: case(
        {"x": floats(2, 3, 4), "dy": floats(2, 3, 5)},
        [node("FusedMatMul", "x dy", "w_grad", transA=1, alpha=0.5)],
        lambda x, dy: 0.5 * x.transpose(1, 2) @ dy,
    ),
    "Gemm of stacks": lambda: case(
        {"x": floats(2, 3, 4), "dy": floats(2, 5, 4)},
        [node("Gemm", "x dy b", "w_grad", "", transB=1, alpha=2.0, beta=0.5)],
        lambda x, dy: 2.0 * x @ dy.transpose(1, 2) + 0.5 * torch.tensor(BIAS),
        b=BIAS,
    ),
    "ReduceSumTraining": lambda: case(
        {"x": floats(2, 3, 4), "dy": floats(4)},
        [node("ReduceSumTraining", "x axes", "sums", keepdims=0), node("Mul", "sums dy", "w_grad", "")],
        lambda x, dy: x.sum(dim=(0, 1)) * dy,
        axes=np.array([0, 1]),
    ),
    "SoftmaxCrossEntropyLossGrad": lambda: case(
        {"x": SCORES},
        [
            node("SoftmaxCrossEntropyLoss", "x labels", "own log", "", reduction="mean"),
            node("SoftmaxCrossEntropyLossGrad", "one log labels", "w_grad", reduction="mean"),
        ],
        gradient_of(entropy),
        labels=LABELS,
        one=np.float32(1.0),
    ),
    "SoftmaxCrossEntropyLossGrad with weights": lambda: case(
        {"x": SCORES},
        [
            node("SoftmaxCrossEntropyLoss", "x labels ws", "own log", "", reduction="mean"),
            node("SoftmaxCrossEntropyLossGrad", "one log labels ws", "w_grad", reduction="mean"),
        ],
        gradient_of(lambda x: entropy(x, weight=torch.tensor(WEIGHTS, dtype=torch.float64))),
        labels=LABELS,
        ws=WEIGHTS,
        one=np.float32(1.0),
    ),
    "SoftmaxCrossEntropyLossInternal": lambda: case(
        {"x": SCORES},
        [
            node("SoftmaxCrossEntropyLossInternal", "x labels ws skip", "own log", reduction="mean"),
            node("SoftmaxCrossEntropyLossInternalGrad", "two log labels ws skip", "w_grad", reduction="mean"),
        ],
        gradient_of(lambda x: 2 * entropy(x, weight=torch.tensor(WEIGHTS, dtype=torch.float64), ignore_index=3)),
        labels=LABELS,
        ws=WEIGHTS,
        skip=np.array(3),
        two=np.float32(2.0),
    ),
    "one output and no gradient of the loss": lambda: case(
        {"x": SCORES},
        [
            node("SoftmaxCrossEntropyLoss", "x labels", "log", "", reduction="mean"),
            node("SoftmaxCrossEntropyLossGrad", "log labels", "w_grad", reduction="mean"),
        ],
        gradient_of(entropy),
        labels=LABELS,
    ),
}
BIAS = floats(5)


def graph_of(made: Case, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The case's nodes, a loss that does not matter, and an accumulator of what they make."""
    nodes = [*made.nodes, node("ReduceSum", "x", "loss", "", keepdims=0)]
    nodes.append(node("InPlaceAccumulatorV2", "w_grad.accumulation.buffer w_grad lazy_reset_grad", "w.out"))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in made.inputs.items()]
    if "x" not in made.inputs:
        nodes[-2] = node("ReduceSum", "dy", "loss", "", keepdims=0)
    inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    inputs.append(helper.make_tensor_value_info("w_grad.accumulation.buffer", TensorProto.FLOAT, shape))
    inputs.append(helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1]))
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    outputs.append(helper.make_tensor_value_info("w.out", TensorProto.BOOL, [1]))
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in made.constants.items()]
    graph = helper.make_graph(nodes, "case", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", made.opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Any) -> None:
    made = CASES[name]()
    expected = made.expected(**{n: torch.tensor(a, dtype=torch.float64) for n, a in made.inputs.items()}).numpy()
    onnx.save(graph_of(made, expected.shape), tmp_path / "network.onnx")
    np.savez(tmp_path / "inputs.npz", **made.inputs)
    compiled = tg.compile(str(tmp_path))
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=1)
    scale = max(np.abs(expected).max(), 1e-6)
    np.testing.assert_allclose(run.first_gradients["w"] / scale, expected / scale, atol=3e-6)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
