"""Policy `fold` trains what PyTorch trains after fusing convolution and batch norm: weight and bias of each layer.

The judge here is `torch.nn.utils.fusion.fuse_conv_bn_eval` and PyTorch's own loop, so that a mistake which the folding
pass and the folding reference share is found.
"""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

import tilegrad as tg
from tests.support.command_line import CommandLine
from tests.support.models import model, node, value, weights
from tilegrad.data import samples
from tilegrad.frontend import ImportedModel
from tilegrad.training import train as training
from tilegrad.verify.folded import folded_model

BATCH, STEPS = 2, 20


class Shared(nn.Module):
    """Two convolutions without bias behind one pair of norms that an exporter may merge: fresh ones are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)))
        return self.head(x.flatten(1))


def head(*layers: nn.Module, features: int = 4 * 64) -> nn.Sequential:
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(features, 5))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "no_bias": lambda: head(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
    "bias": lambda: head(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)),
    "no_affine": lambda: head(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, affine=False)),
    "transposed": lambda: head(nn.ConvTranspose2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
    "linear": lambda: head(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), features=16),
    "two": Shared,
}


def build(name: str, fresh: bool) -> nn.Module:
    torch.manual_seed(3)
    module = MODULES[name]()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                assert part.running_mean is not None and part.running_var is not None
                if not fresh:
                    part.running_mean.normal_(0.0, 0.3)
                    part.running_var.uniform_(0.5, 1.5)
                    if part.affine:
                        part.weight.uniform_(0.5, 1.5)
                        part.bias.normal_()
    return module.eval()


def exported(module: nn.Module) -> onnx.ModelProto:
    """In the mode it is in, so that the exporter does not fold by itself."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.randn(BATCH, 3, 8, 8),),
            buffer,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["y"],
        )
    return onnx.load_from_string(buffer.getvalue())


def fused(module: nn.Module) -> nn.Module:
    """Batch norms fused into the layers before them, by PyTorch, which marks a bias it creates as frozen: it is part
    of the layer now and trains here, as the bias of a batch norm did."""
    module = copy.deepcopy(module).double()
    for parent in module.modules():
        children = list(parent.named_children())
        for (name, layer), (norm_name, norm) in itertools.pairwise(children):
            if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                continue
            if isinstance(layer, nn.Linear):
                setattr(parent, name, fuse_linear_bn_eval(layer, norm))
            else:
                setattr(parent, name, fuse_conv_bn_eval(layer, norm, isinstance(layer, nn.ConvTranspose2d)))
            setattr(parent, norm_name, nn.Identity())
    return module.requires_grad_(True)


def recipe() -> tg.Recipe:
    return tg.Recipe(batch=BATCH, optimizer=tg.SGD(lr=0.02), batchnorm="fold")


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True], ids=["trained", "fresh"])
@pytest.mark.parametrize("name", MODULES)
def test_fold_trains_what_pytorch_trains_after_fusing(name: str, fresh: bool) -> None:
    module = build(name, fresh)
    compiled = tg.compile(tg.load(exported(module), batch=BATCH), recipe())
    with tg.open_device("host") as device:
        run = training.train(compiled, device, steps=STEPS)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    theirs = fused(module)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.02)
    losses = []
    batches = samples.make_batches(compiled, None)
    for index in range(STEPS):
        x, y = batches.batch(index)
        optimizer.zero_grad()
        loss = functional.cross_entropy(theirs(torch.tensor(x, dtype=torch.float64)), torch.tensor(y))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.allclose(run.losses, losses, rtol=1e-4)
    wanted = sorted((p.detach().numpy() for p in theirs.parameters()), key=lambda a: (a.size, float(a.sum())))
    got = sorted(run.weights.values(), key=lambda a: (a.size, float(a.sum())))
    assert [array.size for array in got] == [array.size for array in wanted]
    for ours, expected in zip(got, wanted, strict=True):
        assert np.linalg.norm(ours - expected.reshape(ours.shape)) <= 1e-4 * np.linalg.norm(expected)


def two_layers_one_norm() -> onnx.ModelProto:
    """One set of norm operands behind two convolutions: neither folded bias may take the shared name."""
    norm = "scale bias mean variance"
    return model(
        [
            node("Conv", "x w1", "c1", "conv1"),
            node("BatchNormalization", f"c1 {norm}", "n1", "bn1"),
            node("Conv", "n1 w2", "c2", "conv2"),
            node("BatchNormalization", f"c2 {norm}", "n2", "bn2"),
            node("Flatten", "n2", "y", "flat"),
        ],
        [value("x", ["n", 2, 5, 5])],
        [value("y", ["n", 2])],
        {"w1": weights(2, 2, 3, 3), "w2": weights(2, 2, 3, 3, seed=1), "scale": weights(2, seed=2)}
        | {"bias": weights(2, seed=3), "mean": weights(2, seed=4), "variance": np.array([0.5, 1.5], np.float32)},
    )


def load_two() -> ImportedModel:
    return tg.load(two_layers_one_norm(), batch=BATCH)


def test_a_bias_that_folding_creates_trains_under_its_own_name() -> None:
    compiled = tg.compile(load_two(), recipe())
    assert [t.name for t in compiled.program.trainable] == ["w1", "w2", "bias.folded", "bias.folded.0"]
    with tg.open_device("host") as device:
        run = training.train(compiled, device, steps=3)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    assert all(not np.array_equal(run.weights[name], run.initial_weights[name]) for name in run.weights)


@pytest.mark.parametrize(
    ("selector", "names"),
    [("last:1", {"w2", "bias.folded.0"}), ("bias", {"bias.folded", "bias.folded.0"}), ("names:w1", {"w1"})],
)
def test_folded_biases_belong_to_their_layers(selector: str, names: set[str]) -> None:
    chosen = tg.Recipe(batch=BATCH, batchnorm="fold", train=selector)
    assert {t.name for t in tg.compile(load_two(), chosen).program.trainable} == names


def test_inspect_lists_what_trains_when_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.onnx"
    path.write_bytes(two_layers_one_norm().SerializeToString())
    tilegrad = CommandLine(capsys)
    facts = tilegrad("inspect", path, "--batchnorm", "fold", "--parameters", "--json", "-", "--target", "host").json
    rows = {row["name"]: row for row in facts["parameters"]}
    assert {name for name, row in rows.items() if row["trains"]} == {"w1", "w2", "bias.folded", "bias.folded.0"}
    assert rows["bias.folded"]["reason"] == "bias of Conv 'conv1', with BatchNormalization 'bn1' folded in"
    assert rows["scale"]["reason"].startswith("folded away: it was scale of BatchNormalization")
    assert facts["trainable_params"] == facts["params"] == 2 * 36 + 2 * 2


@pytest.mark.parametrize("name", MODULES)
def test_the_reference_folds_by_itself(name: str) -> None:
    """The same function as PyTorch's fused module, from the ONNX file alone."""
    import onnxruntime

    module = build(name, fresh=False)
    folded = folded_model(tg.load(exported(module), batch=BATCH).proto)
    assert "BatchNormalization" not in {each.op_type for each in folded.graph.node}
    x = np.random.default_rng(0).standard_normal((BATCH, 3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(folded.SerializeToString())
    with torch.no_grad():
        wanted = fused(module)(torch.tensor(x, dtype=torch.float64)).numpy()
    assert np.allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-4, atol=1e-5)


class Twice(torch.nn.Module):
    """One layer and its norm, used twice; another one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.norm = torch.nn.Conv2d(3, 3, 3, padding=1, bias=False), torch.nn.BatchNorm2d(3)
        self.frozen, self.last = torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)
        for part in (self.frozen, self.last):
            part.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.shared(torch.relu(self.norm(self.shared(x)))))
        return self.last(self.frozen(x)).mean((2, 3))


def test_folding_keeps_what_is_tied_and_what_is_frozen() -> None:
    model = tg.load(Twice(), example=torch.randn(1, 3, 5, 5))
    compiled = tg.compile(model, tg.Recipe(loss="mse", batch=BATCH, batchnorm="fold"), target="host")
    assert [tensor.name for tensor in compiled.program.trainable] == ["shared.weight.folded", "norm.bias.folded"]
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=5)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()
