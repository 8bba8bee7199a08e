"""Small ONNX models, right and wrong, for tests of commands and messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Fixed, not zero, not symmetric."""
    count = int(np.prod(shape))
    values = np.sin(np.arange(count, dtype=np.float64) * 0.7 + 0.3).reshape(shape) * 0.3
    return numpy_helper.from_array(values.astype(np.float32), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    input_shape: Shape,
    output_shape: Shape,
    initializers: Sequence[onnx.TensorProto] = (),
    declared: Sequence[onnx.ValueInfoProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model from `x` to `y`. Nothing is checked: the point is often that it is wrong."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape)],
        list(initializers),
        value_info=list(declared),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)


def linear(features: int = 8, classes: int = 4) -> onnx.ModelProto:
    """The smallest model that trains."""
    return model(
        [node("Gemm", ["x", "w", "b"], ["y"], "fc")],
        ["N", features],
        ["N", classes],
        [weights("w", features, classes), weights("b", classes)],
    )


def saved(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path
