"""Training graphs that do not fit together are refused by name and shape, with status 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tilegrad as tg
from tests.given import two_graphs
from tests.support.command_line import CommandLine
from tilegrad.errors import UserError

SOURCE = Path(__file__).parent / "data" / "ort-artifacts"
Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of one artifact, to be damaged."""
    return Path(shutil.copytree(SOURCE / "mlp_static8_sgd", tmp_path / "artifact"))


def change(folder: Path, name: str, how: Change) -> None:
    model = onnx.load(folder / name)
    how(model)
    onnx.save(model, folder / name)


def refusal(source: Path, recipe: tg.Recipe | None = None) -> str:
    with pytest.raises(UserError) as caught:
        tg.compile(str(source), recipe)
    assert caught.value.exit_status == 2
    return str(caught.value)


def input_of(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    return next(value for value in model.graph.input if value.name == name)


def resize(name: str, axis: int, extent: int) -> Change:
    def apply(model: onnx.ModelProto) -> None:
        input_of(model, name).type.tensor_type.shape.dim[axis].dim_value = extent

    return apply


def test_the_evaluation_is_of_another_model(folder: Path) -> None:
    change(folder, "eval_model.onnx", resize("fc2.b", 0, 11))
    said = refusal(folder)
    assert "the training and the evaluation graph disagree about 'fc2.b'" in said
    assert "expected: f32[10]" in said and "got: f32[11]" in said
    shutil.copy(SOURCE / "cnn_static8_sgd" / "eval_model.onnx", folder / "eval_model.onnx")
    assert "the training and the evaluation graph disagree about 'x'" in refusal(folder)
    shutil.copy(SOURCE / "mlp_static8_sgd" / "eval_model.onnx", folder / "eval_model.onnx")

    def rename(model: onnx.ModelProto) -> None:
        input_of(model, "fc2.b").name = "fc3.b"
        for node in model.graph.node:
            node.input[:] = ["fc3.b" if name == "fc2.b" else name for name in node.input]

    change(folder, "eval_model.onnx", rename)
    assert "the evaluation graph reads 'fc3.b', which the training graph does not have" in refusal(folder)


def test_the_checkpoint_is_of_another_model(folder: Path) -> None:
    change(folder, "training_model.onnx", resize("fc1.w", 0, 31))
    said = refusal(folder)
    assert "the graph and the stored values of 'fc1.w' disagree" in said
    assert "expected: f32[31,16]" in said and "[32, 16]" in said
    shutil.copy(SOURCE / "cnn_static8_sgd" / "checkpoint", folder / "checkpoint")
    assert "the checkpoint is of another model" in refusal(folder) or "stored values" in refusal(folder)


def test_a_damaged_or_newer_checkpoint(folder: Path) -> None:
    data = bytearray((folder / "checkpoint").read_bytes())
    (folder / "checkpoint").write_bytes(b"\0" * 64)
    assert "is no checkpoint of ONNX Runtime" in refusal(folder)
    for length in (12, 40, 100, len(data) // 2):
        (folder / "checkpoint").write_bytes(data[:length])
        assert "checkpoint" in refusal(folder)
    draw = np.random.default_rng(0)
    for _ in range(20):
        damaged = bytearray(data)
        for place in draw.integers(8, len(data), 8):
            damaged[place] = int(draw.integers(0, 256))
        (folder / "checkpoint").write_bytes(damaged)
        with suppress(UserError):
            tg.load(str(folder))


def test_an_accumulator_of_another_shape(folder: Path) -> None:
    change(folder, "training_model.onnx", resize("fc1.b_grad.accumulation.buffer", 0, 33))
    said = refusal(folder)
    assert "[33]" in said and "[32]" in said and "fc1.b" in said


def test_an_optimizer_over_tensors_that_do_not_exist(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = two_graphs.write(tmp_path)

    def rename(model: onnx.ModelProto) -> None:
        model.graph.node[0].input[0] = "fc9_weight"

    change(folder, "network_optimizer.onnx", rename)
    said = refusal(folder)
    assert "the optimizer is over tensors that do not exist: 'fc9_weight'" in said
    onnx.save(two_graphs.optimizer_graph(), folder / "network_optimizer.onnx")
    change(folder, "network_optimizer.onnx", lambda model: model.graph.node.pop())
    assert "the optimizer leaves parameters out: fc2_weight" in refusal(folder)


def test_an_optimizer_over_a_sequence_of_others(folder: Path) -> None:
    def construct(model: onnx.ModelProto) -> None:
        made = helper.make_node("SequenceConstruct", ["fc1.w", "fc7.w"], ["chosen"])
        model.graph.node[0].input[1] = "chosen"
        model.graph.node.insert(0, made)

    change(folder, "optimizer_model.onnx", construct)
    assert "the optimizer is over tensors that do not exist: fc7.w" in refusal(folder)


def test_arrays_that_are_not_the_inputs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = two_graphs.write(tmp_path)
    held = dict(np.load(folder / "inputs.npz"))
    fewer = {name: array for name, array in held.items() if name not in ("arr_0003", "arr_0004")}
    np.savez(folder / "inputs.npz", **fewer)
    assert "inputs.npz and the graph disagree" in refusal(folder)
    np.savez(folder / "inputs.npz", **{name: array for name, array in held.items() if not name.startswith("arr_000")})
    assert "inputs.npz" in refusal(folder)


def test_what_a_training_graph_has_decided_cannot_be_changed(folder: Path) -> None:
    for recipe in (tg.Recipe(loss="mse"), tg.Recipe(train="bias"), tg.Recipe(batchnorm="train")):
        assert "a training graph has its own loss and gradients" in refusal(folder, recipe)
    assert "a training graph has the batch that it was made for" in refusal(folder, tg.Recipe(batch=5))


def test_unsupported_operators_are_told_together(folder: Path) -> None:
    def spoil(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "ReluGrad":
                node.op_type = "UnheardGrad"
            if node.op_type == "Relu":
                node.op_type, node.domain = "Unheard", "com.microsoft"

    change(folder, "training_model.onnx", spoil)
    said = refusal(folder)
    assert "com.microsoft.Unheard" in said


def test_folders_and_files_that_are_no_training_graph(tmp_path: Path, tilegrad: CommandLine) -> None:
    assert "is a folder, not an ONNX file" in refusal(tmp_path)
    shutil.copy(SOURCE / "mlp_sgd" / "forward.onnx", tmp_path / "forward.onnx")
    said = refusal(tmp_path)
    assert "holds no training graph" in said and "forward.onnx (model)" in said
    shutil.copy(SOURCE / "mlp_sgd" / "optimizer_model.onnx", tmp_path / "optimizer_model.onnx")
    assert "is an optimizer graph, no model" in refusal(tmp_path / "optimizer_model.onnx")
    result = tilegrad("train", tmp_path, "--device", "host")
    assert result.status == 2 and "holds no training graph" in result.err.replace("\n", " ")


def test_data_whose_names_match_no_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=np.zeros((8, 16)), kinds=np.zeros(8, np.int64))
    compiled = tg.compile(str(SOURCE / "mlp_sgd"), tg.Recipe(batch=8))
    with tg.open_device("host") as device, pytest.raises(UserError) as caught:
        tg.train(compiled, device, steps=1, data=tmp_path / "d.npz")
    said = str(caught.value)
    assert "has no array for the input 'x'" in said and "'x' [samples,16], 'labels' [samples]" in said
    assert "'images'" in said and "'kinds'" in said
