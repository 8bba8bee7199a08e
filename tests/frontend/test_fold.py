"""Any constant subgraph folds, whatever its operators; what may train does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.support.kernels import run_graph
from tests.support.models import ints, model, node, value, weights
from tilegrad.frontend import ImportedModel, load


def folded_sum(nodes: list[onnx.NodeProto], shape: list[int], initializers: dict[str, object]) -> np.ndarray:
    """Imports `y = x + c`, where the nodes compute `c`; returns what `c` became, checked against the reference."""
    everything = [*nodes, node("Add", "x c", "y", "add")]
    proto = model(everything, [value("x", shape)], [value("y", None)], initializers, opset=23)
    imported = load(proto)
    assert [n.op for n in imported.graph.nodes] == ["Add"]
    x = weights(*shape)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.allclose(run_graph(imported.graph, {"x": x})["y"], wanted)
    assert np.allclose(ReferenceEvaluator(imported.proto).run(None, {"x": x})[0], wanted)
    return imported.graph.constants["c"].array


def test_causal_mask() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s from to", "last"),
        node("Concat", "last last", "square", axis=0),
        node("ConstantOfShape", "square", "ones", value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])),
        node("Trilu", "ones", "lower", upper=0),
        node("Equal", "lower zero", "hidden"),
        node("Where", "hidden minus zero", "c"),
    ]
    values = {"from": ints(-1), "to": ints(2**62), "zero": np.zeros(1, np.float32), "minus": [-1e4]}
    mask = folded_sum(nodes, [4, 4], values)
    assert np.array_equal(mask == 0, np.tri(4, dtype=bool))


def test_range_and_arithmetic() -> None:
    wave = [node("Cast", "r", "f", to=1), node("Sin", "f", "s"), node("Mul", "s half", "c")]
    nodes = [node("Range", "a b d", "r"), *wave]
    values = {"a": np.array(0), "b": np.array(8), "d": np.array(2), "half": 0.5}
    assert np.allclose(folded_sum(nodes, [2, 4], values), np.sin([0, 2, 4, 6]) / 2)


def test_data_dependent_shape() -> None:
    nodes = [node("NonZero", "m", "i"), node("Cast", "i", "c", to=1)]
    assert np.array_equal(folded_sum(nodes, [1, 2], {"m": ints(0, 1, 0, 1)}), [[1, 3]])


def test_dequantized_constant() -> None:
    nodes = [node("DequantizeLinear", "q s", "c")]
    values = {"q": np.array([1, 2, 3], np.uint8), "s": np.array(0.5, np.float32)}
    assert np.array_equal(folded_sum(nodes, [1, 3], values), [0.5, 1.0, 1.5])


def test_sequences() -> None:
    nodes = [node("SplitToSequence", "m n", "q"), node("SequenceAt", "q n", "p"), node("Cast", "p", "c", to=1)]
    assert np.array_equal(folded_sum(nodes, [1, 1], {"m": ints(4, 5, 6), "n": np.array(1)}), [5])


def test_constant_loop() -> None:
    body = helper.make_graph(
        [node("Identity", "c_in", "c_out"), node("Add", "v_in step", "v_out")],
        "body",
        [value("i", [], "i64"), value("c_in", [], "bool"), value("v_in", [1])],
        [value("c_out", [], "bool"), value("v_out", [1])],
    )
    values = {"n": np.array(3), "go": np.array(True), "zero": [0.0], "step": [2.0]}
    assert np.array_equal(folded_sum([node("Loop", "n go zero", "c", body=body)], [1, 1], values), [6])


@pytest.mark.parametrize("takes", [True, False])
def test_constant_condition(takes: bool) -> None:
    """The branch is spliced in, and its initializers and the weights it captures stay what they are."""
    branches = {}
    for name, operator in (("then_branch", "Relu"), ("else_branch", "Tanh")):
        branches[name] = helper.make_graph(
            [node("MatMul", "x w", "t", "mm"), node("Add", "t b", "u", "add"), node(operator, "u", "out", "act")],
            name,
            [],
            [value("out", [1, 4])],
            [onnx.numpy_helper.from_array(weights(4), "b")],
        )
    proto = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "d", axis=0),
            node("Equal", "d wanted", "cond"),
            node("If", "cond", "h", "branch", **branches),
            node("Sigmoid", "h", "y", "out"),
        ],
        [value("x", ["n", 8])],
        [value("y", ["n", 4])],
        {"w": weights(8, 4), "one": np.array(1), "wanted": np.array(8 if takes else 9)},
    )
    imported = load(proto)
    assert [n.op for n in imported.graph.nodes] == ["MatMul", "Add", "Relu" if takes else "Tanh", "Sigmoid"]
    assert imported.parameters["w"].role == "parameter"
    x = weights(1, 8, seed=2)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.allclose(run_graph(imported.graph, {"x": x})["y"], wanted, atol=1e-6)


def parameter_chain(*nodes: onnx.NodeProto, shape: tuple[int, ...] = (4, 8)) -> ImportedModel:
    proto = model(
        [*nodes, node("MatMul", "x c", "y", "mm")], [value("x", [1, 8])], [value("y", None)], {"w": weights(*shape)}
    )
    return load(proto)


def test_a_parameter_never_folds() -> None:
    imported = parameter_chain(node("Transpose", "w", "c", "t", perm=[1, 0]))
    assert [n.op for n in imported.graph.nodes] == ["Transpose", "MatMul"]
    assert list(imported.graph.constants) == ["w"] and imported.parameters["w"].role == "parameter"


def test_an_operator_that_cannot_train_folds() -> None:
    imported = parameter_chain(node("Trilu", "w", "c", "t"), shape=(8, 8))
    assert [n.op for n in imported.graph.nodes] == ["MatMul"]
    assert imported.parameters["w"].role == "constant" and list(imported.graph.constants) == ["c"]


def test_random_numbers_are_no_constants() -> None:
    proto = model(
        [node("RandomNormal", "", "r", "noise", shape=[1, 4]), node("Add", "x r", "y")],
        [value("x", [1, 4])],
        [value("y", None)],
    )
    from tilegrad.errors import UserError

    with pytest.raises(UserError) as caught:
        load(proto)
    assert "RandomNormal: 'noise'" in str(caught.value) and "feed the random numbers as an input" in str(caught.value)


def test_dead_and_unsupported_nodes_do_not_matter() -> None:
    proto = model(
        [node("Det", "x", "unused", "det"), node("Relu", "x", "y", "relu")], [value("x", [1, 4, 4])], [value("y", None)]
    )
    assert [n.op for n in load(proto).graph.nodes] == ["Relu"]
