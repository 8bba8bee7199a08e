"""ONNX's own backend node cases, against generated C."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.base import Backend

from tests.support.often import first_always
from tilegrad import onnx_backend
from tilegrad.errors import UserError
from tilegrad.report.onnx_cases import (
    Case,
    Outcome,
    Status,
    node_cases,
    run_case,
    run_cases,
    supports_types_and_operators,
    text_report,
)

CHUNKS = 16
# Every sixteenth case of a list in alphabetical order: a few chunks meet every operator, `make matrix` every case.
CHUNKS_ALWAYS = 4
FEWEST_PASSING_PER_CHUNK = 40
# Refusals of cases whose operators and types we have. Each is a limit that the operator states.
KNOWN_LIMITS = (
    r"has a wrong rank; it is \[\d+, \d+, \d+, \d+, \d+\]",  # pooling and convolution over three dimensions
    r"Dropout in training mode",  # its masks are ours, drawn in tg_step
    r"Unrecognized attribute: mode for operator SpaceToDepth",  # newer than the opsets we read
)


@cache
def _cases() -> tuple[Case, ...]:
    return tuple(node_cases())


@pytest.mark.slow
@pytest.mark.parametrize("chunk", first_always(range(CHUNKS), CHUNKS_ALWAYS))
def test_every_supported_node_case_passes(chunk: int) -> None:
    cases = _cases()[chunk::CHUNKS]
    outcomes = list(run_cases(cases, workers=2))
    failures = [f"{o.case}: {o.reason}" for o in outcomes if o.status is Status.FAILED]
    assert not failures, "\n".join(failures)
    refused = [
        f"{outcome.case}: {outcome.reason}"
        for case, outcome in zip(cases, outcomes, strict=True)
        if outcome.status is Status.UNSUPPORTED
        and supports_types_and_operators(case)
        and not any(re.search(limit, outcome.reason) for limit in KNOWN_LIMITS)
    ]
    assert not refused, "\n".join(refused)
    assert sum(o.status is Status.PASSED for o in outcomes) >= FEWEST_PASSING_PER_CHUNK


def _one_node_model(op: str, inputs: dict[str, np.ndarray], outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    described = [
        helper.make_tensor_value_info(name, int(helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape)
        for name, array in inputs.items()
    ]
    names = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), names, **attributes)],
        op,
        described,
        [onnx.ValueInfoProto(name=name) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return onnx.shape_inference.infer_shapes(model)


def test_interface() -> None:
    assert issubclass(onnx_backend.TilegradBackend, Backend)
    assert onnx_backend.supports_device("CPU") and not onnx_backend.supports_device("CUDA")
    x = np.array([[-1.0, 2.0]], np.float32)
    relu = _one_node_model("Relu", {"x": x})
    assert onnx_backend.is_compatible(relu)
    (y,) = onnx_backend.run_model(relu, [x])
    np.testing.assert_array_equal(y, [[0.0, 2.0]])
    (y,) = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, [[0.0, 2.0]])


def test_shaping_inputs_are_taken_when_the_model_runs() -> None:
    x = np.arange(6, dtype=np.float32)
    model = _one_node_model("Reshape", {"x": x, "shape": np.array([2, 3])})
    prepared = onnx_backend.prepare(model)
    for shape in ([2, 3], [3, 2]):
        (y,) = prepared.run([x, np.array(shape)])
        np.testing.assert_array_equal(y, x.reshape(shape))


def test_an_operator_we_do_not_have_is_refused_by_name() -> None:
    x = np.ones((1, 4), np.float32)
    model = _one_node_model("Hardmax", {"x": x})
    assert not onnx_backend.is_compatible(model)
    with pytest.raises(UserError, match="an operator that tilegrad does not have"):
        onnx_backend.run_model(model, [x])


def test_report_is_made_of_outcomes() -> None:
    outcomes = [
        Outcome("a", "Relu", Status.PASSED),
        Outcome("b", "Relu", Status.UNSUPPORTED, "input is of element type float16"),
        Outcome("c", "Gemm", Status.FAILED, "wrong"),
    ]
    assert text_report(outcomes).splitlines() == [
        "1 passed, 0 folded, 1 unsupported, 1 failed",
        "",
        "| operator | passed | unsupported | reason |",
        "|---|---|---|---|",
        "| Gemm | 0 |  |  |",
        "| Relu | 1 | 1 | input is of element type float16 |",
        "",
        "FAILED c (Gemm): wrong",
    ]


def test_a_wrong_result_is_a_failure() -> None:
    x = np.array([-1.0, 2.0], np.float32)
    case = Case("relu", "Relu", _one_node_model("Relu", {"x": x}), [([x], [x])], 1e-3, 1e-7)
    assert run_case(case).status is Status.FAILED
