"""Models that a careless exporter, a damaged disk or an enemy would write: made by code, none is stored.

Each is a function that fills a folder and returns the model's path. `REFUSED` ones must be, with exit status 2. `SOUND`
ones are odd, and must be read. `EITHER` may be read or refused: the tests of what they are about say which.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models import ints, mlp, model, node, value, weights

Maker = Callable[[Path], Path]
REFUSED: dict[str, Maker] = {}
SOUND: dict[str, Maker] = {}
EITHER: dict[str, Maker] = {}

X, Y = [value("x", [1, 4])], [value("y", [1, 4])]
W = {"w": weights(4, 4)}
MATMUL = node("MatMul", "x w", "h", "first")


def _saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _add(table: dict[str, Maker], name: str, make: Callable[[], onnx.ModelProto]) -> None:
    assert not any(name in known for known in (REFUSED, SOUND, EITHER))
    table[name] = lambda folder: _saved(make(), folder)


def refused(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    _add(REFUSED, make.__name__, make)
    return make


def sound(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    _add(SOUND, make.__name__, make)
    return make


def chained(*nodes: onnx.NodeProto, initializers: dict[str, object] | None = None, opset: int = 17) -> onnx.ModelProto:
    """x → MatMul → h → `nodes` → y."""
    return model([MATMUL, *nodes], X, [value("y", None)], {**W, **(initializers or {})}, opset=opset)


def either(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    _add(EITHER, make.__name__, make)
    return make


# ---- growth: a few lines that mean a great deal


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


_add(REFUSED, "functions_twice_40_deep", lambda: nested_functions(40, 2))
_add(REFUSED, "functions_ten_times_6_deep", lambda: nested_functions(6, 10))
_add(REFUSED, "functions_3000_deep", lambda: nested_functions(3000, 1))
_add(SOUND, "functions_twice_8_deep", lambda: nested_functions(8, 2))


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
_add(
    REFUSED,
    "constant_doubled_40_times",
    lambda: doubled("Concat", 40, node("Constant", "", "c0", value_floats=[1.0]), axis=0),
)
_add(REFUSED, "value_doubled_40_times", lambda: doubled("Concat", 40, node("Identity", "h", "c0"), axis=0))
_add(
    REFUSED, "text_doubled_40_times", lambda: doubled("StringConcat", 40, node("Constant", "", "c0", value_string="a"))
)


def constant_of(op: str, inputs: str, initializers: dict[str, object], **attributes: object) -> onnx.ModelProto:
    return chained(node(op, inputs, "c", "big", **attributes), node("Add", "h c", "y"), initializers=initializers)


for _exponent in (20, 31, 40, 62):
    _size = ints(2**_exponent, 4)
    _table = SOUND if _exponent == 20 else REFUSED
    _add(_table, f"constant_of_shape_2_{_exponent}", lambda s=_size: constant_of("ConstantOfShape", "s", {"s": s * 1}))
    _add(
        _table,
        f"expand_to_2_{_exponent}",
        lambda s=_size: constant_of("Expand", "one s", {"one": np.ones(1, np.float32), "s": s}),
    )
    _add(
        _table,
        f"tile_2_{_exponent}",
        lambda s=_size: constant_of("Tile", "one s", {"one": np.ones((1, 1), np.float32), "s": s}),
    )
    _add(
        _table,
        f"pad_by_2_{_exponent}",
        lambda s=_size: chained(node("Pad", "h p", "y", "big"), initializers={"p": ints(0, 0, 0, int(s[0]))}),
    )
    _add(
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
_add(REFUSED, "loop_that_doubles", lambda: loop(40, _DOUBLE, np.ones(1, np.float32)))
_add(REFUSED, "loop_of_2_40_trips", lambda: loop(2**40, _STEP, np.ones(1, np.float32)))
_add(REFUSED, "loop_of_doubles", lambda: loop(5, _STEP, np.ones(1)))
_add(SOUND, "loop_of_five_trips", lambda: loop(5, _STEP, np.array(1.0, np.float32)))


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


_add(SOUND, "ifs_4_deep", lambda: nested_ifs(4))
_add(SOUND, "ifs_12_deep_both_branches", lambda: nested_ifs(12))


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


# ---- wires and names


@refused
def cycle() -> onnx.ModelProto:
    return chained(node("Add", "h b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y"))


@refused
def missing_input() -> onnx.ModelProto:
    return chained(node("Add", "h nowhere", "y"))


@refused
def two_nodes_write_one_value() -> onnx.ModelProto:
    return chained(node("Relu", "h", "y"), node("Sigmoid", "h", "y"))


@refused
def node_writes_an_input() -> onnx.ModelProto:
    return chained(node("Relu", "h", "x"), node("Relu", "x", "y"))


@refused
def two_initializers_of_one_name() -> onnx.ModelProto:
    proto = chained(node("Relu", "h", "y"))
    proto.graph.initializer.append(proto.graph.initializer[0])
    return proto


@refused
def two_inputs_of_one_name() -> onnx.ModelProto:
    return model([MATMUL, node("Relu", "h", "y")], [*X, value("x", [1, 5])], Y, W)


@sound
def all_nodes_have_one_name() -> onnx.ModelProto:
    names = ["h", *(f"r{i}" for i in range(1500)), "y"]
    return chained(*(node("Relu", a, b, "same") for a, b in itertools.pairwise(names)))


@refused
def no_outputs() -> onnx.ModelProto:
    return model([MATMUL], X, [], W)


@refused
def empty_graph() -> onnx.ModelProto:
    return model([], [], [])


@refused
def output_is_never_made() -> onnx.ModelProto:
    return model([MATMUL], X, Y, W)


@sound
def output_is_the_input() -> onnx.ModelProto:
    return model([], X, [value("x", [1, 4])])


@sound
def output_is_an_initializer() -> onnx.ModelProto:
    return model([], X, [value("w", [4, 4])], W)


@sound
def output_twice() -> onnx.ModelProto:
    return model([node("MatMul", "x w", "y")], X, [*Y, value("x", [1, 4])], W)


@refused
def name_of_a_megabyte() -> onnx.ModelProto:
    long = "n" * 2**20
    return chained(helper.make_node("Relu", ["h"], [long]), helper.make_node("Relu", [long], ["y"]))


def named(text: str) -> onnx.ModelProto:
    return model(
        [
            helper.make_node("MatMul", ["x", text], [text + "h"], name=text),
            helper.make_node("Relu", [text + "h"], ["y"]),
        ],
        X,
        Y,
        {text: weights(4, 4)},
    )


for _number, _text in enumerate(
    (
        "\x00",
        "a\x00b",
        "\x1b[31mred",
        "*/ int evil;",
        "\n\r\t",
        "ÄÖ漢字🙂",
        '"; system("x"); //',
        "../../etc",
        "%s%n",
        "\u202eabc",
        "??/",
        "\\",
    )
):
    _add(SOUND, f"name_{_number}", lambda text=_text: named(text))


# ---- numbers and types


def declared(shape: list[int | str | None]) -> onnx.ModelProto:
    return model([node("Relu", "x", "r"), node("MatMul", "r w", "y")], [value("x", shape)], [value("y", None)], W)


for _number, _shape in enumerate(([2**31, 4], [2**62, 4], [1, 2**40], [-5, 4], [1, -4], [2**31, 2**31, 2**31, 4])):
    _add(
        EITHER if _shape[0] in (2**31, 2**62, -5) else REFUSED,
        f"input_of_shape_{_number}",
        lambda shape=_shape: declared(list(shape)),
    )
_add(REFUSED, "input_of_free_dimensions", lambda: declared([None, "n", 4]))
_add(SOUND, "input_of_rank_12", lambda: declared([1] * 11 + [4]))
_add(REFUSED, "input_without_samples", lambda: declared([0, 4]))
_add(SOUND, "input_without_elements", lambda: model([node("Relu", "x", "y")], [value("x", [1, 0])], [value("y", None)]))


@sound
def rank_40() -> onnx.ModelProto:
    return model([node("Relu", "x", "y")], [value("x", [1] * 40)], [value("y", None)])


def with_tensor(change: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    proto = chained(node("Relu", "h", "y"))
    change(proto.graph.initializer[0])
    return proto


def _dims(*dims: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def _set(**fields: object) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for name, content in fields.items():
            setattr(tensor, name, content)

    return change


for _name, _change in {
    "dims_of_2_31": _dims(2**31, 4),
    "dims_of_2_62": _dims(2**62, 4),
    "dims_that_overflow": _dims(2**32, 2**32),
    "negative_dims": _dims(-4, -4),
    "too_many_dims": _dims(4, 5),
    "dims_of_zero_with_data": _dims(0, 4),
    "data_too_short": _set(raw_data=b"abc"),
    "data_missing": _set(raw_data=b""),
    "data_too_long": _set(raw_data=bytes(1000)),
    "type_unknown": _set(data_type=99),
    "type_undefined": _set(data_type=0),
    "type_text": _set(data_type=TensorProto.STRING),
    "type_complex": _set(data_type=TensorProto.COMPLEX64),
    "type_float4": _set(data_type=TensorProto.FLOAT4E2M1),
    "type_int4": _set(data_type=TensorProto.INT4),
    "type_double": _set(data_type=TensorProto.DOUBLE),
    "data_nan": _set(raw_data=np.full((4, 4), np.nan, np.float32).tobytes()),
    "data_infinite": _set(raw_data=np.full((4, 4), np.inf, np.float32).tobytes()),
}.items():
    _add(REFUSED, f"tensor_{_name}", lambda change=_change: with_tensor(change))


@either
def tensor_with_raw_and_typed_data() -> onnx.ModelProto:
    return with_tensor(lambda tensor: tensor.float_data.extend([1.0] * 16))


@refused
def sparse_initializer() -> onnx.ModelProto:
    proto = chained(node("Relu", "h", "y"))
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w2", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("", TensorProto.INT64, [1], [0]),
        [2**40],
    )
    proto.graph.sparse_initializer.append(sparse)
    return proto


@refused
def sparse_constant() -> onnx.ModelProto:
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    made = helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(values, indices, [2**40]))
    return chained(made, node("Add", "h c", "y"))


# ---- operators and attributes


def convolution(**attributes: object) -> onnx.ModelProto:
    return model(
        [node("Conv", "x w", "y", "conv", **attributes)],
        [value("x", [1, 2, 8, 8])],
        [value("y", None)],
        {"w": weights(2, 2, 3, 3)},
    )


for _number, _attributes in enumerate(
    (
        *(
            {"strides": [0, 0]},
            {"strides": [-1, 1]},
            {"strides": [2**40, 1]},
            {"pads": [-9, 0, 0, 0]},
            {"dilations": [0, 1]},
        ),
        *({"pads": [2**31, 0, 0, 0]}, {"pads": [2**62, 2**62, 2**62, 2**62]}, {"dilations": [2**40, 1]}, {"group": 0}),
        *(
            {"group": -2},
            {"group": 2**40},
            {"kernel_shape": [5, 5]},
            {"kernel_shape": [3]},
            {"pads": [1]},
            {"strides": 3},
        ),
        *({"auto_pad": "SIDEWAYS"}, {"auto_pad": b"\xff\xfe"}, {"group": 1.5}, {"kernel_shape": [1.0, 2.0]}),
    )
):
    _add(
        SOUND if _attributes == {"strides": [2**40, 1]} else REFUSED,
        f"convolution_{_number}",
        lambda attributes=_attributes: convolution(**attributes),
    )

for _number, (_op, _attributes) in enumerate(
    (
        *(
            ("LeakyRelu", {"alpha": "text"}),
            ("Softmax", {"axis": 2**40}),
            ("Softmax", {"axis": -9}),
            ("Flatten", {"axis": 77}),
        ),
        *(
            ("Transpose", {"perm": [0, 0]}),
            ("Transpose", {"perm": [2**40, 0]}),
            ("Cast", {"to": 99}),
            ("Cast", {"to": -1}),
        ),
        *(("Gemm", {}), ("Frobnicate", {}), ("Concat", {}), ("LRN", {"size": 2**40}), ("Relu", {"unheard_of": 1})),
        *(
            ("MaxPool", {"kernel_shape": [2, 2]}),
            ("Einsum", {"equation": "→"}),
            ("TopK", {}),
            ("LpPool", {"kernel_shape": [0]}),
        ),
    )
):
    _add(
        REFUSED,
        f"operator_{_number}",
        lambda op=_op, attributes=_attributes: chained(node(op, "h", "y", "odd", **attributes)),
    )


@refused
def alpha_is_a_graph() -> onnx.ModelProto:
    return chained(node("LeakyRelu", "h", "y", alpha=helper.make_graph([], "g", [], [])))


@refused
def attribute_without_a_type() -> onnx.ModelProto:
    proto = chained(node("LeakyRelu", "h", "y", alpha=0.5))
    proto.graph.node[1].attribute[0].type = 0
    return proto


@refused
def unknown_domain() -> onnx.ModelProto:
    return model([MATMUL, helper.make_node("Relu", ["h"], ["y"], domain="org.evil")], X, Y, W, domains=["org.evil"])


for _version in (0, -1, 1, 999, 2**40):
    _add(
        REFUSED,
        f"opset_{_version}",
        lambda version=_version: model([MATMUL, node("Relu", "h", "y")], X, Y, W, opset=version),
    )


@refused
def no_opset() -> onnx.ModelProto:
    proto = mlp()
    del proto.opset_import[:]
    return proto


@either
def two_opsets() -> onnx.ModelProto:
    proto = mlp()
    proto.opset_import.extend([helper.make_opsetid("", 11), helper.make_opsetid("ai.onnx", 22)])
    return proto


@refused
def all_inputs_absent() -> onnx.ModelProto:
    return chained(helper.make_node("Add", ["", ""], ["y"]))


@refused
def output_without_a_name() -> onnx.ModelProto:
    return chained(helper.make_node("Relu", ["h"], [""]), node("Relu", "h", "y"), helper.make_node("Relu", [], []))


@refused
def gather_out_of_range() -> onnx.ModelProto:
    return chained(
        node("Shape", "h", "s"), node("Gather", "s i", "g"), node("Reshape", "h g", "y"), initializers={"i": ints(7)}
    )


@refused
def reshape_to_nonsense() -> onnx.ModelProto:
    return chained(node("Reshape", "h s", "y"), initializers={"s": ints(-1, -1)})


@either
def division_by_zero_in_a_shape() -> onnx.ModelProto:
    return chained(
        node("Shape", "h", "s"), node("Div", "s z", "t"), node("Reshape", "h t", "y"), initializers={"z": ints(0)}
    )


# ---- files


def external(location: str, *, offset: str = "0", length: str = "64", data: bytes | None = None) -> Maker:
    def make(folder: Path) -> Path:
        proto = chained(node("Relu", "h", "y"))
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, content in (("location", location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=content)
        if data is not None:
            (folder / "data.bin").write_bytes(data)
        return _saved(proto, folder)

    return make


REFUSED |= {
    "external_absolute": external("/etc/passwd"),
    "external_above": external("../../../etc/passwd"),
    "external_missing": external("nothing.bin"),
    "external_empty_location": external(""),
    "external_folder": external("."),
    "external_short": external("data.bin", data=bytes(8)),
    "external_negative_offset": external("data.bin", offset="-8", data=bytes(64)),
    "external_huge_length": external("data.bin", length=str(2**62), data=bytes(64)),
    "external_words_for_numbers": external("data.bin", offset="eight", data=bytes(64)),
    "external_nul": external("da\x00ta.bin", data=bytes(64)),
}


def external_through_a_link(folder: Path) -> Path:
    path = external("data.bin")(folder)
    (folder / "data.bin").symlink_to("/etc/passwd")
    return path


def file_of(data: bytes) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(data)
        return path

    return make


REFUSED |= {
    "external_through_a_link": external_through_a_link,
    "file_empty": file_of(b""),
    "file_zeros": file_of(bytes(4096)),
    "file_text": file_of(b"PK\x03\x04 this is no model"),
    "file_of_0xff": file_of(b"\xff" * 4096),
    "file_that_nests": file_of(b"\x3a\xff\xff\xff\xff\x07" * 1000),
    "file_half": file_of(mlp().SerializeToString()[:300]),
    "file_is_a_graph": file_of(mlp().graph.SerializeToString()),
}
