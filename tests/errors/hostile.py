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
from onnx import TensorProto, helper

from tests.errors import hostile_growth  # noqa: F401 - it registers its own
from tests.errors.hostile_kinds import (
    EITHER,
    MATMUL,
    REFUSED,
    SOUND,
    Maker,
    W,
    X,
    Y,
    add,
    chained,
    either,
    refused,
    saved,
    sound,
)
from tests.support.models import ints, mlp, model, node, value, weights

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
    add(SOUND, f"name_{_number}", lambda text=_text: named(text))


# ---- numbers and types


def declared(shape: list[int | str | None]) -> onnx.ModelProto:
    return model([node("Relu", "x", "r"), node("MatMul", "r w", "y")], [value("x", shape)], [value("y", None)], W)


for _number, _shape in enumerate(([2**31, 4], [2**62, 4], [1, 2**40], [-5, 4], [1, -4], [2**31, 2**31, 2**31, 4])):
    add(
        EITHER if _shape[0] in (2**31, 2**62, -5) else REFUSED,
        f"input_of_shape_{_number}",
        lambda shape=_shape: declared(list(shape)),
    )
add(REFUSED, "input_of_free_dimensions", lambda: declared([None, "n", 4]))
add(SOUND, "input_of_rank_12", lambda: declared([1] * 11 + [4]))
add(REFUSED, "input_without_samples", lambda: declared([0, 4]))
add(SOUND, "input_without_elements", lambda: model([node("Relu", "x", "y")], [value("x", [1, 0])], [value("y", None)]))


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
    add(REFUSED, f"tensor_{_name}", lambda change=_change: with_tensor(change))


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
    add(
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
    add(
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
    add(
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
        return saved(proto, folder)

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
