"""The written rule: what an initializer is follows from what it is for, never from its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from tests.support.models import ints, mlp, model, node, value, weights
from tilegrad.errors import UserError
from tilegrad.frontend import ImportedModel, load
from tilegrad.passes.fuse import fuse
from tilegrad.passes.parameters import ParameterInfo, classify, select
from tilegrad.recipe import SELECTIONS


def imported(
    nodes: Sequence[onnx.NodeProto], initializers: Mapping[str, object], shape: Sequence[int] = (1, 6, 8)
) -> ImportedModel:
    return load(model(nodes, [value("x", shape)], [value("y", None)], initializers))


def roles(nodes: Sequence[onnx.NodeProto], initializers: Mapping[str, object]) -> dict[str, str]:
    return imported(nodes, initializers).roles


def infos(nodes: Sequence[onnx.NodeProto], initializers: Mapping[str, object]) -> Mapping[str, ParameterInfo]:
    return imported(nodes, initializers).parameters


# What is a parameter


def test_weights_and_biases() -> None:
    found = load(mlp()).parameters
    assert [(i.name, i.role, i.reason, i.is_bias) for i in found.values()] == [
        ("w1", "parameter", "weight of Gemm '/fc1/Gemm'", False),
        ("b1", "parameter", "bias of Gemm '/fc1/Gemm'", True),
        ("w2", "parameter", "weight of Gemm '/fc2/Gemm'", False),
        ("b2", "parameter", "bias of Gemm '/fc2/Gemm'", True),
    ]


@pytest.mark.parametrize("content", [weights(8), np.zeros(8, np.float32), np.ones(8, np.float32)])
def test_values_do_not_matter(content: np.ndarray) -> None:
    assert roles([node("Mul", "x g", "y")], {"g": content}) == {"g": "parameter"}


def test_added_bias_even_of_one_element() -> None:
    """A linear layer with one output, as sequence pooling has it."""
    found = infos([node("MatMul", "x w", "t", "mm"), node("Add", "b t", "y", "add")], {"w": weights(8, 1), "b": [0.5]})
    assert [(i.role, i.reason, i.node, i.is_bias) for i in found.values()] == [
        ("parameter", "weight of MatMul 'mm'", "mm", False),
        ("parameter", "bias of MatMul 'mm'", "mm", True),
    ]


def test_bias_behind_a_reshape() -> None:
    nodes = [node("MatMul", "x w", "t", "mm"), node("Reshape", "t s", "r"), node("Add", "r b", "y")]
    found = infos(nodes, {"w": weights(8, 4), "b": weights(4), "s": ints(6, 4)})
    assert found["b"].is_bias and found["b"].node == "mm" and found["s"].role == "constant"


def test_positional_embedding_and_layer_scale() -> None:
    nodes = [node("Add", "x pos", "a", "add"), node("Mul", "a ls", "y", "scale")]
    found = infos(nodes, {"pos": weights(1, 6, 8), "ls": weights(8)})
    assert {name: (i.role, i.is_bias) for name, i in found.items()} == {
        "pos": ("parameter", False),
        "ls": ("parameter", False),
    }


def test_sliced_positional_embedding() -> None:
    nodes = [node("Slice", "pos a b c", "p"), node("Unsqueeze", "p zero", "q"), node("Add", "x q", "y")]
    values = {"pos": weights(10, 8), "a": ints(0), "b": ints(6), "c": ints(0), "zero": ints(0)}
    assert roles(nodes, values)["pos"] == "parameter"


def test_class_token() -> None:
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Concat", "s rest", "target", axis=0),
        node("Expand", "cls target", "c"),
        node("Concat", "c x", "y", axis=1),
    ]
    assert roles(nodes, {"cls": weights(1, 1, 8), "rest": ints(1, 8)})["cls"] == "parameter"


def test_mask_token() -> None:
    proto = model(
        [node("Where", "m token x", "y")],
        [value("x", [1, 6, 8]), value("m", [1, 6, 1], "bool")],
        [value("y", None)],
        {"token": weights(1, 1, 8)},
    )
    assert load(proto).roles == {"token": "parameter"}


def test_embeddings() -> None:
    proto = model(
        [node("Gather", "table ids", "e"), node("Gather", "positions range", "p"), node("Add", "e p", "y")],
        [value("ids", [1, 6], "i64")],
        [value("y", None)],
        {"table": weights(20, 8), "positions": weights(10, 8), "range": ints(*range(6))},
    )
    assert load(proto).roles == {"table": "parameter", "positions": "parameter", "range": "constant"}


@pytest.mark.parametrize("slope", [weights(8), [0.25]])
def test_prelu_slope(slope: object) -> None:
    assert roles([node("PRelu", "x s", "y")], {"s": slope})["s"] == "parameter"


def test_weight_norm() -> None:
    """Arithmetic among parameters: all of them train."""
    nodes = [
        node("Mul", "v v", "vv"),
        node("ReduceSum", "vv axes", "n"),
        node("Sqrt", "n", "norm"),
        node("Div", "v norm", "u"),
        node("Mul", "u g", "w"),
        node("MatMul", "x w", "y"),
    ]
    found = roles(nodes, {"v": weights(8, 4), "g": weights(1, 4), "axes": ints(0)})
    assert (found["v"], found["g"]) == ("parameter", "parameter")


def test_relative_position_bias() -> None:
    """Differs by head, so it is no mask."""
    assert attention_roles(np.zeros((1, 2, 6, 6), np.float32)) == "parameter"


def test_tied_weights() -> None:
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "y")]
    assert roles(nodes, {"w": weights(8, 8)}) == {"w": "parameter"}


def test_what_is_reached_through_identity_is_a_copy() -> None:
    nodes = [node("Identity", "w", "v"), node("MatMul", "x w", "a"), node("MatMul", "a v", "y")]
    assert roles(nodes, {"w": weights(8, 8)}) == {"w": "parameter", "v": "parameter"}


# What is a statistic


def test_batch_norm() -> None:
    values = {"s": weights(6), "b": weights(6), "m": weights(6), "v": np.ones(6, np.float32)}
    found = infos([node("BatchNormalization", "x s b m v", "y", "bn")], values)
    assert [(i.role, i.reason) for i in found.values()] == [
        ("parameter", "scale of BatchNormalization 'bn'"),
        ("parameter", "bias of BatchNormalization 'bn'"),
        ("statistic", "running mean of BatchNormalization 'bn'"),
        ("statistic", "running variance of BatchNormalization 'bn'"),
    ]


# What is a constant


def attention_roles(mask: np.ndarray) -> str:
    proto = model(
        [
            node("Mul", "q scale", "qs"),
            node("MatMul", "qs k", "scores"),
            node("Add", "scores mask", "masked"),
            node("Softmax", "masked", "p", axis=-1),
            node("MatMul", "p v", "y"),
        ],
        [value("q", [1, 2, 6, 4]), value("k", [1, 2, 4, 6]), value("v", [1, 2, 6, 4])],
        [value("y", None)],
        {"scale": np.array(0.5, np.float32), "mask": mask},
    )
    found = load(proto).roles
    assert found["scale"] == "constant"
    return found["mask"]


@pytest.mark.parametrize("shape", [(6, 6), (1, 1, 6, 6), (6,)])
def test_attention_mask(shape: tuple[int, ...]) -> None:
    assert attention_roles(np.zeros(shape, np.float32)) == "constant"


def test_bias_before_softmax_is_no_mask() -> None:
    nodes = [node("MatMul", "x w", "t"), node("Add", "t b", "u"), node("Softmax", "u", "y")]
    assert roles(nodes, {"w": weights(8, 4), "b": weights(4)})["b"] == "parameter"


def test_single_numbers() -> None:
    nodes = [
        node("Mul", "x a", "p"),
        node("Div", "p b", "q"),
        node("Add", "q c", "r"),
        node("Sub", "r d", "s"),
        node("Pow", "s e", "t"),
        node("Clip", "t low high", "y"),
    ]
    values = {name: np.array(i + 1, np.float32) for i, name in enumerate(["a", "b", "c", "d", "e", "low", "high"])}
    assert set(roles(nodes, values).values()) == {"constant"}


def test_input_statistics() -> None:
    nodes = [node("Sub", "x mean", "a"), node("Div", "a std", "y")]
    assert roles(nodes, {"mean": weights(8), "std": weights(8)}) == {"mean": "constant", "std": "constant"}


def group_norm() -> list[onnx.NodeProto]:
    """As both exporters of PyTorch write it."""
    return [
        node("Reshape", "x split", "r", "r"),
        node("InstanceNormalization", "r ones zeros", "n", "norm"),
        node("Shape", "x", "s"),
        node("Reshape", "n s", "t", "t"),
        node("Mul", "t gamma", "u", "mul"),
        node("Add", "u beta", "y", "add"),
    ]


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_group_norm_taken_apart(groups: int) -> None:
    values = {
        "split": ints(0, groups, -1),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
        "gamma": weights(8, 1, 1),
        "beta": weights(8, 1, 1),
    }
    found = imported(group_norm(), values, (1, 8, 4, 4)).parameters
    assert {name: i.role for name, i in found.items()} == {
        "split": "constant",
        "ones": "constant",
        "zeros": "constant",
        "gamma": "parameter",
        "beta": "parameter",
    }
    assert found["beta"].is_bias and not found["gamma"].is_bias and found["beta"].node == found["gamma"].node == "mul"


def test_instance_norm_of_its_own() -> None:
    nodes = [node("InstanceNormalization", "x s b", "y", "norm")]
    assert roles(nodes, {"s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)}) == {
        "s": "parameter",
        "b": "parameter",
    }


@pytest.mark.parametrize(
    ("name", "role"), [("val_7", "constant"), ("onnx::LayerNormalization_3", "constant"), ("ln.weight", "parameter")]
)
def test_layer_norm_without_affine_part(name: str, role: str) -> None:
    nodes = [node("LayerNormalization", f"x {name}", "y", "norm")]
    assert roles(nodes, {name: np.ones(8, np.float32)}) == {name: role}


def test_rotary_tables() -> None:
    nodes = [
        node("Split", "x sizes", "a b", axis=-1),
        node("Neg", "b", "nb"),
        node("Concat", "nb a", "turned", axis=-1),
        node("Mul", "x cos", "p"),
        node("Mul", "turned sin", "q"),
        node("Add", "p q", "y"),
    ]
    found = roles(nodes, {"cos": weights(6, 8), "sin": weights(6, 8), "sizes": ints(4, 4)})
    assert (found["cos"], found["sin"]) == ("constant", "constant")


def test_folded_values_are_no_parameters() -> None:
    """A Constant node is not an initializer, however it is used."""
    content = onnx.numpy_helper.from_array(weights(8, 4))
    proto = imported([node("Constant", "", "w", value=content), node("MatMul", "x w", "y")], {})
    assert proto.parameters == {} and list(proto.graph.constants) == ["w"]
    with pytest.raises(UserError, match="the model has nothing to train"):
        select(proto.graph, proto.parameters, "all")


def test_the_rule_agrees_with_itself_after_import() -> None:
    """Classifying the canonical graph gives what classifying the raw model gave."""
    for name in ("cct", "resnet8"):
        found = load(name)
        again = classify(found.graph, [n for n in found.parameters if n in found.graph.constants])
        assert {n: i.role for n, i in again.items()} == {n: found.roles[n] for n in again}


# Selection


def test_select_all_and_bias() -> None:
    found = load(mlp())
    assert select(found.graph, found.parameters, "all") == ("w1", "b1", "w2", "b2")
    assert select(found.graph, found.parameters, "bias") == ("b1", "b2")


def test_select_last() -> None:
    found = load(mlp())
    assert select(found.graph, found.parameters, "last:1") == ("w2", "b2")
    assert select(found.graph, found.parameters, "last:2") == ("w1", "b1", "w2", "b2")
    nodes = [
        node("MatMul", "x w1", "a", "one"),
        node("Add", "a b1", "b", "one_bias"),
        node("MatMul", "b w2", "c", "two"),
        node("Add", "c b2", "y", "two_bias"),
    ]
    split = imported(nodes, {"w1": weights(8, 8), "w2": weights(8, 4), "b1": weights(8), "b2": weights(4)})
    assert select(split.graph, split.parameters, "last:1") == ("w2", "b2")


def test_select_last_after_fusion() -> None:
    """A scale whose node was fused away is still of its layer."""
    nodes = [
        node("MatMul", "x w", "m", "first"),
        node("ReduceMean", "m", "mean", axes=[-1]),
        node("Sub", "m mean", "d"),
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd", "var", axes=[-1]),
        node("Add", "var eps", "v"),
        node("Sqrt", "v", "s"),
        node("Div", "d s", "n"),
        node("Mul", "n gamma", "g", "mul"),
        node("Add", "g beta", "y", "add"),
    ]
    values = {"w": weights(8, 8), "gamma": weights(8), "beta": weights(8), "eps": np.array(1e-5, np.float32)}
    found = imported(nodes, values)
    for graph in (found.graph, fuse(found.graph)):
        assert select(graph, found.parameters, "last:1") == ("gamma", "beta")


def test_select_names() -> None:
    found = load(mlp())
    assert select(found.graph, found.parameters, "names:w*") == ("w1", "w2")
    assert select(found.graph, found.parameters, "names:b2,w1") == ("w1", "b2")


def test_names_override_the_rule() -> None:
    found = imported([node("Mul", "x scale", "y")], {"scale": np.array(0.5, np.float32)})
    assert found.roles == {"scale": "constant"}
    assert select(found.graph, found.parameters, "names:scale") == ("scale",)


def test_names_leave_statistics_alone() -> None:
    found = load("resnet8")
    assert select(found.graph, found.parameters, "names:bn1.*") == ("bn1.weight", "bn1.bias")


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (
            "some",
            f"cannot select what trains with 'some'\n  expected: {SELECTIONS}\n  got: some",
        ),
        (
            "",
            f"cannot select what trains with ''\n  expected: {SELECTIONS}\n  got: nothing",
        ),
        ("last:0", "last:K takes a number of layers\n  expected: 1 or more\n  got: 0"),
        ("last:x", "last:K takes a number of layers\n  expected: 1 or more\n  got: x"),
        ("names:w9", "no initializer is called 'w9'\n  hint: near names: w2, w1"),
        ("names:w1,nothing*", "no initializer is called 'nothing*'\n  hint: the model has w1, b1, w2, b2"),
    ],
)
def test_bad_selectors(selector: str, message: str) -> None:
    found = load(mlp())
    with pytest.raises(UserError) as caught:
        select(found.graph, found.parameters, selector)
    assert str(caught.value) == message


def test_integers_cannot_train() -> None:
    nodes = [node("Reshape", "x s", "r"), node("Relu", "r", "y")]
    found = imported(nodes, {"s": ints(1, 48)})
    with pytest.raises(UserError) as caught:
        select(found.graph, found.parameters, "names:s")
    assert str(caught.value) == "'s' matches nothing that can train\n  got: 's' is i64[2], i64: only f32 trains"


def test_no_bias_to_train() -> None:
    found = imported([node("MatMul", "x w", "y")], {"w": weights(8, 4)})
    with pytest.raises(UserError) as caught:
        select(found.graph, found.parameters, "bias")
    assert str(caught.value) == (
        "'bias' selects nothing to train\n"
        "  got: 1 initializers: 1 parameters, 0 statistics, 0 constants\n"
        "  hint: `tilegrad inspect MODEL --parameters` lists what each initializer is, and why"
    )
