"""Small ONNX models that are nobody's zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[Any, ...]],
    outputs: list[str],
    weights: dict[str, np.ndarray[Any, Any]],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def convolution_model(seed: int = 0) -> onnx.ModelProto:
    """Conv, BatchNormalization, ReLU, MaxPool, Gemm: the operators whose gradients are easiest to get wrong."""
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) * 0.4).astype(np.float32)

    weights = {
        "conv.weight": draw(6, 2, 3, 3),
        "conv.bias": draw(6),
        "bn.scale": 1 + draw(6),
        "bn.bias": draw(6),
        "bn.mean": draw(6),
        "bn.variance": (0.5 + random.random(6)).astype(np.float32),
        "fc.weight": draw(5, 54),
        "fc.bias": draw(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.variance"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]
    return make_model(nodes, {"x": ("N", 2, 6, 6)}, ["y"], weights)


TRAINABLE = ("conv.weight", "conv.bias", "bn.scale", "bn.bias", "fc.weight", "fc.bias")


def make_batches(count: int, batch: int = 2, seed: int = 1) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    random = np.random.default_rng(seed)
    return [
        (random.standard_normal((batch, 2, 6, 6)).astype(np.float32), random.integers(0, 5, batch))
        for _ in range(count)
    ]


@pytest.fixture
def small_model() -> onnx.ModelProto:
    return convolution_model()
