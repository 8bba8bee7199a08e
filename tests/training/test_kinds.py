"""Losses and optimizers are one object each: what is registered is trained, judged, and offered everywhere."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import tilegrad as tg
from tests.conftest import NO_TORCH
from tests.support.command_line import CommandLine
from tilegrad import found
from tilegrad.errors import InternalError, UserError
from tilegrad.expectations import LARGEST_FLOAT
from tilegrad.losses import LOSSES, parse
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


EXPRESSIONS = (
    "cross_entropy:smoothing=0.2",
    "cross_entropy:ignore=3",
    "cross_entropy:weight=1/2/0.5/0/1/3/1",
    "cross_entropy:smoothing=0.1,ignore=1,weight=1/2/0.5/0.25/1/3/1",
    "huber:delta=0.25",
    "mse+0.5*l1+1e+0*huber",
    "cross_entropy+0.25*mse",
)


@pytest.mark.skipif(NO_TORCH, reason="the references are compared with each other")
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_both_references_of_an_expression_agree(text: str) -> None:
    import torch

    loss, draw = parse(text), np.random.default_rng(0)
    output = draw.standard_normal((6, 7))
    classes, values = np.array([0, 1, 2, 3, 4, 5]), draw.random((6, 7))
    targets = [classes if term.has_classes else values for term in loss.targets]
    expected = loss.value({"y": torch.tensor(output)}, targets, torch)
    assert loss.value({"y": output}, targets) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_are_trained_and_judged(text: str) -> None:
    if "weight=" in text:
        text = text.replace("1/2/0.5/0/1/3/1", "1/2/0.5/0/1/3/1/1/1/1")
        text = text.replace("1/2/0.5/0.25/1/3/1", "1/2/0.5/0.25/1/3/1/1/1/1")
    compiled = tg.compile("simplemlp", tg.Recipe(loss=text, batch=6))
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=2)
    assert run.verdict is not None and run.verdict.verified


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hinge", "the loss cannot be used"),
        ("", "the loss cannot be used"),
        ("output:", "the loss cannot be used"),
        ("mse+", "the loss cannot be used"),
        ("mse:delta=1", "the loss mse has no option 'delta'"),
        ("huber:delta=0", "the loss huber cannot use delta=0"),
        ("cross_entropy:smoothing=1", "the loss cross_entropy cannot use smoothing=1"),
        ("cross_entropy:ignore=x", "the loss cross_entropy cannot use ignore=x"),
        ("cross_entropy:weight=1/-1", "the loss cross_entropy cannot use weight=1/-1"),
        ("nan*mse", "the loss cannot be used"),
    ],
)
def test_what_is_no_loss_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tg.Recipe(loss=text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mse@nowhere", "the loss is of 'nowhere', which is no output of the model"),
        ("output:nowhere", "the loss is of 'nowhere', which is no output of the model"),
        ("output:output", "the output 'output' is no loss"),
        ("cross_entropy:weight=1/2", "the loss cross_entropy has a wrong number of class weights"),
    ],
)
def test_a_loss_that_does_not_fit_the_model_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tg.compile("simplemlp", tg.Recipe(loss=text))


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
