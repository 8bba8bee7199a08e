"""What a person reads when the input is wrong: exact texts, exit status 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.command_line import CommandLine
from tests.support.small_models import linear, model, node, saved, weights

SHAPE_7 = numpy_helper.from_array(np.array([1, 7], dtype=np.int64), "shape")
WIDE = helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 16])

CONV = model([node("Conv", ["x", "w"], ["y"], "conv1")], ["N", 3, 8, 8], ["N", 4, 6, 6], [weights("w", 4, 5, 3, 3)])
RESHAPE = model(
    [node("Gemm", ["x", "w"], ["h"], "fc"), node("Reshape", ["h", "shape"], ["y"], "flatten")],
    [1, 8],
    [1, 7],
    [weights("w", 8, 8), SHAPE_7],
)
RELU = model(
    [node("Relu", ["x"], ["h"], "act"), node("Gemm", ["h", "w"], ["y"], "fc")],
    [1, 8],
    [1, 4],
    [weights("w", 16, 4)],
    [WIDE],
)
GEMM = model([node("Gemm", ["x", "w"], ["y"], "fc")], [1, 8], [1, 4], [weights("w", 9, 4)])
NOTHING = model([node("Relu", ["x"], ["y"], "act")], ["N", 8], ["N", 8])
UNSUPPORTED = model(
    [
        node("Gemm", ["x", "w"], ["h"], "fc"),
        node("TopK", ["h", "k"], ["top", "where"], "best", axis=1),
        node("NonZero", ["top"], ["found"], "hits"),
        node("Cast", ["found"], ["y"], "as_float", to=TensorProto.FLOAT),
    ],
    [1, 8],
    ["A", "B"],
    [weights("w", 8, 4), numpy_helper.from_array(np.array([2], dtype=np.int64), "k")],
)


def with_nan() -> onnx.ModelProto:
    proto = linear()
    values = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    values[1, 2] = np.nan
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w"))
    return proto


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        pytest.param(
            CONV,
            "error: node 'conv1': Conv: the channels of the input ('x') do not match the weight ('w')\n"
            "  expected: 5 channels (one group, from weight [4, 5, 3, 3])\n"
            "  got: 3, from input [1, 3, 8, 8]\n",
            id="convolution channels",
        ),
        pytest.param(
            RESHAPE,
            "error: node 'flatten': Reshape: [1, 8] has 8 elements, which do not fill [1, 7]\n"
            "  expected: 8\n"
            "  got: 7\n"
            "  hint: the input is 'h'\n",
            id="Reshape 8 to 7",
        ),
        pytest.param(
            RELU,
            "error: node 'act': Relu: the declared type of output 'h' is wrong\n"
            "  expected: f32[1,8]\n"
            "  got: f32[1,16]\n",
            id="Relu 8 to 16",
        ),
        pytest.param(
            GEMM,
            "error: node 'fc': Gemm: inner dimensions differ\n"
            "  expected: B ('w') with 8 rows after transposition\n"
            "  got: 9, from A [1, 8] and B [9, 4]\n"
            "  hint: check transA and transB\n",
            id="Gemm inner dimensions",
        ),
        pytest.param(
            with_nan(),
            "error: initializer 'w' holds NaN\n  got: 1 of 32 elements, the first at [1, 2]\n",
            id="NaN in weights",
        ),
        pytest.param(
            NOTHING,
            "error: the model has nothing to train\n"
            "  got: 0 initializers: 0 parameters, 0 statistics, 0 constants\n"
            "  hint: `tilegrad inspect MODEL --parameters` lists what each initializer is, and why\n",
            id="nothing to train",
        ),
    ],
)
def test_a_wrong_model(tilegrad: CommandLine, tmp_path: Path, proto: onnx.ModelProto, text: str) -> None:
    path = saved(proto, tmp_path)
    answer = tilegrad("train", path, "-o", tmp_path / "out")
    assert (answer.status, answer.out, answer.err) == (2, "", text)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", ["train", "compile", "inspect", "gradcheck", "infer"])
def test_every_command_refuses_a_wrong_model(tilegrad: CommandLine, tmp_path: Path, command: str) -> None:
    """Peers accept a convolution whose channels do not match and emit C for it."""
    output = ("-o", tmp_path / "out") if command in ("train", "compile", "infer") else ()
    answer = tilegrad(command, saved(CONV, tmp_path), *output)
    assert answer.status == 2 and answer.err.startswith("error: node 'conv1': Conv: the channels of the input ")
    assert not (tmp_path / "out").exists()


def test_all_unsupported_operators_are_listed_at_once(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad("train", saved(UNSUPPORTED, tmp_path))
    assert answer.status == 2
    assert answer.err.startswith("error: the model uses 2 operators that tilegrad does not have\n")
    assert "TopK: 'best'" in answer.err and "NonZero: 'hits'" in answer.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "error: no file '{path}'\n"),
        (b"", "error: '{path}' is not an ONNX model: it is empty\n"),
        (b"hello, this is not a model at all", "error: '{path}' is not an ONNX model: it is truncated or damaged\n"),
        (linear().SerializeToString()[:-40], "error: '{path}' is not an ONNX model: it is truncated or damaged\n"),
    ],
    ids=["missing", "empty", "not a model", "cut short"],
)
def test_a_file_that_is_no_model(tilegrad: CommandLine, tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    answer = tilegrad("train", path)
    assert (answer.status, answer.out, answer.err) == (2, "", text.format(path=path))


def test_a_folder_is_no_model(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad("train", tmp_path)
    assert (answer.status, answer.err) == (2, f"error: '{tmp_path}' is a folder, not an ONNX file\n")


X = np.zeros((3, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"x": X, "y": np.array([0, 1, 4])},
            "error: label out of range in array 'y' of '{path}'\n  expected: 0 to 3\n  got: 4 at y[2]\n",
        ),
        (
            {"x": X, "y": np.array([0, -1, 3])},
            "error: label out of range in array 'y' of '{path}'\n  expected: 0 to 3\n  got: -1 at y[1]\n",
        ),
        (
            {"x": np.zeros((3, 9), np.float32), "y": np.array([0, 1, 3])},
            "error: array 'x' of '{path}' has the wrong shape\n  expected: [samples,8]\n  got: [3,9]\n",
        ),
        (
            {"x": X, "y": np.zeros((3, 4), np.int64)},
            "error: array 'y' of '{path}' has the wrong shape\n  expected: [samples]\n  got: [3,4]\n",
        ),
        (
            {"x": X, "y": np.array([0, 1])},
            "error: '{path}' has a different number of samples in x and y\n  expected: 3 in y, as in x\n  got: 2\n",
        ),
        (
            {"x": X, "y": np.array([0.5, 1.0, 2.0])},
            "error: array 'y' of '{path}' has the wrong element type\n"
            "  expected: integers, the class of each sample\n"
            "  got: float64\n",
        ),
        (
            {"x": np.where(np.arange(24).reshape(3, 8) == 9, np.nan, 0.0), "y": np.array([0, 1, 2])},
            "error: array 'x' of '{path}' has a value that is not finite\n"
            "  expected: finite float32 numbers\n"
            "  got: nan at x[1,1]\n",
        ),
        (
            {"y": np.array([0])},
            "error: '{path}' has no array 'x'\n  expected: x [samples,8] and y [samples]\n  got: 'y'\n"
            "  hint: x holds the samples along its first axis\n",
        ),
    ],
    ids=["label 4 of 4", "label -1", "x", "y", "count", "float labels", "NaN", "no x"],
)
def test_wrong_data(
    tilegrad: CommandLine, linear_file: Path, tmp_path: Path, arrays: dict[str, np.ndarray], text: str
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    answer = tilegrad("train", linear_file, "--data", path)
    assert (answer.status, answer.out, answer.err) == (2, "", text.format(path=path))


def test_missing_and_damaged_data(tilegrad: CommandLine, linear_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    answer = tilegrad("train", linear_file, "--data", path)
    assert (answer.status, answer.err) == (
        2,
        f"error: no data file '{path}'\n  hint: --data takes an .npz file with arrays x and y\n",
    )
    path.write_bytes(b"PK\x03\x04 damaged")
    answer = tilegrad("train", linear_file, "--data", path)
    assert answer.status == 2 and answer.err.startswith(f"error: cannot read '{path}' as an .npz file\n")


def test_a_glob_that_matches_nothing(tilegrad: CommandLine, linear_file: Path) -> None:
    answer = tilegrad("train", linear_file, "--train", "names:conv*")
    assert (answer.status, answer.err) == (2, "error: no initializer is called 'conv*'\n  hint: the model has w, b\n")


def test_an_unwritable_output_folder(tilegrad: CommandLine, linear_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    cases = {
        tmp_path / "file" / "out": f"error: cannot write to '{tmp_path / 'file'}': '{tmp_path / 'file'}' is a file\n",
        tmp_path / "file": f"error: cannot write the project to '{tmp_path / 'file'}': it is a file\n",
        tmp_path / "full": f"error: cannot write the project to '{tmp_path / 'full'}': "
        "it is not empty and not a tilegrad project\n  hint: choose a new folder with -o\n",
        Path("/proc/none/out"): "error: cannot write to '/proc/none': No such file or directory\n",
    }
    for folder, text in cases.items():
        for command in ("train", "compile"):
            extra = ("--no-verify",) if command == "train" else ()
            answer = tilegrad(command, linear_file, "-o", folder, *extra)
            assert (answer.status, answer.out, answer.err) == (2, "", text)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("flag", ["--json", "--save-weights", "--save-gradients"])
def test_an_unwritable_result_file(tilegrad: CommandLine, linear_file: Path, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "none" / "result"
    answer = tilegrad("train", linear_file, flag, path)
    assert (answer.status, answer.err) == (2, f"error: cannot write '{path}': No such file or directory\n")


def test_a_batch_that_the_model_cannot_take_names_the_node(tilegrad: CommandLine, tmp_path: Path) -> None:
    fixed = model(
        [node("Reshape", ["x", "shape"], ["h"], "flatten"), node("Gemm", ["h", "w"], ["y"], "fc")],
        [1, 2, 4],
        [1, 4],
        [numpy_helper.from_array(np.array([1, 8], dtype=np.int64), "shape"), weights("w", 8, 4)],
    )
    answer = tilegrad("train", saved(fixed, tmp_path), "--batch", 3)
    assert answer.status == 2
    assert answer.err.startswith("error: node 'flatten': the model cannot be re-batched from 1 to 3: ")


@pytest.mark.parametrize("command", ["train", "infer", "gradcheck", "compile", "inspect", "compare"])
@pytest.mark.parametrize(("flag", "size", "level"), [("--l1", "4M", "L1"), ("--l2", "3M", "L2")])
def test_a_real_chip_has_no_more_memory_than_it_has(
    tilegrad: CommandLine, tmp_path: Path, command: str, flag: str, size: str, level: str
) -> None:
    """A simulated one may; whether the device is here does not matter."""
    output = ("-o", tmp_path / "out") if command == "compile" else ()
    answer = tilegrad(command, "simplemlp", "--device", "gvsoc:siracusa", flag, size, *output)
    assert answer.status == 2 and list(tmp_path.iterdir()) == []
    assert answer.err.startswith(f"error: device 'gvsoc:siracusa' has less {level} than the program may use\n")
    assert f"hint: a smaller {flag}; only a simulated chip (sim:siracusa) can have more" in answer.err
    assert tilegrad("inspect", "simplemlp", flag, size).status == 0


@pytest.mark.parametrize(("option", "value"), [("--home", "L2"), ("--home", "L3"), ("--buffering", "double")])
@pytest.mark.parametrize("command", ["train", "inspect"])
def test_options_of_a_hierarchy_are_refused_on_a_flat_memory(
    tilegrad: CommandLine, command: str, option: str, value: str
) -> None:
    answer = tilegrad(command, "simplemlp", "--device", "host", option, value)
    assert answer.status == 2 and answer.err == (
        f"error: {option} does not apply to target 'host', which has one memory\n"
        f"  expected: a chip with L1, L2 and L3, such as siracusa\n  got: {option} {value}\n"
    )


def test_what_a_flat_memory_does_anyway_may_be_asked_for(tilegrad: CommandLine) -> None:
    options = ("--tiling", "off", "--home", "auto", "--buffering", "auto")
    assert tilegrad("inspect", "simplemlp", "--device", "host", *options).status == 0
