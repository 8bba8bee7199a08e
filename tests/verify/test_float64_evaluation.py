"""ONNX's reference evaluator, made to run in float64, against PyTorch's float64 on ONNX's own node tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

pytest.importorskip("torch")

from tests.verify.test_torch_backend_nodes import CASES, OF_TRAINING
from tilegrad.verify.float64_model import REPLACED_OPERATORS, to_double
from tilegrad.verify.torch_executor import evaluate

# Operators of issue 2 whose float64 forward differences rely on.
OPERATORS = frozenset(
    (
        *("Gemm", "MatMul", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        *("BatchNormalization", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "Relu", "PRelu"),
        *("LeakyRelu", "Clip", "Elu", "Gelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus", "Softmax"),
        *("LogSoftmax", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Exp", "Log", "Erf", "Min", "Max"),
        *("Where", "ReduceSum", "ReduceMean", "ReduceMax", "Transpose", "Concat", "Split", "Slice", "Pad", "Gather"),
    )
)


def _floating(case: Any) -> bool:
    operators = {node.op_type for node in case.model.graph.node}
    floats = all(array.dtype in (np.float32, np.float64) for array in case.data_sets[0][1])
    return len(operators) == 1 and operators <= OPERATORS and floats and not case.name.startswith(OF_TRAINING)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if _floating(case)])
def test_node_in_float64(case: Any) -> None:
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, case.data_sets[0][0], strict=False))
    wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    expected = evaluate(case.model, feeds, "float64")
    results = ReferenceEvaluator(to_double(case.model), new_ops=REPLACED_OPERATORS).run(None, wide)
    for (_, reference), result in zip(expected.items(), results, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-9, atol=1e-12)
