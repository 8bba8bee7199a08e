"""What is saved is all that was learned, under names that mean what they say."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilegrad as tg  # noqa: E402
from tests.support.command_line import CommandLine  # noqa: E402
from tilegrad.errors import UserError  # noqa: E402


def normalised() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = nn.Sequential(
            *(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        )
        for _ in range(3):  # statistics of its own
            module(torch.randn(8, 2, 6, 6) * 2 + 1)
    return module


def exported(module: nn.Module, *, dynamo: bool, keeps_batchnorm: bool) -> onnx.ModelProto:
    x = torch.randn(4, 2, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes: Any = ({0: torch.export.Dim("batch")},)
            program: Any = torch.onnx.export(
                module.eval(), (x,), dynamo=True, dynamic_shapes=shapes, verbose=False, optimize=not keeps_batchnorm
            )
            return program.model_proto
        mode = torch.onnx.TrainingMode
        buffer: Any = io.BytesIO()
        torch.onnx.export(
            *(module.eval(), (x,), buffer),
            dynamo=False,
            opset_version=17,
            training=mode.PRESERVE if keeps_batchnorm else mode.EVAL,
            do_constant_folding=not keeps_batchnorm,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
        return onnx.load_from_string(buffer.getvalue())


def test_a_module_gets_back_all_that_was_learned() -> None:
    """Predictions of PyTorch with the loaded state are ours; every name is there."""
    module = normalised()
    x = torch.randn(4, 2, 6, 6)
    compiled = tg.compile(
        tg.load(module, example=x), tg.Recipe(batch=4, batchnorm="train", optimizer=tg.SGD(lr=0.1)), target="host"
    )
    with tg.open_device("host") as device, device.load(compiled) as session:
        for _ in range(5):
            session.step(x.numpy() * 3 + 1, np.array([0, 1, 2, 0]))
            session.update()
        ours = session.infer(x.numpy())
        state = session.state_dict()
        assert {"1.running_mean", "4.running_var"} <= set(session.parameters())
        assert set(session.weights()) == {name for name, _ in module.named_parameters()}
        session.set_parameters(session.parameters())
    again = copy.deepcopy(module)
    again.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()}, strict=True)
    again.eval()
    assert again[1].num_batches_tracked == 3 + 5
    with torch.no_grad():
        assert np.allclose(again(x).numpy(), ours, rtol=1e-4, atol=1e-5)


def test_the_command_saves_running_statistics(tilegrad: CommandLine, tmp_path: Path) -> None:
    module = normalised()
    file, saved, data = tmp_path / "m.onnx", tmp_path / "w.npz", tmp_path / "d.npz"
    onnx.save(exported(module, dynamo=False, keeps_batchnorm=True), file)
    x = (np.random.default_rng(0).standard_normal((8, 2, 6, 6)) * 3 + 1).astype(np.float32)
    np.savez(data, x=x, y=np.arange(8) % 3)
    done = tilegrad(
        *("train", file, "--device", "host", "--batch", 4, "--batchnorm", "train", "--steps", 3),
        *("--data", data, "--save-weights", saved),
    )
    assert done.status == 0, done.err
    learned = dict(np.load(saved))
    assert set(learned) == {
        *(name for name, _ in module.named_parameters()),
        *(name for name, _ in module.named_buffers() if "running" in name),
    }
    by_hand = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.01)
    for i in range(3):
        rows = np.arange(4 * i, 4 * i + 4) % 8
        optimizer.zero_grad()
        nn.functional.cross_entropy(by_hand(torch.tensor(x[rows])), torch.tensor(rows % 3)).backward()
        optimizer.step()
    for name, array in by_hand.state_dict().items():
        if "tracked" not in name:
            assert np.allclose(learned[name], array.numpy(), rtol=1e-3, atol=1e-5), name


def test_folded_weights_are_called_so() -> None:
    compiled = tg.compile(
        tg.load(normalised(), example=torch.randn(4, 2, 6, 6)), tg.Recipe(batch=4, batchnorm="fold"), target="host"
    )
    with tg.open_device("host") as device, device.load(compiled) as session:
        names = set(session.parameters())
        assert {"0.weight.folded", "3.weight.folded", "3.bias.folded", "7.weight"} <= names
        assert not {"0.weight", "3.weight", "3.bias"} & names
        session.set_parameters(session.parameters())
        with pytest.raises(UserError, match="folded weights do not fit the module"):
            session.state_dict()


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["train", "fold"])
def test_a_policy_that_comes_too_late_is_refused(policy: str, dynamo: bool) -> None:
    model = tg.load(exported(normalised(), dynamo=dynamo, keeps_batchnorm=False))
    assert len(model.folded) == 2 and any("folded BatchNormalization into 2 layer(s)" in note for note in model.notes)
    assert not {"0.weight", "3.weight", "3.bias"} & set(model.parameters)
    with pytest.raises(UserError, match="the exporter folded BatchNormalization into the layers before it"):
        tg.compile(model, tg.Recipe(batch=4, batchnorm=policy), target="host")
    kept = tg.load(exported(normalised(), dynamo=dynamo, keeps_batchnorm=True))
    assert not kept.folded and tg.compile(kept, tg.Recipe(batch=4, batchnorm=policy), target="host")


@pytest.mark.parametrize("policy", ["train", "fold"])
def test_a_policy_for_nothing(policy: str) -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(UserError, match="the model has no BatchNormalization"):
        tg.compile(tg.load(module, example=torch.randn(1, 4)), tg.Recipe(batchnorm=policy), target="host")
    zoo = tg.compile(tg.load("mlp"), tg.Recipe(batchnorm=policy), target="host")
    assert f"the model has no BatchNormalization: policy '{policy}' changes nothing" in zoo.model.notes


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm2d(2, momentum=None), "'0' has no momentum"),
        (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), "'0' is an InstanceNorm2d"),
    ],
)
def test_statistics_that_onnx_cannot_keep(layer: nn.Module, reason: str) -> None:
    module = nn.Sequential(layer, nn.Conv2d(2, 2, 1), nn.Flatten())
    model = tg.load(module, example=torch.randn(4, 2, 3, 3))
    with pytest.raises(UserError, match="running statistics of the module cannot be trained") as caught:
        tg.compile(model, tg.Recipe(batch=4, batchnorm="train"), target="host")
    assert reason in str(caught.value)
    tg.compile(model, tg.Recipe(batch=4), target="host")
