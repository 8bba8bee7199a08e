"""Every opset from 11 on means the same after import as it does to ONNX Runtime before it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.support.kernels import run_graph
from tests.support.models import ints, mlp, model, node, value, weights
from tilegrad.frontend import load
from tilegrad.frontend.check import CANONICAL_OPSET

X = weights(2, 4, 6)
IMAGE = weights(2, 4, 6, 6)
ONES = np.ones(4, np.float32)


def scalar(number: float) -> np.ndarray:
    return np.array(number, np.float32)


# (operator, opset, input, outputs, attributes, further operands)
CASES = [
    ("Squeeze", 11, X[:1], 1, {"axes": [0]}, {}),
    ("Squeeze", 13, X[:1], 1, {}, {"a": ints(0)}),
    ("Unsqueeze", 11, X, 1, {"axes": [0, -1]}, {}),
    ("ReduceSum", 11, X, 1, {"axes": [1], "keepdims": 0}, {}),
    ("ReduceMean", 11, X, 1, {"axes": [-1]}, {}),
    ("ReduceMean", 13, X, 1, {}, {}),
    ("ReduceMean", 18, X, 1, {}, {"a": ints(1, 2)}),
    ("ReduceMax", 12, X, 1, {"axes": [-1]}, {}),
    ("Split", 11, X, 2, {"axis": 1, "split": [1, 3]}, {}),
    ("Split", 11, X, 2, {"axis": 1}, {}),
    ("Split", 13, X, 2, {"axis": 1}, {}),
    ("Split", 13, X, 2, {"axis": 1}, {"s": ints(1, 3)}),
    ("Split", 18, X, 3, {"axis": 2, "num_outputs": 3}, {}),
    ("Softmax", 11, X, 1, {}, {}),
    ("Softmax", 11, X, 1, {"axis": 2}, {}),
    ("Softmax", 12, X, 1, {"axis": 1}, {}),
    ("Softmax", 13, X, 1, {"axis": 1}, {}),
    ("LogSoftmax", 11, X, 1, {"axis": 1}, {}),
    ("Dropout", 11, X, 1, {"ratio": 0.3}, {}),
    ("Dropout", 12, X, 1, {}, {"r": scalar(0.3)}),
    ("Clip", 11, X, 1, {}, {"a": scalar(-0.3), "b": scalar(0.8)}),
    ("Pad", 11, X, 1, {"mode": "constant"}, {"p": ints(0, 0, 1, 0, 0, 2), "v": scalar(0.5)}),
    ("Pad", 13, X, 1, {"mode": "reflect"}, {"p": ints(0, 0, 1, 0, 0, 2)}),
    ("Pad", 18, X, 1, {}, {"p": ints(1, 2), "v": scalar(0.5), "axes": ints(2)}),
    ("BatchNormalization", 11, IMAGE, 1, {"momentum": 0.8}, {"s": 2 * ONES, "b": ONES, "m": ONES / 2, "v": 3 * ONES}),
    ("BatchNormalization", 14, IMAGE, 1, {}, {"s": 2 * ONES, "b": ONES, "m": ONES / 2, "v": 3 * ONES}),
    ("BatchNormalization", 15, IMAGE, 1, {}, {"s": 2 * ONES, "b": ONES, "m": ONES / 2, "v": 3 * ONES}),
    ("GroupNormalization", 18, IMAGE, 1, {"num_groups": 2}, {"s": weights(2), "b": weights(2, seed=1)}),
    ("GroupNormalization", 21, IMAGE, 1, {"num_groups": 2}, {"s": weights(4), "b": weights(4, seed=1)}),
    ("LayerNormalization", 17, X, 1, {}, {"s": weights(6), "b": weights(6, seed=1)}),
    ("Gelu", 20, X, 1, {"approximate": "tanh"}, {}),
    ("AveragePool", 11, IMAGE, 1, {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1, 1, 1, 1]}, {}),
    ("MaxPool", 11, IMAGE, 1, {"kernel_shape": [3, 3], "ceil_mode": 1, "strides": [2, 2]}, {}),
    ("Reshape", 11, X, 1, {}, {"s": ints(0, -1)}),
    ("Flatten", 11, X, 1, {}, {}),
    ("Conv", 11, IMAGE, 1, {"auto_pad": "SAME_UPPER"}, {"w": weights(3, 4, 3, 3)}),
    ("ConvTranspose", 11, IMAGE, 1, {}, {"w": weights(4, 3, 3, 3)}),
    ("HardSigmoid", 11, X, 1, {"alpha": 0.3}, {}),
    ("HardSwish", 14, X, 1, {}, {}),
    ("PRelu", 11, X, 1, {}, {"s": weights(4, 1)}),
    ("Elu", 11, X, 1, {}, {}),
    ("LeakyRelu", 11, X, 1, {"alpha": 0.2}, {}),
    ("Min", 12, X, 1, {}, {"p": weights(6)}),
    ("Slice", 11, X, 1, {}, {"a": ints(1), "b": ints(5), "c": ints(2), "d": ints(2)}),
    ("Gather", 11, X, 1, {"axis": 1}, {"i": ints(1, 0)}),
    ("Expand", 11, X, 1, {}, {"s": ints(3, 1, 1, 1)}),
    ("Transpose", 11, X, 1, {}, {}),
    ("InstanceNormalization", 11, IMAGE, 1, {}, {"s": weights(4), "b": weights(4, seed=1)}),
    ("MatMul", 11, X, 1, {}, {"w": weights(6, 3)}),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1]}-{i}" for i, case in enumerate(CASES)])
def test_meaning_is_kept(case: tuple[str, int, np.ndarray, int, dict[str, object], dict[str, np.ndarray]]) -> None:
    operator, opset, x, count, attributes, operands = case
    outputs = " ".join(f"y{i}" for i in range(count))
    proto = model(
        [node(operator, " ".join(["x", *operands]), outputs, "it", **attributes)],
        [value("x", x.shape)],
        [value(name, None) for name in outputs.split()],
        operands,
        opset=opset,
    )
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    imported = load(proto)
    got = run_graph(imported.graph, {"x": x})
    again = onnxruntime.InferenceSession(imported.proto.SerializeToString()).run(None, {"x": x})
    for i, expected in enumerate(wanted):
        assert got[f"y{i}"].shape == expected.shape
        assert np.allclose(got[f"y{i}"], expected, atol=2e-6)
        assert np.allclose(again[i], expected, atol=2e-6)


@pytest.mark.parametrize("opset", range(11, CANONICAL_OPSET + 1))
def test_every_opset(opset: int) -> None:
    imported = load(mlp(opset=opset), batch=2)
    assert imported.proto.opset_import[0].version == CANONICAL_OPSET
    assert imported.graph == load(mlp(), batch=2).graph


def test_group_scales_stay_parameters() -> None:
    """The initializer of a GroupNormalization-18 keeps its name and its shape, one element per group."""
    proto = model(
        [node("GroupNormalization", "x s b", "y", "gn", num_groups=2)],
        [value("x", [1, 4, 3])],
        [value("y", None)],
        {"s": weights(2), "b": weights(2)},
        opset=18,
    )
    imported = load(proto)
    assert {name: (i.role, i.type.shape, i.is_bias) for name, i in imported.parameters.items()} == {
        "s": ("parameter", (2,), False),
        "b": ("parameter", (2,), True),
    }
    onnx.checker.check_model(imported.proto)
