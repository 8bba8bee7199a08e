"""The two networks, as ONNX. Any exporter's file would do; these need no framework."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_DRAW = np.random.default_rng(1)


def _weight(name: str, *shape: int, fan_in: int) -> onnx.TensorProto:
    bound = (3.0 / fan_in) ** 0.5
    return numpy_helper.from_array(_DRAW.uniform(-bound, bound, shape).astype(np.float32), name)


def _bias(name: str, size: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(size, np.float32), name)


def _model(
    nodes: list[onnx.NodeProto], shape: list[int], classes: int, weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def for_gestures(classes: int, channels: int = 6, length: int = 50) -> onnx.ModelProto:
    """Two convolutions along time, the mean over it, two dense layers: 5,000 parameters."""
    node = helper.make_node
    return _model(
        [
            node("Conv", ["x", "conv1.weight", "conv1.bias"], ["a"], kernel_shape=[5], strides=[2]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "conv2.weight", "conv2.bias"], ["c"], kernel_shape=[5], strides=[2]),
            node("Relu", ["c"], ["d"]),
            node("GlobalAveragePool", ["d"], ["e"]),
            node("Flatten", ["e"], ["f"]),
            node("Gemm", ["f", "dense.weight", "dense.bias"], ["g"], transB=1),
            node("Relu", ["g"], ["h"]),
            node("Gemm", ["h", "head.weight", "head.bias"], ["scores"], transB=1),
        ],
        [channels, length],
        classes,
        [
            *(_weight("conv1.weight", 16, channels, 5, fan_in=5 * channels), _bias("conv1.bias", 16)),
            *(_weight("conv2.weight", 32, 16, 5, fan_in=80), _bias("conv2.bias", 32)),
            *(_weight("dense.weight", 32, 32, fan_in=32), _bias("dense.bias", 32)),
            *(_weight("head.weight", classes, 32, fan_in=32), _bias("head.bias", classes)),
        ],
    )


def for_digits(classes: int, pixels: int = 64) -> onnx.ModelProto:
    """Three dense layers: 5,500 parameters."""
    node = helper.make_node
    return _model(
        [
            node("Gemm", ["x", "dense1.weight", "dense1.bias"], ["a"], transB=1),
            node("Relu", ["a"], ["b"]),
            node("Gemm", ["b", "dense2.weight", "dense2.bias"], ["c"], transB=1),
            node("Relu", ["c"], ["d"]),
            node("Gemm", ["d", "head.weight", "head.bias"], ["scores"], transB=1),
        ],
        [pixels],
        classes,
        [
            *(_weight("dense1.weight", 48, pixels, fan_in=pixels), _bias("dense1.bias", 48)),
            *(_weight("dense2.weight", 40, 48, fan_in=48), _bias("dense2.bias", 40)),
            *(_weight("head.weight", classes, 40, fan_in=40), _bias("head.bias", classes)),
        ],
    )
