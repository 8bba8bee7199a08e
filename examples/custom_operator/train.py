"""Trains a model with a custom operator, and checks it against the same model made of standard operators."""

from __future__ import annotations

import numpy as np
import onnx
import squared_relu
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg

squared_relu.register()
CUSTOM = [helper.make_node("SquaredRelu", ["h"], ["a"], name="act", domain="com.example")]
STANDARD = [helper.make_node("Relu", ["h"], ["r"], name="relu"), helper.make_node("Mul", ["r", "r"], ["a"], name="mul")]


def model(activation: list[onnx.NodeProto]) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {
        name: 0.3 * random.standard_normal(shape, dtype=np.float32)
        for name, shape in {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}.items()
    }
    first = helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first")
    last = helper.make_node("Gemm", ["a", "w2", "b2"], ["y"], name="last")
    graph = helper.make_graph(
        [first, *activation, last],
        "squared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


recipe = tg.Recipe(batch=4, optimizer=tg.SGD(lr=0.2))
with tg.open_device("host") as device:
    # No reference knows the custom operator, so the run itself is not verified ...
    custom = tg.train(tg.compile(model(CUSTOM), recipe), device, steps=60, verify=False)
    # ... but the model in standard operators is, and its weights are those of the custom one.
    standard = tg.train(tg.compile(model(STANDARD), recipe), device, steps=60)

assert standard.verdict is not None and standard.verdict.verified
apart = max(float(np.max(np.abs(custom.weights[name] - standard.weights[name]))) for name in standard.weights)
print(f"loss {custom.losses[0]:.4f} -> {custom.losses[-1]:.4f}")
print(f"largest weight difference to the model in standard operators: {apart:.1e}")
assert apart < 1e-6
