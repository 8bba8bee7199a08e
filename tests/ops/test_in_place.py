"""Where an operator says that an output may lie over an input, it does not matter to the result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import call_kernel, run_graph
from tests.support.operators import one_node_graph
from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Nest, whole
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

SHAPE = (3, 4, 37)
UNARY = (
    *("Abs", "Ceil", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "PRelu")
GRADIENTS = (
    *("AbsGrad", "ClipGrad", "EluGrad", "ErfGrad", "GeluGrad", "HardSigmoidGrad", "HardSwishGrad", "LeakyReluGrad"),
    *("ReciprocalGrad", "ReluGrad", "SigmoidGrad", "SoftplusGrad", "SqrtGrad", "TanhGrad", "PReluSlopeGrad"),
)

Case = tuple[str, list[np.ndarray], dict[str, Attribute], int]


def cases() -> list[Case]:
    draw = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return draw.uniform(0.1, 2, shape).astype(np.float32)

    full, row, integers = floats(*SHAPE), floats(SHAPE[-1]), draw.integers(1, 9, SHAPE).astype(np.int64)
    bools = draw.random(SHAPE) < 0.5
    rate, step = np.array(0.1, np.float32), np.array(3, np.int64)
    seeded: dict[str, Attribute] = {"ratio": 0.3, "seed": 1, "stream": 2}
    result: list[Case] = [(op, [full], {}, 1) for op in UNARY]
    result += [(op, [full, other], {}, 1) for op in BINARY for other in (floats(*SHAPE), row)]
    result += [(op, [row, full], {}, 1) for op in BINARY if op != "PRelu"]
    result += [(op, [full, floats(*SHAPE)], {}, 1) for op in GRADIENTS]
    result += [(op, [full, row, floats(*SHAPE)], {}, 1) for op in ("MaxGrad", "MinGrad", "PowGrad", "PReluGrad")]
    result += [(op, [integers, integers[:1]], {}, 1) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")]
    result += [("And", [bools, bools[0]], {}, 1), ("Not", [bools], {}, 1), ("Clip", [integers], {"max": 4}, 1)]
    result += [("Where", [bools, full, row], {}, 1), ("Where", [bools, bools, bools[0]], {}, 1)]
    result += [("SeededDropout", [full, step], seeded, 2)]
    result += [("InPlaceAccumulatorV2", [full, floats(*SHAPE), np.array([flag])], {}, 2) for flag in (False, True)]
    result += [("SGD", [full, floats(*SHAPE), rate], {"weight_decay": 0.1}, 1)]
    result += [("Momentum", [full, floats(*SHAPE), floats(*SHAPE), rate], {}, 2)]
    result += [("AdamW", [full, *(floats(*SHAPE) for _ in range(3)), rate, step], {"weight_decay": 0.1}, 3)]
    return result


def run_over(op: str, nest: Nest, values: dict[str, np.ndarray]) -> None:
    arrays = {o.name: None if o.value is None else values[o.value].reshape(o.shape) for o in nest.operands}
    for core in range(2):
        call_kernel(op, nest, whole(nest), arrays, core, 2)


@pytest.mark.parametrize(("op", "inputs", "attributes", "outputs"), cases())
def test_in_place(op: str, inputs: list[np.ndarray], attributes: dict[str, Attribute], outputs: int) -> None:
    graph = one_node_graph(op, inputs, attributes, outputs=(True,) * outputs)
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    expected = run_graph(graph, feeds)
    (node,) = graph.nodes
    view, operator = NodeView(node, graph.types), registry.get(op)
    pairs = operator.in_place(view)
    assert pairs, f"{op} declares no pair here"
    for output, position in pairs:
        values = {name: array.copy() for name, array in expected.items() if name in feeds}
        values |= {name: np.empty_like(expected[name]) for name in node.outputs}
        values[node.outputs[output]] = values[node.inputs[position]].reshape(graph.types[node.outputs[output]].shape)
        for nest in operator.nests(view):
            run_over(op, nest, values)
        for name in node.outputs:
            assert values[name].tobytes() == expected[name].tobytes(), f"{op}: output {output} over input {position}"
