"""The PyTorch reference against the plainest possible use of PyTorch: an nn.Module trained by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.verify.conftest import TRAINABLE, convolution_model, make_batches, make_model
from tilegrad import optimizers
from tilegrad.errors import UserError
from tilegrad.optimizers import SGD
from tilegrad.verify import torch_reference
from tilegrad.verify.reference import ReferenceRecipe

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilegrad.verify.torch_executor import TorchModel, UnsupportedByReferenceError, one_thread, vector_jacobian  # noqa: E402
from tilegrad.verify.torch_ops import Mode  # noqa: E402

NAMES = {"conv": "0", "bn": "1", "fc": "5"}


def module_of(model: onnx.ModelProto) -> nn.Sequential:
    """The same network written in PyTorch, with the model's own weights."""
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Sequential(nn.ConstantPad2d((0, 1, 0, 1), -torch.inf), nn.MaxPool2d(3, 2)),
        nn.Flatten(),
        nn.Linear(54, 5),
    ).double()
    held = {proto.name: torch.tensor(onnx.numpy_helper.to_array(proto)).double() for proto in model.graph.initializer}
    renamed = {"scale": "weight", "mean": "running_mean", "variance": "running_var"}
    state = {
        f"{NAMES[name.split('.')[0]]}.{renamed.get(name.split('.')[1], name.split('.')[1])}": held[name]
        for name in held
    }
    net.load_state_dict({**net.state_dict(), **state})
    return net


def parameters_of(net: nn.Module) -> dict[str, Any]:
    renamed = {"1.weight": "bn.scale", "1.bias": "bn.bias"}
    layers = {layer: name for name, layer in NAMES.items()}
    return {
        renamed.get(name, f"{layers[name.split('.')[0]]}.{name.split('.')[1]}"): tensor
        for name, tensor in net.named_parameters()
    }


OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({"weight_decay": 0.01}, lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01)),
    "momentum": ({"momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8)),
    "adam": (
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6},
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.9), eps=1e-6),
    ),
    "adamw": ({"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1)),
}


@pytest.mark.parametrize("policy", ["frozen", "train"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize(("accumulate", "mode"), [(1, "mean"), (2, "mean"), (2, "sum")])
def test_equals_a_module_trained_by_hand(optimizer: Any, policy: Any, accumulate: int, mode: Any) -> None:
    model, batches = convolution_model(), make_batches(6)
    options, make = OPTIMIZERS[optimizer]
    recipe = ReferenceRecipe(
        optimizer=optimizers.OPTIMIZERS[optimizer](lr=0.05, **options),
        accumulate=accumulate,
        accum_mode=mode,
        batchnorm=policy,
    )
    run = torch_reference.run(model, recipe, batches, TRAINABLE, snapshots=(1,))

    net = module_of(model)
    net.train(policy == "train")
    tensors = parameters_of(net)
    stepper = make([tensors[name] for name in TRAINABLE])
    losses = []
    for index, (x, y) in enumerate(batches):
        loss = nn.functional.cross_entropy(net(torch.tensor(x).double()), torch.tensor(y))
        (loss / accumulate if mode == "mean" else loss).backward()
        losses.append(float(loss.detach()))
        if index == 0:
            first = {name: tensors[name].grad.clone().numpy() for name in TRAINABLE}
        if (index + 1) % accumulate == 0:
            stepper.step()
            stepper.zero_grad()
    np.testing.assert_allclose(run.losses, losses, rtol=1e-6)
    for name in TRAINABLE:
        np.testing.assert_allclose(run.first_gradients[name], first[name], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(run.weights[name], tensors[name].detach().numpy(), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(run.statistics["bn.mean"], net[1].running_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(run.statistics["bn.variance"], net[1].running_var.numpy(), rtol=1e-6)
    net.eval()
    np.testing.assert_allclose(
        run.logits, net(torch.tensor(batches[0][0]).double()).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    assert set(run.snapshots) == {1}


@pytest.mark.parametrize(
    ("loss", "module"), [("mse", nn.MSELoss()), ("l1", nn.L1Loss()), ("bce_with_logits", nn.BCEWithLogitsLoss())]
)
def test_losses_mean_over_all_elements(loss: Any, module: Any) -> None:
    model, random = convolution_model(), np.random.default_rng(3)
    x, y = make_batches(1)[0][0], random.random((2, 5)).astype(np.float32)
    run = torch_reference.run(model, ReferenceRecipe(loss=loss), [(x, y)], TRAINABLE)
    net = module_of(model).eval()
    expected = module(net(torch.tensor(x).double()), torch.tensor(y).double())
    assert run.losses[0] == pytest.approx(float(expected.detach()), rel=1e-12)


def test_pair_measures_float32_against_float64() -> None:
    model, batches = convolution_model(), make_batches(5)
    pair = torch_reference.run_pair(model, ReferenceRecipe(), batches, TRAINABLE, snapshots=(2, 5))
    assert pair.name.startswith("PyTorch 2.") and pair.name.endswith("float64")
    assert list(pair.loss_differences) == sorted(pair.loss_differences)
    assert all(0 < difference < 1e-5 for difference in pair.gradient_differences.values())
    assert set(pair.weight_differences_after) == {2, 5}
    assert pair.weight_differences_after[5] == pair.weight_differences
    assert pair.single.weights["fc.weight"].dtype == np.float32
    assert pair.as_reference().statistics == {}


def test_frozen_tensors_stay() -> None:
    model, batches = convolution_model(), make_batches(3)
    run = torch_reference.run(model, ReferenceRecipe(), batches, ["fc.bias"])
    assert list(run.weights) == list(run.first_gradients) == ["fc.bias"]


def test_dropout_takes_the_mask_it_is_given() -> None:
    nodes = [
        helper.make_node("Dropout", ["x", "ratio"], ["d"], name="drop"),
        helper.make_node("Gemm", ["d", "w"], ["y"]),
    ]
    weights = {"ratio": np.array(0.25, np.float32), "w": np.eye(4, dtype=np.float32)}
    model = make_model(nodes, {"x": (1, 4)}, ["y"], weights)
    asked: list[Any] = []

    def mask(node: str, shape: tuple[int, ...], minibatch: int) -> Any:
        asked.append((node, shape, minibatch))
        return np.array([[1, 0, 1, 1]])

    x = np.ones((1, 4), np.float32)
    recipe = ReferenceRecipe(loss="mse", optimizer=SGD(lr=0.0))
    run = torch_reference.run(model, recipe, [(x, np.zeros((1, 4)))] * 2, ["w"], dropout_mask=mask)
    assert asked == [("drop", (1, 4), 0), ("drop", (1, 4), 1)]
    assert run.losses[0] == pytest.approx(3 / 4 * (1 / 0.75) ** 2)
    np.testing.assert_array_equal(run.logits, x)


def test_every_unsupported_operator_is_named_at_once() -> None:
    nodes = [
        helper.make_node("Hardmax", ["x"], ["h"], name="first"),
        helper.make_node("Det", ["h"], ["y"], name="second"),
    ]
    with pytest.raises(UnsupportedByReferenceError, match=r"Det \(second\); Hardmax \(first\)"):
        TorchModel(make_model(nodes, {"x": (2, 2)}, ["y"], {}))


def test_wrong_shapes_name_the_node() -> None:
    model = make_model(
        [helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")],
        {"x": (1, 3)},
        ["y"],
        {"w": np.ones((4, 2), np.float32)},
    )
    with pytest.raises(UserError, match="node 'fc': PyTorch refuses Gemm"):
        torch_reference.run(model, ReferenceRecipe(), [(np.ones((1, 3), np.float32), np.array([0]))], ["w"])


def test_a_label_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="label is out of range"):
        torch_reference.run(
            convolution_model(), ReferenceRecipe(), [(make_batches(1)[0][0], np.array([0, 5]))], TRAINABLE
        )


def test_batch_statistics_of_one_value_are_refused() -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], name="bn")
    ones = np.ones(3, np.float32)
    model = make_model([node], {"x": (1, 3)}, ["y"], {name: ones.copy() for name in "sbmv"})
    with pytest.raises(UserError, match="more than one value per channel"):
        torch_reference.run(model, ReferenceRecipe(batchnorm="train"), [(ones[None], np.array([0]))], ["s"])


@pytest.mark.parametrize(
    ("op_type", "attributes", "shapes"),
    [
        (
            "Conv",
            {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": 2},
            [(2, 4, 7, 8), (6, 2, 3, 2), (6,)],
        ),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2]}, [(1, 2, 7), (3, 2, 4), (3,)]),
        (
            "ConvTranspose",
            {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
            [(1, 2, 3, 3), (2, 3, 3, 2), (3,)],
        ),
        (
            "AveragePool",
            {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 2], "ceil_mode": 1},
            [(1, 2, 6, 5)],
        ),
        ("LayerNormalization", {"axis": 1}, [(2, 3, 4), (3, 4), (3, 4)]),
        ("GroupNormalization", {"num_groups": 2}, [(2, 4, 3), (4,), (4,)]),
        ("Softmax", {"axis": 1}, [(2, 3, 4)]),
        ("Gelu", {"approximate": "tanh"}, [(3, 4)]),
        ("PRelu", {}, [(2, 3, 4), (3, 1)]),
        ("Div", {}, [(2, 3, 4), (3, 1)]),
    ],
)
def test_gradients_by_autograd_gradcheck(
    op_type: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    names = [f"in{index}" for index in range(len(shapes))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    model = make_model([node], dict(zip(names, shapes, strict=True)), ["y"], {}, opset=22)
    runner = TorchModel(model)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5 for shape in shapes]
    for tensor in inputs:
        tensor.requires_grad_(True)
    with one_thread():
        assert torch.autograd.gradcheck(
            lambda *tensors: runner.forward(dict(zip(names, tensors, strict=True)))["y"], inputs
        )


def test_vector_jacobian_of_inputs_and_initializers() -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (2, 3)}, ["y"], {"w": np.full(3, 2, np.float32)}
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs, gradients = vector_jacobian(model, {"x": x}, {"y": np.ones((2, 3))}, ["x", "w"], mode=Mode())
    np.testing.assert_array_equal(outputs["y"], 2 * x)
    np.testing.assert_array_equal(gradients["x"], np.full((2, 3), 2))
    np.testing.assert_array_equal(gradients["w"], x.sum(axis=0))


@pytest.mark.parametrize("dynamo", [False, True])
def test_what_the_exporters_emit(dynamo: bool, tmp_path: Any) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.qkv = nn.Linear(8, 24)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            scores = torch.softmax(q @ k.transpose(-2, -1) * 0.5, dim=-1)
            mixed = (scores @ v).transpose(1, 2).reshape(batch, tokens, width)
            return self.head(nn.functional.gelu(x + mixed).mean(dim=1))

    torch.manual_seed(0)
    net = Attention().eval()
    x, path = torch.randn(2, 5, 8), tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), str(path), dynamo=dynamo, verbose=False)
    model = onnx.load(path)
    names = {proto.name for proto in model.graph.initializer}
    trainable = [name for name, _ in net.named_parameters() if name in names]
    run = torch_reference.run(model, ReferenceRecipe(), [(x.numpy(), np.array([0, 2]))], trainable)
    loss = nn.functional.cross_entropy(net.double()(x.double()), torch.tensor([0, 2]))
    loss.backward()
    assert "head.weight" in trainable
    assert run.losses[0] == pytest.approx(float(loss.detach()), rel=1e-6)
    for name in trainable:
        expected = dict(net.named_parameters())[name].grad.numpy()
        np.testing.assert_allclose(run.first_gradients[name], expected, rtol=1e-4, atol=1e-7)
