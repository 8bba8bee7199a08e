"""Adapters: judged against LoRA written by hand in PyTorch, merged back, saved and begun with again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad.errors import UserError
from tilegrad.recipe.adapters import lora_of
from tilegrad.training.train import Run, train


class Net(nn.Module):
    """A 1 x 1 convolution, a Gemm with a bias, a MatMul without."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 5, 1, stride=2)
        self.body = nn.Linear(5 * 9, 7)
        self.head = nn.Linear(7, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.mix(x)).flatten(1)
        return self.head(torch.relu(self.body(x)))


class HandWritten(nn.Module):
    """LoRA as its paper has it: y = layer(x) + scale B A x, the layer frozen."""

    def __init__(self, layer: nn.Module, down: np.ndarray, up: np.ndarray, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.down = nn.Parameter(torch.tensor(down, dtype=torch.float64))
        self.up = nn.Parameter(torch.tensor(up, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Conv2d):
            low = nn.functional.conv2d(x, self.down, stride=self.layer.stride)
            return self.layer(x) + self.scale * nn.functional.conv2d(low, self.up)
        return self.layer(x) + self.scale * (x @ self.down) @ self.up


SCALE = 1.5


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(3)
    return Net().eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "d.npz"
    np.savez(path, x=draw.standard_normal((8, 3, 6, 6)).astype(np.float32), y=draw.integers(0, 4, 8))
    return path


@pytest.fixture(scope="module")
def run(net: Net, data: Path) -> Run:
    model = tg.load(net, example=torch.zeros(2, 3, 6, 6), batch=2)
    recipe = tg.Recipe(train="lora:2:3", optimizer=tg.Adam(lr=0.02), batch=2, seed=5)
    with tg.open_device("host") as device:
        return train(tg.compile(model, recipe), device, data=data, steps=12)


def test_adapters_train_like_those_written_by_hand(net: Net, data: Path, run: Run) -> None:
    """A different program altogether: the user's module with wrapped layers, PyTorch's Adam, the same mini-batches."""
    assert run.verdict is not None and run.verdict.verified
    assert sorted(run.weights) == sorted(f"{name}.weight.lora_{f}" for name in ("mix", "body", "head") for f in "AB")
    torch.manual_seed(3)
    wrapped = Net().eval().double()
    for name in ("mix", "body", "head"):
        factors = (run.initial_weights[f"{name}.weight.lora_{f}"] for f in "AB")
        setattr(wrapped, name, HandWritten(getattr(wrapped, name), *factors, SCALE))
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.02)
    arrays = np.load(data)
    for step, loss in enumerate(run.losses):
        rows = np.arange(2 * step, 2 * step + 2) % 8
        found = nn.functional.cross_entropy(
            wrapped(torch.tensor(arrays["x"][rows], dtype=torch.float64)), torch.tensor(arrays["y"][rows])
        )
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        assert loss == pytest.approx(float(found.detach()), rel=2e-5)
    for name in ("mix", "body", "head"):
        layer = getattr(wrapped, name)
        for word, tensor in (("A", layer.down), ("B", layer.up)):
            got = run.weights[f"{name}.weight.lora_{word}"]
            np.testing.assert_allclose(got, tensor.detach().numpy(), rtol=2e-3, atol=2e-5)


def test_the_model_begins_as_it_was(net: Net, run: Run) -> None:
    assert all(not array.any() for name, array in run.initial_weights.items() if name.endswith("lora_B"))
    first = run.initial_weights["body.weight.lora_A"]
    assert first.any() and np.abs(first).max() <= 1 / np.sqrt(45)


def test_merged_weights_load_into_the_module(net: Net, data: Path, run: Run, tmp_path: Path) -> None:
    """And give what the model with its adapters gives."""
    torch.manual_seed(3)
    merged = Net().eval()
    merged.load_state_dict({name: torch.tensor(array) for name, array in run.state_dict().items()})
    assert not torch.equal(merged.body.weight, net.body.weight) and torch.equal(merged.body.bias, net.body.bias)
    run.save(tmp_path / "kept.onnx", merges=False)
    run.save(tmp_path / "merged.onnx")
    x = np.load(data)["x"]
    with torch.no_grad():
        wanted = merged(torch.tensor(x)).numpy()
    for name in ("kept.onnx", "merged.onnx"):
        np.testing.assert_allclose(by_onnxruntime(tmp_path / name, x), wanted, rtol=1e-5, atol=1e-5)


def by_onnxruntime(path: Path, x: np.ndarray) -> np.ndarray:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {session.get_inputs()[0].name: x})[0]
    return found


def test_kept_adapters_are_begun_with_again(net: Net, data: Path, run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "kept.safetensors", merges=False)
    run.save(tmp_path / "merged.npz")
    model = tg.load(net, example=torch.zeros(2, 3, 6, 6), batch=2, weights=tmp_path / "merged.npz")
    with tg.open_device("host") as device:
        again = train(tg.compile(model, tg.Recipe(train="bias", batch=2)), device, data=data, steps=1)
    assert again.verdict is not None and again.verdict.verified
    with pytest.raises(UserError, match="weights of another model"):
        tg.load(net, example=torch.zeros(2, 3, 6, 6), weights=tmp_path / "kept.safetensors")


def test_selections_are_joined(tilegrad: CommandLine) -> None:
    answer = tilegrad("inspect", "mlp", "--train", "lora:4+last:1", "--parameters", "--json", "-")
    trained = {row["name"] for row in answer.json["parameters"] if row["trains"]}
    assert {"fc3.weight", "fc3.bias", "fc1.weight.lora_A", "fc3.weight.lora_B"} <= trained
    assert "fc1.weight" not in trained


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("lora:4:16:fc1.bias", "'fc1.bias' f32[128]"),
        ("lora:4:*.bias", "has a matrix to adapt"),
        ("lora:4:nothing*", "nothing matches 'nothing*'"),
        ("lora:0", "a rank of 1 or more"),
        ("lora:x", "a rank of 1 or more"),
        ("lora", "a rank of 1 or more"),
        ("lora:4:-1", "a rank of 1 or more"),
        ("lora:4+lora:8", "adapters are asked for twice"),
    ],
)
def test_adapters_that_cannot_be(selection: str, words: str, tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "mlp", "--device", "host", "--train", selection)
    assert answer.status == 2 and words in answer.err


def test_a_model_without_a_matrix(tilegrad: CommandLine, tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.ones((1, 4), np.float32), "scale")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "scale"], ["y"])], "scaled", [x], [y], [scale])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    answer = tilegrad("train", tmp_path / "m.onnx", "--device", "host", "--train", "lora:2")
    assert answer.status == 2 and "the model has no matrix to adapt" in answer.err


def test_a_matrix_that_others_read_too(tmp_path: Path) -> None:
    """A tied embedding: its adapter is of the product alone, so it can be kept but not merged."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.words(x).mean(1) @ self.words.weight.T

    torch.manual_seed(0)
    model = tg.load(Tied(), example=torch.zeros(1, 3, dtype=torch.int64))
    with tg.open_device("host") as device:
        run = train(tg.compile(model, tg.Recipe(train="lora:2")), device, steps=2)
    assert run.verdict is not None and run.verdict.verified
    with pytest.raises(UserError, match="cannot be merged: other nodes read that weight"):
        run.save(tmp_path / "m.onnx")
    run.save(tmp_path / "m.onnx", merges=False)


def test_words_of_a_selection() -> None:
    found = lora_of("lora:8:16:*attn*,fc*+norm")
    assert found is not None and (found.rank, found.alpha, found.globs) == (8, 16.0, ("*attn*", "fc*"))
    assert lora_of("last:1") is None
    short = lora_of("lora:4:fc*")
    assert short is not None and short.scale == 1.0 and short.globs == ("fc*",)
