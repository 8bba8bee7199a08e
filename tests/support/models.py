"""Small ONNX models for tests, in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ELEMENT_TYPES = {"f32": TensorProto.FLOAT, "f64": TensorProto.DOUBLE, "f16": TensorProto.FLOAT16}
ELEMENT_TYPES |= {"i64": TensorProto.INT64, "i32": TensorProto.INT32, "bool": TensorProto.BOOL}

Shape = Sequence[int | str | None] | None


def value(name: str, shape: Shape, element_type: str = "f32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[element_type], shape)


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: object) -> onnx.NodeProto:
    """Inputs and outputs separated by blanks; `_` is an absent one."""
    names = [["" if part == "_" else part for part in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, name=name, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, object] | None = None,
    *,
    opset: int = 17,
    value_info: Sequence[onnx.ValueInfoProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Initializers that are Python floats or lists become float32."""
    tensors = []
    for name, content in (initializers or {}).items():
        array = content if isinstance(content, np.ndarray) else np.asarray(content, np.float32)
        tensors.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), tensors, value_info=list(value_info))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def mlp(batch: int | str | None = "batch", opset: int = 17) -> onnx.ModelProto:
    """Gemm 8-16-4 with a ReLU."""
    return model(
        [
            node("Gemm", "x w1 b1", "h", "/fc1/Gemm", transB=1),
            node("Relu", "h", "r", "/relu/Relu"),
            node("Gemm", "r w2 b2", "y", "/fc2/Gemm", transB=1),
        ],
        [value("x", [batch, 8])],
        [value("y", [batch, 4])],
        {"w1": weights(16, 8), "b1": weights(16), "w2": weights(4, 16), "b2": weights(4)},
        opset=opset,
    )
