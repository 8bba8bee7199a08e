"""Before and after differentiation: which backward operators there are, in which order, and what they keep alive."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tests.support.kernels import run_graph
from tests.support.models import model, node, value, weights
from tilegrad.analysis.verify import verify_graph
from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.autodiff import append_backward, values_on_trainable_paths
from tilegrad.passes.builder import GraphBuilder


def forward(*nodes: Node, inputs: dict[str, tuple[int, ...]], outputs: tuple[str, ...] = ("y",)) -> Graph:
    builder = GraphBuilder("test")
    for name, shape in inputs.items():
        builder.add_input(name, TensorType(DType.F32, shape))
    for one in nodes:
        builder.append(one)
    return verify_graph(builder.finish(outputs))


def differentiated(graph: Graph, *trainable: str, loss: str = "y") -> tuple[tuple[Node, ...], dict[str, str]]:
    """The backward nodes that were appended, and the gradient of each trainable value in order of completion."""
    builder = GraphBuilder.from_graph(graph)
    seed = builder.add_input("seed", graph.types[loss])
    gradients: dict[str, str] = {}
    append_backward(builder, graph, loss, seed, trainable, gradients.__setitem__)
    verify_graph(builder.finish((*graph.outputs, *gradients.values())))
    return tuple(builder.nodes[len(graph.nodes) :]), gradients


def test_a_chain() -> None:
    graph = forward(
        Node("a", "Mul", ("x", "w"), ("h",)), Node("b", "Relu", ("h",), ("y",)), inputs={"x": (2, 3), "w": (2, 3)}
    )
    after, gradients = differentiated(graph, "w")
    assert after == (
        Node("b_Grad/ReluGrad", "ReluGrad", ("seed", "y"), ("b_Grad/ReluGrad",)),
        Node("a_Grad/Mul", "Mul", ("b_Grad/ReluGrad", "x"), ("a_Grad/Mul",)),
    )
    assert gradients == {"w": "a_Grad/Mul"}


def test_broadcasting_is_undone() -> None:
    graph = forward(Node("a", "Add", ("x", "w"), ("y",)), inputs={"x": (2, 3), "w": (3,)})
    after, gradients = differentiated(graph, "w")
    assert after == (
        Node("a_Grad/ReduceSum", "ReduceSum", ("seed",), ("a_Grad/ReduceSum",), {"axes": (0,), "keepdims": 1}),
        Node(
            "a_Grad/Reshape", "Reshape", ("a_Grad/ReduceSum",), ("a_Grad/Reshape",), {"shape": (3,), "allowzero": 1}
        ),
    )
    assert gradients == {"w": "a_Grad/Reshape"}


def test_fan_in_is_added_in_consumer_order() -> None:
    """NUMERICS.md: the first consumer's contribution comes first, whatever order the sweep finds them in."""
    graph = forward(
        Node("first", "Relu", ("w",), ("a",)),
        Node("second", "Neg", ("w",), ("b",)),
        Node("third", "Abs", ("w",), ("c",)),
        Node("ab", "Add", ("a", "b"), ("d",)),
        Node("abc", "Add", ("d", "c"), ("y",)),
        inputs={"w": (4,)},
    )
    after, gradients = differentiated(graph, "w")
    sums = [one for one in after if one.op == "Add"]
    assert [one.inputs for one in sums] == [
        ("first_Grad/ReluGrad", "second_Grad/Neg"),
        ("w_grad", after[0].outputs[0]),
    ]
    assert after[0].name.startswith("third_Grad/") and gradients == {"w": sums[-1].outputs[0]}


def test_order_of_fan_in_is_seen_in_the_bits() -> None:
    """(1e8 + 1) - 1e8 is not (1e8 - 1e8) + 1 in float32."""
    graph = forward(
        Node("first", "Mul", ("w", "p"), ("a",)),
        Node("second", "Mul", ("w", "q"), ("b",)),
        Node("third", "Mul", ("w", "r"), ("c",)),
        Node("ab", "Add", ("a", "b"), ("d",)),
        Node("abc", "Add", ("d", "c"), ("y",)),
        inputs={"w": (1,), "p": (1,), "q": (1,), "r": (1,)},
    )
    builder = GraphBuilder.from_graph(graph)
    seed = builder.add_input("seed", graph.types["y"])
    gradients: dict[str, str] = {}
    append_backward(builder, graph, "y", seed, ["w"], gradients.__setitem__)
    whole = builder.finish(("y", *gradients.values()))
    feeds = {"w": 1.0, "p": 1e8, "q": 1.0, "r": -1e8, "seed": 1.0}
    values = run_graph(whole, {name: np.array([number], np.float32) for name, number in feeds.items()})
    assert values[gradients["w"]] == (np.float32(1e8) + np.float32(1)) + np.float32(-1e8) == 0


def test_a_value_used_twice_by_one_node() -> None:
    graph = forward(Node("square", "Mul", ("w", "w"), ("y",)), inputs={"w": (4,)})
    after, gradients = differentiated(graph, "w")
    assert after == (
        Node("square_Grad/Mul", "Mul", ("seed", "w"), ("square_Grad/Mul",)),
        Node("square_Grad/Mul.1", "Mul", ("seed", "w"), ("square_Grad/Mul.1",)),
        Node("square_Grad/Add", "Add", ("square_Grad/Mul", "square_Grad/Mul.1"), ("w_grad",)),
    )
    assert gradients == {"w": "w_grad"}


def test_a_value_used_three_times_by_one_node() -> None:
    """`Where(c, w, w)` and `Concat(w, w, w)` are where a careless sweep counts a use once."""
    graph = forward(Node("thrice", "Concat", ("w", "w", "w"), ("y",), {"axis": 0}), inputs={"w": (2,)})
    builder = GraphBuilder.from_graph(graph)
    seed = builder.add_input("seed", graph.types["y"])
    gradients: dict[str, str] = {}
    append_backward(builder, graph, "y", seed, ["w"], gradients.__setitem__)
    whole = builder.finish(("y", gradients["w"]))
    values = run_graph(whole, {"w": np.zeros(2, np.float32), "seed": np.arange(6, dtype=np.float32)})
    np.testing.assert_array_equal(values[gradients["w"]], [0 + 2 + 4, 1 + 3 + 5])


def test_a_frozen_first_layer_costs_nothing() -> None:
    graph = forward(
        Node("one", "MatMul", ("x", "frozen"), ("h",)),
        Node("act", "Relu", ("h",), ("r",)),
        Node("two", "MatMul", ("r", "w"), ("y",)),
        inputs={"x": (2, 3), "frozen": (3, 4), "w": (4, 5)},
    )
    assert values_on_trainable_paths(graph, ["w"]) == {"w", "y"}
    after, gradients = differentiated(graph, "w")
    assert [(one.op, one.inputs) for one in after] == [("FusedMatMul", ("r", "seed"))]
    assert list(gradients) == ["w"]


def test_a_frozen_last_layer_passes_the_gradient_on_and_reads_no_activation() -> None:
    graph = forward(
        Node("one", "MatMul", ("x", "w"), ("h",)),
        Node("two", "MatMul", ("h", "frozen"), ("y",)),
        inputs={"x": (2, 3), "w": (3, 4), "frozen": (4, 5)},
    )
    after, _ = differentiated(graph, "w")
    assert [(one.op, one.inputs) for one in after] == [
        ("FusedMatMul", ("seed", "frozen")),
        ("FusedMatMul", ("x", after[0].outputs[0])),
    ]
    assert not any("h" in one.inputs for one in after), "h would have to be kept for the gradient of a frozen weight"


def test_integers_and_conditions_block_the_path() -> None:
    graph = forward(
        Node("index", "Cast", ("w",), ("i",), {"to": "i64"}),
        Node("pick", "Gather", ("x", "i"), ("y",), {"axis": 0}),
        inputs={"x": (5,), "w": (2,)},
    )
    assert values_on_trainable_paths(graph, ["w"]) == {"w"}
    assert differentiated(graph, "w") == ((), {})


def test_a_value_that_the_loss_does_not_see() -> None:
    graph = forward(
        Node("seen", "Neg", ("w",), ("y",)),
        Node("unseen", "Mul", ("w", "v"), ("z",)),
        inputs={"w": (2,), "v": (2,)},
        outputs=("y", "z"),
    )
    after, gradients = differentiated(graph, "w", "v")
    assert [one.name for one in after] == ["seen_Grad/Neg"] and list(gradients) == ["w"]


def test_gradients_are_complete_as_early_as_possible() -> None:
    """Late layers first: what is done can be accumulated and its memory freed."""
    graph = forward(
        Node("one", "MatMul", ("x", "w1"), ("h",)),
        Node("two", "MatMul", ("h", "w2"), ("y",)),
        inputs={"x": (2, 3), "w1": (3, 4), "w2": (4, 5)},
    )
    _, gradients = differentiated(graph, "w1", "w2")
    assert list(gradients) == ["w2", "w1"]


def test_an_operator_without_gradient_is_named() -> None:
    graph = forward(Node("backwards", "ReluGrad", ("w", "x"), ("y",)), inputs={"w": (2,), "x": (2,)})
    with pytest.raises(UserError) as caught:
        differentiated(graph, "w")
    assert str(caught.value) == (
        "node 'backwards': ReluGrad has no gradient\n"
        "  hint: freeze the parameters before this node (--train last:K or names:GLOB)"
    )


# ---- the same through a whole compilation


def three_layers(train: str) -> Compiled:
    proto = model(
        [
            node("Gemm", "x w1", "a", "one"),
            node("Relu", "a", "b", "act1"),
            node("Gemm", "b w2", "c", "two"),
            node("Relu", "c", "d", "act2"),
            node("Gemm", "d w3", "y", "three"),
        ],
        [value("x", ["n", 16])],
        [value("y", ["n", 4])],
        {"w1": weights(16, 64), "w2": weights(64, 64), "w3": weights(64, 4)},
    )
    return tg.compile(proto, tg.Recipe(train=train), target="host")


def kept_for_backward(compiled: Compiled) -> set[str]:
    """Forward values that some node behind the loss reads."""
    step = compiled.program.entries["step"]
    position = next(i for i, one in enumerate(step.nodes) if one.op == "SoftmaxCrossEntropyLoss")
    made = {name for one in step.nodes[:position] for name in one.outputs} | set(step.inputs)
    return {name for one in step.nodes[position + 1 :] for name in one.inputs} & made - {"labels"}


@pytest.mark.parametrize(
    ("train", "kept", "gradients"),
    [
        ("all", {"x", "b", "d"}, {"w1", "w2", "w3"}),
        ("names:w3", {"d"}, {"w3"}),
        ("names:w2,w3", {"b", "d"}, {"w2", "w3"}),
        ("names:w1", {"x", "b", "d"}, {"w1"}),  # b and d for the ReLUs on the way
        ("last:1", {"d"}, {"w3"}),
    ],
)
def test_what_a_recipe_keeps(train: str, kept: set[str], gradients: set[str]) -> None:
    compiled = three_layers(train)
    assert kept_for_backward(compiled) == kept
    assert {tensor.owner for tensor in compiled.program.state if tensor.owner} == gradients
    assert {tensor.name for tensor in compiled.program.trainable} == gradients


def test_freezing_costs_less_memory_and_work() -> None:
    everything, last = three_layers("all"), three_layers("last:1")
    assert last.plan.arena_bytes < everything.plan.arena_bytes
    assert last.plan.state_bytes == everything.plan.state_bytes - 4 * (16 * 64 + 64 * 64)
    assert last.plan.schedule.macs("step") == last.plan.schedule.macs("infer") + 64 * 4


def test_a_selected_parameter_that_the_loss_does_not_see_is_left_alone() -> None:
    """As in PyTorch, where its grad stays None: no buffer, no update, and weight decay does not touch it."""
    proto = model(
        [node("Gemm", "x w", "y", "seen"), node("Gemm", "x v", "z", "unseen")],
        [value("x", ["n", 3])],
        [value("y", ["n", 2]), value("z", ["n", 2])],
        {"w": weights(3, 2), "v": weights(3, 2)},
    )
    compiled = tg.compile(proto, tg.Recipe(optimizer=tg.SGD(weight_decay=0.1)), target="host")
    assert [tensor.name for tensor in compiled.program.trainable] == ["w"]
    assert {tensor.name: tensor.role.value for tensor in compiled.program.state}["v"] == "frozen"
    assert all("v" not in one.inputs for one in compiled.program.entries["update"].nodes)
    assert [one.name for one in compiled.program.entries["step"].nodes if one.name.startswith("unseen")] == []
