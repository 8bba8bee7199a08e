"""BatchNormalization whose statistics the graph computes, and standardised weights: trained as PyTorch trains the
module itself, whatever the BatchNorm policy says of running statistics."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tilegrad.data import samples
from tilegrad.errors import UserError
from tilegrad.training import train as training
from tilegrad.verify import torch_reference

BATCH, STEPS = 4, 20


class StandardisedConv(nn.Conv2d):
    """NFNet's: the weight is normalised by a batch norm without running statistics, with a learned gain."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        gain = (self.gain * self.weight[0].numel() ** -0.5).view(-1)
        standard = functional.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return functional.conv2d(x, standard.reshape_as(self.weight), self.bias, padding=1)


class CenteredConv(nn.Conv2d):
    """Weight standardisation in plain arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
        return functional.conv2d(x, (self.weight - mean) / torch.sqrt(variance + 1e-5), self.bias, padding=1)


class LearnedBounds(nn.Module):
    """The upper bounds of the activation are computed from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 64, 16)
        self.second = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.clamp(self.first(x.flatten(1)), -0.9)
        y = torch.minimum(y, self.first.bias * self.first.bias + 0.3)
        return self.second(torch.clamp(y, max=self.second.weight.abs().mean() + 0.2))


def head(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4 * 4, 5))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: head(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, track_running_stats=False)),
    "no_affine": lambda: head(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, track_running_stats=False, affine=False)
    ),
    "nfnet": lambda: head(StandardisedConv(3, 4), nn.ReLU(), StandardisedConv(4, 4)),
    "centered": lambda: head(CenteredConv(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
    "bounds": LearnedBounds,
}


def build(name: str) -> nn.Module:
    """No two parameters are equal: exporters merge initializers of equal content."""
    torch.manual_seed(7)
    module = MODULES[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return module.eval()


def export(module: nn.Module, *, dynamo: bool) -> onnx.ModelProto:
    x = torch.randn(BATCH, 3, 8, 8)
    names = {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, optimize=False, **names)
            assert program is not None
            return program.model_proto
        buffer = io.BytesIO()
        torch.onnx.export(
            module,
            (x,),
            buffer,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            **names,
        )
    return onnx.load_from_string(buffer.getvalue())


def trained_by_pytorch(
    module: nn.Module, batches: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[list[float], nn.Module]:
    """The module itself, in float64, by PyTorch's own loop."""
    module = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(torch.tensor(x, dtype=torch.float64)), torch.tensor(y))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, module


def train(proto: onnx.ModelProto, policy: str) -> training.Run:
    recipe = tg.Recipe(batch=BATCH, optimizer=tg.SGD(lr=0.05), batchnorm=policy)  # type: ignore[arg-type]
    compiled = tg.compile(tg.load(proto, batch=BATCH), recipe)
    with tg.open_device("host") as device:
        return training.train(compiled, device, steps=STEPS)


def check(name: str, policy: str, dynamo: bool) -> None:
    module = build(name)
    run = train(export(module, dynamo=dynamo), policy)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    batches = samples.make_batches(run.compiled, None)
    losses, trained = trained_by_pytorch(module, [batches.batch(i) for i in range(STEPS)])
    assert np.allclose(run.losses, losses, rtol=1e-4)
    wanted = {key: parameter.detach().numpy() for key, parameter in trained.named_parameters()}
    assert set(run.weights) == set(wanted)
    for key, expected in wanted.items():
        assert np.linalg.norm(run.weights[key] - expected) <= 1e-4 * np.linalg.norm(expected), key


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["frozen", "train", "fold"])
@pytest.mark.parametrize("name", MODULES)
def test_legacy_export_trains_as_the_module(name: str, policy: str) -> None:
    """A policy that means nothing, since no BatchNormalization is left, is refused."""
    exported = tg.load(export(build(name), dynamo=False), batch=BATCH)
    if policy != "frozen" and not any(node.op == "BatchNormalization" for node in exported.graph.nodes):
        with pytest.raises(UserError, match="the model has no BatchNormalization"):
            train(export(build(name), dynamo=False), policy)
        return
    check(name, policy, dynamo=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_dynamo_export_trains_as_the_module(name: str) -> None:
    check(name, "frozen", dynamo=True)


def moving_statistics() -> onnx.ModelProto:
    """Mean and variance of the mini-batch, computed from a convolution's output."""
    return model(
        [
            node("Conv", "x w", "c", "conv"),
            node("ReduceMean", "c", "mean4", "mean4", axes=[0, 2, 3]),
            node("Sub", "c mean4", "d", "center"),
            node("Mul", "d d", "d2", "square"),
            node("ReduceMean", "d2", "variance", "variance", axes=[0, 2, 3], keepdims=0),
            node("ReduceMean", "c", "mean", "mean", axes=[0, 2, 3], keepdims=0),
            node("BatchNormalization", "c scale bias mean variance", "n", "bn"),
            node("Flatten", "n", "y", "flat"),
        ],
        [value("x", ["n", 2, 4, 4])],
        [value("y", ["n", 12])],
        {"w": weights(3, 2, 3, 3), "scale": weights(3, seed=1), "bias": weights(3, seed=2)},
    )


@pytest.mark.parametrize("policy", ["frozen", "train", "fold"])
def test_statistics_that_the_graph_computes_are_differentiated(policy: str) -> None:
    run = train(moving_statistics(), policy)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    assert run.verdict.reference.startswith("PyTorch") and set(run.weights) == {"w", "scale", "bias"}


@pytest.mark.parametrize("policy", ["frozen", "train"])
def test_differences_see_them_too(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyTorch: ONNX's own evaluator is the reference, which must not take them for running ones."""
    monkeypatch.setattr(torch_reference, "available", lambda: False)
    run = train(moving_statistics(), policy)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    assert run.verdict.reference.startswith("central differences")
