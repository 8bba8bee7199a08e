"""Whole trainings on the host, verified per tensor: models, batches, accumulation, optimizers, losses, BatchNorm.

A slice of what the product promises; `make matrix` runs all of it (tests/devices/test_host_matrix.py).
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tilegrad.compiled import Compiled
from tilegrad.data import samples
from tilegrad.devices.host import HostDevice
from tilegrad.recipe import Optimizer
from tilegrad.training import train as training
from tilegrad.training.train import Run

torch = pytest.importorskip("torch")


def verified(source: object, recipe: tg.Recipe, steps: int) -> Run:
    """Trains, and insists on PyTorch's verdict."""
    with HostDevice() as device:
        run = training.train(tg.compile(source, recipe, target="host"), device, steps=steps)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    assert run.verdict.reference.startswith("PyTorch")
    assert len(run.losses) == len(run.verdict.reference_losses) == steps * recipe.accumulate
    return run


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("simplemlp", 100),
        ("autoencoder_tiny", 100),
        pytest.param("dscnn", 10, marks=pytest.mark.slow),
    ],
)
def test_models(name: str, steps: int) -> None:
    run = verified(name, tg.Recipe(), steps)
    assert run.verdict is not None and run.verdict.max_gradient_error is not None
    assert run.verdict.max_gradient_error <= 1e-4


def test_it_learns() -> None:
    """Samples are never seen twice, so a falling loss is no memory of them."""
    run = verified("simplemlp", tg.Recipe(batch=8, optimizer=tg.SGD(lr=0.2)), 100)
    assert np.mean(run.losses[-10:]) < 0.7 * np.mean(run.losses[:10])


@pytest.mark.parametrize(("batch", "accumulate"), [(4, 1), (1, 2), (4, 2), (3, 5)])
@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_batches_and_accumulation(batch: int, accumulate: int, mode: str) -> None:
    verified("simplemlp", tg.Recipe(batch=batch, accumulate=accumulate, accum_mode=mode), 10)


@pytest.mark.parametrize(
    "optimizer",
    [
        tg.SGD(lr=0.05),
        tg.SGD(lr=0.05, weight_decay=0.1),
        tg.Momentum(lr=0.02),
        tg.Momentum(lr=0.02, momentum=0.5, weight_decay=0.01),
        tg.Adam(),
        tg.Adam(lr=0.001, beta1=0.8, beta2=0.99, epsilon=1e-4, weight_decay=0.1),
        tg.AdamW(),
        tg.AdamW(lr=0.001, weight_decay=0.3),
    ],
    ids=str,
)
def test_optimizers(optimizer: Optimizer) -> None:
    verified("simplemlp", tg.Recipe(optimizer=optimizer, batch=2, accumulate=2), 30)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "l1", "bce_with_logits"])
def test_losses(loss: str) -> None:
    verified("simplemlp", tg.Recipe(loss=loss, batch=2), 10)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulation_is_a_larger_batch(accumulate: int) -> None:
    """`--accum N` behaves like one mini-batch N times as large: the same samples give the same weights."""
    large = verified("simplemlp", tg.Recipe(batch=2 * accumulate), 10)
    small = verified("simplemlp", tg.Recipe(batch=2, accumulate=accumulate), 10)
    for name, expected in large.weights.items():
        np.testing.assert_allclose(small.weights[name], expected, rtol=1e-4, atol=1e-6)
    means = np.mean(np.reshape(small.losses, (10, accumulate)), axis=1)
    np.testing.assert_allclose(means, large.losses, rtol=1e-5)


def test_sum_is_mean_with_a_larger_rate() -> None:
    mean = verified("simplemlp", tg.Recipe(accumulate=4, optimizer=tg.SGD(lr=0.04)), 5)
    total = verified("simplemlp", tg.Recipe(accumulate=4, accum_mode="sum", optimizer=tg.SGD(lr=0.01)), 5)
    for name, expected in mean.weights.items():
        np.testing.assert_allclose(total.weights[name], expected, rtol=1e-4, atol=1e-6)


def test_leftover_mini_batches_are_added_to_the_next_update() -> None:
    """Three steps, an update, one step, an update: the accumulation is what the caller makes it."""
    compiled = tg.compile("simplemlp", tg.Recipe(accumulate=2, accum_mode="sum"), target="host")
    batches = samples.make_batches(compiled, None)
    with HostDevice() as device, device.load(compiled) as session:
        expected = {name: np.zeros_like(array) for name, array in session.parameters().items()}
        for index in range(3):
            session.step(*batches.batch(index))
            for name, gradient in _alone(compiled, batches.batch(index)).items():
                expected[name] = expected[name] + gradient
        for name, gradient in session.gradients().items():
            np.testing.assert_array_equal(gradient, expected[name])


def _alone(compiled: Compiled, batch: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of one mini-batch on the initial weights."""
    with HostDevice() as device, device.load(compiled) as session:
        session.step(*batch)
        return session.gradients()


# ---- BatchNorm


def normalised() -> onnx.ModelProto:
    """Conv, BatchNorm, ReLU, Gemm with statistics that are not trivial."""
    return model(
        [
            node("Conv", "x conv.weight", "c", "/conv", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c bn.weight bn.bias bn.mean bn.var", "n", "/bn", momentum=0.8, epsilon=1e-3),
            node("Relu", "n", "r", "/relu"),
            node("Flatten", "r", "f", "/flatten"),
            node("Gemm", "f fc.weight fc.bias", "y", "/fc", transB=1),
        ],
        [value("x", ["n", 2, 5, 5])],
        [value("y", ["n", 3])],
        {
            "conv.weight": weights(4, 2, 3, 3, seed=1) / 4,
            "bn.weight": 1 + weights(4, seed=2) / 4,
            "bn.bias": weights(4, seed=3) / 4,
            "bn.mean": weights(4, seed=4) / 8,
            "bn.var": 1 + np.abs(weights(4, seed=5)),
            "fc.weight": weights(3, 100, seed=6) / 10,
            "fc.bias": weights(3, seed=7) / 10,
        },
    )


@pytest.mark.parametrize("policy", ["frozen", "train", "fold"])
@pytest.mark.parametrize("batch", [1, 4])
def test_batchnorm_policies(policy: str, batch: int) -> None:
    run = verified(normalised(), tg.Recipe(batch=batch, batchnorm=policy), 10)
    assert run.verdict is not None
    checked = [check.name for check in run.verdict.tensors if check.kind == "statistic"]
    assert checked == (["bn.mean", "bn.var"] if policy == "train" else [])


def test_frozen_statistics_can_be_read() -> None:
    proto = normalised()
    initial = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    with HostDevice() as device, device.load(tg.compile(proto, tg.Recipe(batch=4), target="host")) as session:
        found = session.statistics()
    assert set(found) == {"bn.mean", "bn.var"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, initial[name])


def test_batchnorm_train_is_a_torch_module_in_training_mode() -> None:
    """Against a module written by hand, without any of our reference code; running statistics included."""
    proto = normalised()
    initial = {tensor.name: onnx.numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer}
    bn = torch.nn.BatchNorm2d(4, eps=1e-3, momentum=0.2).double()  # PyTorch's momentum is one minus ONNX's
    conv, fc = torch.nn.Conv2d(2, 4, 3, padding=1, bias=False).double(), torch.nn.Linear(100, 3).double()
    for target, name in (
        (conv.weight, "conv.weight"), (bn.weight, "bn.weight"), (bn.bias, "bn.bias"), (bn.running_mean, "bn.mean"),
        (bn.running_var, "bn.var"), (fc.weight, "fc.weight"), (fc.bias, "fc.bias"),
    ):  # fmt: skip
        target.data.copy_(torch.tensor(initial[name]))
    module = torch.nn.Sequential(conv, bn, torch.nn.ReLU(), torch.nn.Flatten(), fc).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compiled = tg.compile(proto, tg.Recipe(batch=4, batchnorm="train", optimizer=tg.SGD(lr=0.1)), target="host")
    random = np.random.default_rng(0)
    with HostDevice() as device, device.load(compiled) as session:
        for _ in range(5):
            x = random.standard_normal((4, 2, 5, 5)).astype(np.float32)
            y = random.integers(0, 3, 4)
            loss = torch.nn.functional.cross_entropy(module(torch.tensor(x).double()), torch.tensor(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert session.step(x, y) == pytest.approx(loss.item(), rel=1e-4)
            session.update()
        got = {**session.parameters(), **session.statistics()}
        module.eval()
        with torch.no_grad():
            logits = module(torch.tensor(x).double()).numpy()
        np.testing.assert_allclose(session.infer(x), logits, rtol=1e-3, atol=1e-4)
    for name, tensor in (
        ("bn.mean", bn.running_mean), ("bn.var", bn.running_var), ("bn.weight", bn.weight), ("bn.bias", bn.bias),
        ("conv.weight", conv.weight), ("fc.weight", fc.weight), ("fc.bias", fc.bias),
    ):  # fmt: skip
        np.testing.assert_allclose(got[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(got[name] - initial[name]).max() > 1e-5, f"{name} did not move"


def test_shared_statistics_are_updated_twice() -> None:
    """As by a BatchNorm module that is called twice in a forward pass."""
    proto = model(
        [
            node("Conv", "x k", "c", "/conv"),
            node("BatchNormalization", "c scale bias mean var", "n", "/bn"),
            node("BatchNormalization", "n scale bias mean var", "y", "/bn_1"),
        ],
        [value("x", ["n", 1, 4, 4])],
        [value("y", ["n", 2, 2, 2])],
        {"k": weights(2, 1, 3, 3), "scale": weights(2), "bias": weights(2), "mean": weights(2)}
        | {"var": np.ones(2, np.float32)},
    )
    run = verified(proto, tg.Recipe(batch=4, batchnorm="train"), 5)
    assert run.verdict is not None
    assert [check.name for check in run.verdict.tensors if check.kind == "statistic"] == ["mean", "var"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["train", "fold"])
def test_batchnorm_of_a_zoo_model(policy: str) -> None:
    verified("dscnn", tg.Recipe(batch=4, batchnorm=policy), 3)


# ---- determinism


def test_the_same_run_twice_gives_the_same_bits() -> None:
    recipe = tg.Recipe(batch=2, accumulate=2, optimizer=tg.Adam())
    first, second = (verified("autoencoder_tiny", recipe, 5) for _ in range(2))
    assert first.losses == second.losses and first.weights_sha256 == second.weights_sha256


def test_a_model_with_outputs_that_the_loss_does_not_see() -> None:
    proto = model(
        [node("Gemm", "x w", "h", "one"), node("Gemm", "h v", "y", "two"), node("Gemm", "h u", "z", "three")],
        [value("x", ["n", 4])],
        [value("y", ["n", 3]), value("z", ["n", 2])],
        {"w": weights(4, 5), "v": weights(5, 3), "u": weights(5, 2)},
    )
    compiled = tg.compile(proto, tg.Recipe(), target="host")
    with HostDevice() as device, device.load(compiled) as session:
        x = np.ones((1, 4), np.float32)
        y, z = session.run("infer", [x])
        assert y.shape == (1, 3) and z.shape == (1, 2)
        before = session.step(x, [1])
        session.update()
        assert session.step(x, [1]) < before
    verified(proto, tg.Recipe(), 3)
