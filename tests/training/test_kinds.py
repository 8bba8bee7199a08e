"""Losses and optimizers are one object each: what is registered is trained, judged, and offered everywhere."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import tilegrad as tg
from tests.conftest import NO_TORCH
from tests.support.command_line import CommandLine
from tilegrad import found
from tilegrad.errors import InternalError
from tilegrad.expectations import LARGEST_FLOAT
from tilegrad.losses import LOSSES
from tilegrad.ops import registry
from tilegrad.optimizers import OPTIMIZERS, Optimizer


def test_the_registered_ones() -> None:
    assert set(LOSSES) >= {"cross_entropy", "mse", "bce_with_logits", "l1"}
    assert set(OPTIMIZERS) >= {"sgd", "momentum", "adam", "adamw"}
    assert all(registry.find(kind.operator) for kind in (*LOSSES.values(), *OPTIMIZERS.values()))
    assert all(kind().name == name for name, kind in OPTIMIZERS.items())


def test_a_file_that_defines_nothing_is_our_mistake() -> None:
    with pytest.raises(InternalError, match=r"tilegrad\.losses\.\w+ does not define"):
        found.found_in("tilegrad.losses", tg.losses.__path__, lambda module: None)


@pytest.mark.skipif(NO_TORCH, reason="the references are compared with each other")
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_both_references_of_a_loss_agree(name: str) -> None:
    import torch

    kind, draw = LOSSES[name], np.random.default_rng(0)
    output = draw.standard_normal((4, 7))
    target = draw.integers(0, 7, 4) if kind.has_classes else draw.random((4, 7))
    expected = kind.torch(torch, torch.tensor(output), torch.tensor(target))
    assert kind.float64(output, target) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.skipif(NO_TORCH, reason="the references are compared with each other")
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_both_references_of_an_optimizer_agree(name: str) -> None:
    import torch

    kind, draw = OPTIMIZERS[name], np.random.default_rng(0)
    options = {"weight_decay": 0.1} if any(f.name == "weight_decay" for f in fields(kind)) else {}
    optimizer = kind(lr=0.05, **options)
    weight, gradient = draw.standard_normal((2, 30))
    parameter = torch.tensor(weight, requires_grad=True)
    parameter.grad = torch.tensor(gradient)
    optimizer.torch_optimizer(torch, [parameter]).step()
    np.testing.assert_allclose(optimizer.first_update(weight, gradient), parameter.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_is_trained_and_judged(tilegrad: CommandLine, loss: str) -> None:
    run = tilegrad("train", "simplemlp", "--loss", loss, "--device", "host", "--steps", 2, "--json", "-").json
    assert run["verified"] is True and run["loss"] == loss


def test_the_command_line_offers_what_is_registered(tilegrad: CommandLine) -> None:
    words = tilegrad("train", "--help").out
    assert all(name in words for name in (*LOSSES, *OPTIMIZERS))


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=lambda kind: kind.__name__)
def test_numbers_beyond_float_are_refused(kind: type[Optimizer]) -> None:
    with pytest.raises(tg.errors.UserError, match="the learning rate cannot be used"):
        kind(lr=2 * LARGEST_FLOAT)
