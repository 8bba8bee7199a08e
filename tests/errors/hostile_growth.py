"""Hostile models of a few lines that mean a great deal."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.errors.hostile_kinds import (
    MATMUL,
    REFUSED,
    SOUND,
    W,
    X,
    Y,
    add,
    chained,
    refused,
    sound,
)
from tests.support.models import ints, model, node, value, weights


def nested_functions(depth: int, calls: int) -> onnx.ModelProto:
    functions = []
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for level in range(depth):
        if level == depth - 1:
            body = [node("Relu", "x", "y")]
        else:
            names = ["x", *(f"t{i}" for i in range(calls - 1)), "y"]
            body = [helper.make_node(f"f{level + 1}", [a], [b], domain="local") for a, b in itertools.pairwise(names)]
        functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], body, imports))
    call = helper.make_node("f0", ["h"], ["y"], name="call", domain="local")
    return model([MATMUL, call], X, Y, W, functions=functions, domains=["local"])


add(REFUSED, "functions_twice_40_deep", lambda: nested_functions(40, 2))
add(REFUSED, "functions_ten_times_6_deep", lambda: nested_functions(6, 10))
add(REFUSED, "functions_3000_deep", lambda: nested_functions(3000, 1))
add(SOUND, "functions_twice_8_deep", lambda: nested_functions(8, 2))


@refused
def functions_that_call_themselves() -> onnx.ModelProto:
    proto = nested_functions(3, 1)
    proto.functions[2].node[0].CopyFrom(helper.make_node("f0", ["x"], ["y"], domain="local"))
    return proto


@refused
def functions_with_large_bodies() -> onnx.ModelProto:
    proto = nested_functions(9, 3)
    body = proto.functions[8]
    body.node.insert(0, node("Constant", "", "c", value=numpy_helper.from_array(np.zeros(50_000, np.float32))))
    return proto


@sound
def thousands_of_unused_functions() -> onnx.ModelProto:
    proto = nested_functions(2, 1)
    for i in range(2000):
        proto.functions.append(helper.make_function("local", f"u{i}", ["x"], ["y"], [node("Relu", "x", "y")], []))
        proto.functions[-1].opset_import.extend(proto.functions[0].opset_import)
    return proto


@refused
def defined_operators_by_the_thousand() -> onnx.ModelProto:
    names = ["h", *(f"m{i}" for i in range(19_999)), "y"]
    nodes = [node("Mish", a, b) for a, b in itertools.pairwise(names)]
    return chained(*nodes, opset=18)


def doubled(op: str, times: int, start: onnx.NodeProto, **attributes: object) -> onnx.ModelProto:
    nodes = [start, *(node(op, f"c{i} c{i}", f"c{i + 1}", **attributes) for i in range(times))]
    return chained(*nodes, node("Add", f"h c{times}", "y"))


_ONES = node("ConstantOfShape", "shape", "c0")
add(
    REFUSED,
    "constant_doubled_40_times",
    lambda: doubled("Concat", 40, node("Constant", "", "c0", value_floats=[1.0]), axis=0),
)
add(REFUSED, "value_doubled_40_times", lambda: doubled("Concat", 40, node("Identity", "h", "c0"), axis=0))
add(REFUSED, "text_doubled_40_times", lambda: doubled("StringConcat", 40, node("Constant", "", "c0", value_string="a")))


def constant_of(op: str, inputs: str, initializers: dict[str, object], **attributes: object) -> onnx.ModelProto:
    return chained(node(op, inputs, "c", "big", **attributes), node("Add", "h c", "y"), initializers=initializers)


for _exponent in (20, 31, 40, 62):
    _size = ints(2**_exponent, 4)
    _table = SOUND if _exponent == 20 else REFUSED
    add(_table, f"constant_of_shape_2_{_exponent}", lambda s=_size: constant_of("ConstantOfShape", "s", {"s": s * 1}))
    add(
        _table,
        f"expand_to_2_{_exponent}",
        lambda s=_size: constant_of("Expand", "one s", {"one": np.ones(1, np.float32), "s": s}),
    )
    add(
        _table,
        f"tile_2_{_exponent}",
        lambda s=_size: constant_of("Tile", "one s", {"one": np.ones((1, 1), np.float32), "s": s}),
    )
    add(
        _table,
        f"pad_by_2_{_exponent}",
        lambda s=_size: chained(node("Pad", "h p", "y", "big"), initializers={"p": ints(0, 0, 0, int(s[0]))}),
    )
    add(
        REFUSED,
        f"range_to_2_{_exponent}",
        lambda s=_size: constant_of("Range", "a b d", {"a": 0.0, "b": float(s[0]), "d": 1.0}),
    )


@refused
def one_hot_of_a_huge_depth() -> onnx.ModelProto:
    content = {"i": ints(0, 1), "depth": np.array(2**40), "v": np.array([0.0, 1.0], np.float32)}
    return constant_of("OneHot", "i depth v", content)


@refused
def a_thousand_large_constants() -> onnx.ModelProto:
    nodes = []
    for i in range(1000):
        nodes += [node("ConstantOfShape", "s", f"k{i}"), node("Add", f"{'h' if i == 0 else f'a{i - 1}'} k{i}", f"a{i}")]
    return chained(*nodes, node("Relu", "a999", "y"), initializers={"s": ints(2**20, 4)})


@refused
def einsum_of_many_vectors() -> onnx.ModelProto:
    letters = "abcdefghij"
    content = {f"v{letter}": ints(*range(50)) for letter in letters}
    names = " ".join(content)
    return chained(
        node("Einsum", names, "e", equation=f"{','.join(letters)}->"),
        node("Cast", "e", "f", to=TensorProto.FLOAT),
        node("Add", "h f", "y"),
        initializers=content,
    )


@refused
def integer_product_that_takes_an_hour() -> onnx.ModelProto:
    return chained(
        node("ConstantOfShape", "s", "a", value=numpy_helper.from_array(ints(1))),
        node("MatMul", "a a", "b"),
        node("MatMul", "b b", "c"),
        node("ReduceMax", "c", "m", keepdims=0),
        node("Cast", "m", "f", to=TensorProto.FLOAT),
        node("Add", "h f", "y"),
        initializers={"s": ints(2800, 2800)},
    )


def body_of(level: int, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    """Of a Loop: names of one level only, since a body sees those around it."""
    inputs = [value(f"i{level}", [], "i64"), value(f"go{level}", [], "bool"), value(f"v{level}", None)]
    return helper.make_graph(
        [node("Identity", f"go{level}", f"on{level}"), *nodes],
        f"body{level}",
        inputs,
        [value(f"on{level}", [], "bool"), value(f"after{level}", None)],
    )


def loop(trips: int, body: list[onnx.NodeProto], start: np.ndarray) -> onnx.ModelProto:
    return chained(
        node("Loop", "trips go start", "c", "loop", body=body_of(0, body)),
        node("ReduceSum", "c", "s", keepdims=0),
        node("Add", "h s", "y"),
        initializers={"trips": np.array(trips), "go": np.array(True), "start": start},
    )


_STEP = [node("Add", "v0 v0", "after0")]
_DOUBLE = [node("Concat", "v0 v0", "after0", axis=0)]
add(REFUSED, "loop_that_doubles", lambda: loop(40, _DOUBLE, np.ones(1, np.float32)))
add(REFUSED, "loop_of_2_40_trips", lambda: loop(2**40, _STEP, np.ones(1, np.float32)))
add(REFUSED, "loop_of_doubles", lambda: loop(5, _STEP, np.ones(1)))
add(SOUND, "loop_of_five_trips", lambda: loop(5, _STEP, np.array(1.0, np.float32)))


@refused
def loops_in_loops() -> onnx.ModelProto:
    """9000 to the fourth trips."""
    nodes = [node("Add", "v3 v3", "after3")]
    for level in (3, 2, 1):
        outer = level - 1
        nodes = [node("Loop", f"trips go{outer} v{outer}", f"after{outer}", body=body_of(level, nodes))]
    return loop(9000, nodes, np.ones(1, np.float32))


def nested_ifs(depth: int) -> onnx.ModelProto:
    nodes = [node("Relu", "h", f"z{depth}")]
    for level in reversed(range(depth)):
        branch = helper.make_graph(nodes, f"b{level}", [], [value(f"z{level + 1}", None)])
        nodes = [node("If", "yes", f"z{level}", f"if{level}", then_branch=branch, else_branch=branch)]
    return chained(*nodes, node("Relu", "z0", "y"), initializers={"yes": np.array(True)})


add(SOUND, "ifs_4_deep", lambda: nested_ifs(4))
add(SOUND, "ifs_12_deep_both_branches", lambda: nested_ifs(12))


@sound
def a_thousand_ifs() -> onnx.ModelProto:
    nodes = []
    for i in range(1000):
        before = "h" if i == 0 else f"z{i - 1}"
        branch = helper.make_graph([node("Relu", before, "t")], "b", [], [value("t", None)])
        nodes.append(node("If", "yes", f"z{i}", then_branch=branch, else_branch=branch))
    return chained(*nodes, node("Relu", "z999", "y"), initializers={"yes": np.array(True)})


@refused
def scan_of_constants() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", "s e", "t"), node("Identity", "t", "o")],
        "b",
        [value("s", []), value("e", [])],
        [value("t", []), value("o", [])],
    )
    return chained(
        node("Scan", "s0 es", "last all", body=body, num_scan_inputs=1),
        node("Add", "h last", "y"),
        initializers={"s0": 0.0, "es": np.ones(9, np.float32)},
    )


@refused
def sequence_of_large_tensors() -> onnx.ModelProto:
    return chained(
        node("ConstantOfShape", "s", "c"),
        node("SequenceConstruct", " ".join(["c"] * 500), "q"),
        node("ConcatFromSequence", "q", "k", axis=0),
        node("ReduceSum", "k", "m", keepdims=0),
        node("Add", "h m", "y"),
        initializers={"s": ints(2**20)},
    )


@sound
def normalisation_over_2_30_elements() -> onnx.ModelProto:
    """What would be a LayerNormalization without a scale, for which a scale would have to be made."""
    nodes = [
        node("Expand", "x s", "e"),
        node("ReduceMean", "e", "m", axes=[-1]),
        node("Sub", "e m", "d"),
        node("Pow", "d two", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "r"),
        node("Div", "d r", "n"),
        node("ReduceMean", "n", "o", axes=[-1]),
        node("Mul", "o w", "y"),
    ]
    initializers = {"s": ints(1, 2**30), "two": 2.0, "eps": 1e-5, "w": weights(1, 4)}
    return model(nodes, [value("x", [1, 1])], [value("y", None)], initializers)
