"""What is wrong with a model is said in one clear message, and these are the exact texts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.models import ints, mlp, model, node, value, weights
from tilegrad.errors import UserError
from tilegrad.frontend import load, read


def refusal(source: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        load(source, **options)  # type: ignore[arg-type]
    assert caught.value.exit_status == 2
    return str(caught.value)


# Files


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.onnx") == f"no file '{tmp_path}/none.onnx'"


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"'{tmp_path}' is a folder, not an ONNX file"


def test_neither_file_nor_zoo_name() -> None:
    text = refusal("resnet9")
    assert text.startswith("no model 'resnet9'\n  expected: a path to an .onnx file, or one of simplemlp, mlp,")
    assert text.endswith("  hint: did you mean 'resnet8'?")


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    assert refusal(path) == f"'{path}' is not an ONNX model: it is empty"


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    path.write_bytes(mlp().SerializeToString()[:-100])
    assert refusal(path) == f"'{path}' is not an ONNX model: it is truncated or damaged"


def test_another_protocol_buffer(tmp_path: Path) -> None:
    path = tmp_path / "tensor.onnx"
    path.write_bytes(onnx.numpy_helper.from_array(weights(4)).SerializeToString())
    assert refusal(path) in (
        f"'{path}' is not an ONNX model: it is truncated or damaged",
        f"'{path}' is not an ONNX model: it holds no graph",
    )


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("not a model\n")
    assert refusal(path) == f"'{path}' is not an ONNX model: it is truncated or damaged"


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.onnx"
    path.write_bytes(mlp().SerializeToString())

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(read, "open_regular", refuse)  # file modes would not stop root
    assert refusal(path) == f"cannot read '{path}'\n  got: Permission denied"


def test_model_over_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no room
    assert refusal(path) == (f"'{path}' is too large\n  expected: at most 2147483647 bytes\n  got: 2147483648 bytes")


def external(path: Path, location: str, length: int = 512, offset: int = 0) -> Path:
    """A model whose `w1` lies in another file."""
    proto = mlp()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("length", str(length)), ("offset", str(offset))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", "m.data")
    assert refusal(path) == f"the data file 'm.data' of 'w1' is missing\n  expected: '{tmp_path}/m.data'"


def test_external_data_too_short(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", "m.data", offset=8)
    (tmp_path / "m.data").write_bytes(bytes(512))
    assert refusal(path) == "the data file 'm.data' is too short for 'w1'\n  expected: 520 bytes\n  got: 512 bytes"


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../m.data", "", "..\\m.data", "C:\\m.data"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "m.data").write_bytes(bytes(512))
    path = external(folder / "m.onnx", location)
    assert refusal(path) == (
        f"the data of 'w1' is outside the model's folder\n  expected: a file beside the model\n  got: '{location}'"
    )


def test_external_data_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(512))
    (folder / "m.data").symlink_to(tmp_path / "secret")
    path = external(folder / "m.onnx", "m.data")
    assert refusal(path).startswith("the data of 'w1' is outside the model's folder")


def test_external_data_with_a_bad_offset(tmp_path: Path) -> None:
    path = external(tmp_path / "m.onnx", "m.data", offset=-4)
    (tmp_path / "m.data").write_bytes(bytes(512))
    assert refusal(path).startswith("the external data of 'w1' has a bad offset or length")


def test_external_data_of_a_model_in_memory(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path / "m.onnx", "m.data"), load_external_data=False)
    assert refusal(proto).startswith("the data of 'w1' is in another file, and a model in memory has no folder")


def test_something_else() -> None:
    assert refusal(42) == (
        "cannot load a model from this\n  expected: a path, a zoo name, an onnx.ModelProto or a torch.nn.Module\n"
        "  got: int"
    )


# The model as a whole


def test_old_opset() -> None:
    assert refusal(mlp(opset=9)).startswith("the model is of ONNX opset 9\n  expected: 11 to 23\n")


def test_invalid_model() -> None:
    broken = mlp()
    broken.graph.node[0].input[0] = "nowhere"
    text = refusal(broken)
    assert text.startswith("the model is not valid ONNX\n  got: Nodes in a graph must be topologically sorted")
    assert "'nowhere'" in text


def test_no_outputs() -> None:
    broken = mlp()
    del broken.graph.output[:]
    assert refusal(broken) == "the model has no outputs"


def test_bad_text() -> None:
    data = mlp().SerializeToString().replace(b"/relu/Relu", b"/rel\xff/Relu")
    broken = onnx.ModelProto.FromString(data)
    assert refusal(broken) == (
        "the model holds text that is not UTF-8\n  got: NodeProto.name = b'/rel\\xff/Relu'\n"
        "  hint: is the file damaged?"
    )


def test_unsupported_operators_are_listed_together() -> None:
    proto = model(
        [
            node("Det", "x", "a", "first"),
            node("LSTM", "x w r", "b", "second", hidden_size=3),
            node("Det", "x", "c"),
            node("Foo", "x", "d", "mine", domain="com.example"),
        ],
        [value("x", [1, 4, 4])],
        [value(name, None) for name in "abcd"],
        {"w": weights(1, 12, 4), "r": weights(1, 12, 3)},
        domains=["com.example"],
    )
    assert refusal(proto) == (
        "the model uses 3 operators that tilegrad does not have\n"
        "  expected: operators listed by `tilegrad ops`\n"
        "  got: \n"
        "    Det: 'first', 'Det_2'\n"
        "    LSTM: 'second'\n"
        "    com.example.Foo: 'mine'\n"
        "  hint: LSTM: unroll it over time into Gemm, Sigmoid, Tanh and Mul"
    )


def test_operator_that_onnx_does_not_have() -> None:
    proto = model([node("Frobnicate", "x", "y", "odd")], [value("x", [1, 4])], [value("y", None)])
    assert refusal(proto) == (
        "the model uses an operator that tilegrad does not have\n"
        "  expected: operators listed by `tilegrad ops`\n"
        "  got: Frobnicate: 'odd'"
    )


def test_unsupported_operator_behind_a_wrong_shape() -> None:
    """All unsupported operators come first, even if something else is wrong as well."""
    proto = model(
        [node("MatMul", "x w", "a", "bad"), node("Det", "a", "y", "det")],
        [value("x", [1, 4, 4])],
        [value("y", None)],
        {"w": weights(5, 4)},
    )
    assert "Det: 'det'" in refusal(proto)


def test_huge_constant_is_not_made() -> None:
    proto = model(
        [node("ConstantOfShape", "s", "c", "fill"), node("Add", "x c", "y", "add")],
        [value("x", [1, 4])],
        [value("y", None)],
        {"s": ints(2**20, 2**20)},
    )
    text = refusal(proto)
    assert "ConstantOfShape: 'fill'" in text
    assert "'fill': its constant result of shape [1048576, 1048576] is over 64 MB" in text


def test_endless_loop_is_not_run() -> None:
    body = helper.make_graph(
        [node("Identity", "c_in", "c_out"), node("Identity", "v_in", "v_out")],
        "body",
        [value("i", [], "i64"), value("c_in", [], "bool"), value("v_in", [1])],
        [value("c_out", [], "bool"), value("v_out", [1])],
    )
    proto = model(
        [node("Loop", "trips go start", "v", "loop", body=body), node("Add", "x v", "y", "add")],
        [value("x", [1, 4])],
        [value("y", None)],
        {"trips": np.array(2**40), "go": np.array(True), "start": np.ones(1, np.float32)},
    )
    text = refusal(proto)
    assert "Loop: 'loop'" in text and "a Loop of more than 10000 trips is not run at import" in text


def test_nan_in_weights() -> None:
    w = weights(4, 8)
    w[2, 3] = np.nan
    proto = model([node("Gemm", "x w", "y", "fc", transB=1)], [value("x", [1, 8])], [value("y", [1, 4])], {"w": w})
    assert refusal(proto) == "initializer 'w' holds NaN\n  got: 1 of 32 elements, the first at [2, 3]"


def test_infinity_in_weights() -> None:
    w = weights(4, 8)
    w[0, 1] = -np.inf
    proto = model([node("Gemm", "x w", "y", "fc", transB=1)], [value("x", [1, 8])], [value("y", [1, 4])], {"w": w})
    assert refusal(proto) == "initializer 'w' holds infinities\n  got: 1 of 32 elements, the first at [0, 1]"


# Inputs and the batch


def test_free_dimension_besides_the_batch() -> None:
    proto = model([node("Relu", "x", "y")], [value("x", ["batch", "length", 8])], [value("y", None)])
    assert refusal(proto) == (
        "input 'x' has free dimensions besides the batch\n"
        "  expected: fixed dimensions\n"
        "  got: dimension 1 ('length')\n"
        "  hint: python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name x --input_shape 1,N,8 "
        "MODEL FIXED_MODEL"
    )


def test_huge_input() -> None:
    proto = model([node("Relu", "x", "y")], [value("x", [2**30, 8])], [value("y", None)])
    assert refusal(proto) == (
        "input 'x' is too large\n  expected: at most 2147483647 elements\n  got: [1073741824, 8]"
    )


def test_huge_intermediate() -> None:
    proto = model(
        [node("Expand", "x s", "e", "grow"), node("ReduceSum", "e", "y", "sum", keepdims=0)],
        [value("x", [1, 8])],
        [value("y", [])],
        {"s": ints(2**30, 8)},
    )
    assert refusal(proto) == (
        "node 'grow': output 'e' is too large\n  expected: at most 2147483647 elements\n  got: [1073741824, 8]"
    )


def test_double_input() -> None:
    proto = model([node("Relu", "x", "y")], [value("x", [1, 8], "f64")], [value("y", None, "f64")])
    assert refusal(proto) == (
        "input 'x' is of element type float64\n"
        "  expected: f32, an integer type or bool\n"
        "  got: float64\n"
        "  hint: export the model in float32 (module.float() in PyTorch)"
    )


def test_double_inside() -> None:
    proto = model(
        [node("Cast", "x", "d", "widen", to=TensorProto.DOUBLE), node("Relu", "d", "y")],
        [value("x", [1, 8])],
        [value("y", None, "f64")],
    )
    assert refusal(proto) == ("node 'widen': Cast to float64\n  expected: f32, an integer type or bool\n  got: float64")


def test_bad_batch() -> None:
    assert refusal(mlp(), batch=0) == "the batch cannot be bound\n  expected: 1 or more\n  got: 0"


def test_fixed_batch_that_cannot_change() -> None:
    proto = model(
        [node("Reshape", "x s", "r", "flat"), node("Gemm", "r w", "y", "fc", transB=1)],
        [value("x", [2, 2, 4])],
        [value("y", [2, 3])],
        {"s": ints(2, 8), "w": weights(3, 8)},
    )
    text = refusal(proto, batch=4)
    assert text.startswith("node 'flat': the model cannot be re-batched from 2 to 4: Reshape")
    assert text.endswith("hint: export the model with a free batch dimension (dynamic_axes in torch.onnx.export)")


def test_fixed_batch_that_would_mix_samples() -> None:
    proto = model(
        [node("Reshape", "x s", "r", "merge"), node("ReduceMean", "r", "y", "mean", axes=[1], keepdims=0)],
        [value("x", [1, 6, 4])],
        [value("y", [1, 4])],
        {"s": ints(1, -1, 4)},
    )
    assert load(proto, batch=1).graph.types["y"].shape == (1, 4)
    assert refusal(proto, batch=2) == (
        "node 'mean': the model cannot be re-batched from 1 to 2: output 'y' does not follow the batch\n"
        "  expected: a first dimension of 2\n"
        "  got: [1, 4]\n"
        "  hint: export the model with a free batch dimension (dynamic_axes in torch.onnx.export)"
    )


# Wrong shapes


@pytest.mark.parametrize("opset", [11, 17, 23])
def test_relu_declared_wrong(opset: int) -> None:
    proto = model([node("Relu", "x", "y", "act")], [value("x", [1, 8])], [value("y", [1, 16])], opset=opset)
    assert refusal(proto) == (
        "node 'act': Relu: the declared type of output 'y' is wrong\n  expected: f32[1,8]\n  got: f32[1,16]"
    )


def test_inner_value_declared_wrong() -> None:
    proto = model(
        [node("Relu", "x", "h", "act"), node("Sigmoid", "h", "y", "out")],
        [value("x", [1, 8])],
        [value("y", [1, 8])],
        value_info=[value("h", [1, 16])],
    )
    assert refusal(proto) == (
        "node 'act': Relu: the declared type of output 'h' is wrong\n  expected: f32[1,8]\n  got: f32[1,16]"
    )


def test_declared_element_type_wrong() -> None:
    proto = model([node("Relu", "x", "y", "act")], [value("x", [1, 8])], [value("y", [1, 8], "i64")])
    assert refusal(proto) == (
        "node 'act': Relu: the declared type of output 'y' is wrong\n  expected: f32[1,8]\n  got: i64[1,8]"
    )


@pytest.mark.parametrize("opset", [11, 13, 17, 23])
def test_reshape_8_to_7(opset: int) -> None:
    proto = model(
        [node("Reshape", "x s", "y", "view")], [value("x", [1, 8])], [value("y", None)], {"s": ints(1, 7)}, opset=opset
    )
    text = refusal(proto)
    assert text.startswith("node 'view': Reshape") and "7" in text


@pytest.mark.parametrize("opset", [11, 13, 17, 23])
def test_gemm_inner_dimensions(opset: int) -> None:
    proto = model(
        [node("Gemm", "x w", "y", "fc", transB=1)],
        [value("x", [1, 8])],
        [value("y", None)],
        {"w": weights(4, 9)},
        opset=opset,
    )
    assert refusal(proto).startswith("node 'fc': Gemm: inner dimensions differ")


@pytest.mark.parametrize("opset", [11, 17, 23])
def test_convolution_channels(opset: int) -> None:
    proto = model(
        [node("Conv", "x w", "y", "conv")],
        [value("x", [1, 3, 8, 8])],
        [value("y", None)],
        {"w": weights(4, 5, 3, 3)},
        opset=opset,
    )
    assert refusal(proto).startswith("node 'conv': Conv")


def test_static_operand_that_is_not_constant() -> None:
    proto = model(
        [node("Reshape", "x s", "y", "view")],
        [value("x", [1, 8]), value("s", [2], "i64")],
        [value("y", None)],
    )
    assert refusal(proto, batch=1).startswith("node 'view': Reshape: input 1 ('s') must be a constant")


# PyTorch


def test_module_without_example() -> None:
    torch = pytest.importorskip("torch")
    assert refusal(torch.nn.Linear(3, 4)).startswith("a torch.nn.Module needs an example input")


def test_module_with_an_example_that_is_no_tensor() -> None:
    torch = pytest.importorskip("torch")
    assert refusal(torch.nn.Linear(3, 4), example=[1, 2]) == (
        "the example input of a torch.nn.Module must be made of tensors\n  expected: a tensor or a tuple of tensors\n"
        "  got: int, int"
    )


def test_module_that_cannot_be_exported() -> None:
    torch = pytest.importorskip("torch")
    text = refusal(torch.nn.Linear(3, 4), example=torch.zeros(1, 5))
    assert text.startswith("PyTorch could not export Linear\n  got: mat1 and mat2 shapes cannot be multiplied")
