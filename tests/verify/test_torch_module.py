"""A torch module is judged by that module, trained by PyTorch: the same parameters by name, the same 20 steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilegrad as tg  # noqa: E402
from tests.verify.torch_layers import CASES, build, example  # noqa: E402
from tilegrad.data.samples import make_batches  # noqa: E402
from tilegrad.training.train import Run  # noqa: E402
from tilegrad.verify.reference import relative_error, relative_errors  # noqa: E402

STEPS = 20


def trained_by_tilegrad(name: str, module: Any, exporter: str) -> Run:
    imported = tg.load(module, example=example(name), exporter=exporter)
    recipe = tg.Recipe(loss="mse", batch=4, batchnorm=CASES[name].batchnorm, optimizer=tg.SGD(lr=0.05))
    with tg.open_device("host") as device:
        return tg.train(tg.compile(imported, recipe, target="host"), device, steps=STEPS)


def trained_by_hand(name: str, module: Any, run: Run) -> tuple[list[float], Any]:
    """Twenty steps as a person would write them, in float64."""
    module = copy.deepcopy(module).double().eval()
    if CASES[name].batchnorm == "train":
        module.train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for x, y in make_batches(run.compiled, None).first(STEPS):
        fed = torch.tensor(x) if CASES[name].tokens else torch.tensor(x, dtype=torch.float64)
        output = module(fed)
        output = output[0] if isinstance(output, tuple) else output
        loss = torch.nn.functional.mse_loss(output, torch.tensor(y, dtype=torch.float64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, module


def check(name: str, *, trained: bool, exporter: str) -> None:
    module = build(name, trained=trained)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    run = trained_by_tilegrad(name, module, exporter)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    imported = run.compiled.model
    ours = {n: i.type.shape for n, i in imported.parameters.items() if i.role == "parameter"}
    assert ours == {n: tuple(p.shape) for n, p in module.named_parameters()}
    assert {n for n, b in module.named_buffers() if b.is_floating_point()} <= set(imported.parameters)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()
    assert "training this module, float64" in run.verdict.reference
    if CASES[name].drops:
        return
    losses, after = trained_by_hand(name, module, run)
    assert np.allclose(run.losses, losses, rtol=1e-4, atol=1e-6)
    reached = {n: p for n, p in after.named_parameters() if p.grad is not None}
    assert set(run.weights) == set(reached)
    errors = relative_errors(run.weights, {n: p.detach().numpy() for n, p in reached.items()})
    assert max(errors.values()) < 1e-4, errors
    state = run.state_dict()
    assert set(state) == set(after.state_dict())
    for key, value in after.state_dict().items():
        assert relative_error(state[key], value.numpy(), 1.0) < 1e-4, key


@pytest.mark.parametrize("name", ["layernorm", "residual, train", "tied", "partly frozen", "attention dropout"])
def test_fresh_module(name: str) -> None:
    check(name, trained=False, exporter="torchscript")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "trained"])
@pytest.mark.parametrize(
    ("name", "exporter"), [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
)
def test_every_layer(name: str, exporter: str, state: str) -> None:
    check(name, trained=state == "trained", exporter=exporter)


def test_the_other_exporter_is_tried_too() -> None:
    """TorchScript's has no RMSNorm."""
    module = build("rmsnorm", trained=False)
    imported = tg.load(module, example=example("rmsnorm"))
    assert imported.module is not None and imported.module.exporter == "dynamo"
    assert set(dict(module.named_parameters())) <= set(imported.parameters)
