"""The PyTorch reference runs ONNX's own node tests: whatever it is to judge, it must itself compute as ONNX says."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

from tilegrad.verify.torch_executor import evaluate
from tilegrad.verify.torch_ops import MODAL, TABLE, Mode

# Training mode is a matter of the recipe here, not of the node; these have tests of their own below and in
# test_torch_reference.py (PyTorch's unbiased running variance is not ONNX's).
OF_TRAINING = ("test_batchnorm_epsilon_training_mode", "test_batchnorm_example_training_mode", "test_training_dropout")
NUMBERS = {"float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8"}


def _node_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return list(load_model_tests(kind="node"))


def _arrays(case: Any) -> list[Any]:
    return [array for inputs, outputs in case.data_sets for array in (*inputs, *outputs)]


def _applies(case: Any) -> bool:
    graph = case.model.graph
    known = all((node.op_type in TABLE or node.op_type in MODAL) and not node.domain for node in graph.node)
    plain = all(isinstance(array, np.ndarray | np.generic) and str(array.dtype) in NUMBERS for array in _arrays(case))
    types = {attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "to"}
    proto = onnx.TensorProto
    return known and plain and types <= {proto.FLOAT, proto.DOUBLE, proto.INT32, proto.INT64, proto.BOOL}


CASES = [case for case in _node_cases() if _applies(case)]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if not case.name.startswith(OF_TRAINING)]
)
def test_node(case: Any) -> None:
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        got = evaluate(case.model, dict(zip(names, inputs, strict=False)), "float64")
        for expected, result in zip(outputs, got.values(), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5))


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if "training_dropout" in c.name])
def test_dropout_with_the_mask_that_was_drawn(case: Any) -> None:
    (inputs, outputs), names = case.data_sets[0], [value.name for value in case.model.graph.input]
    mode = Mode(dropout_mask=lambda node, shape, minibatch: outputs[0] != 0)
    got = evaluate(case.model, dict(zip(names, inputs, strict=True)), "float64", mode)
    np.testing.assert_allclose(next(iter(got.values())), outputs[0], rtol=1e-6)


def test_enough_cases_over_enough_operators_run() -> None:
    operators = Counter(node.op_type for case in CASES for node in case.model.graph.node)
    assert len(CASES) > 500
    untested = {name for name in (*TABLE, *MODAL) if name not in operators}
    assert untested <= {"Constant"}
