"""What PyTorch's gradient has that ONNX cannot say is taken as PyTorch means it, or refused: never another model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import tilegrad as tg  # noqa: E402
from tilegrad.errors import UserError  # noqa: E402


class Two(nn.Module):
    """Two layers, with something between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.level = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("seen", torch.zeros(()))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self, x)) * self.level


def without_gradient(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return self.first(x)


def counted(self: Any, x: Tensor) -> Tensor:
    self.seen.add_(1)
    return self.first(x) * self.seen


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def loaded(between: Callable[[Any, Tensor], Tensor], **options: Any) -> Any:
    torch.manual_seed(2)
    return tg.load(Two(between), example=torch.randn(2, 6), **options)


def compiled(model: Any, **recipe: Any) -> Any:
    return tg.compile(model, tg.Recipe(loss="mse", batch=2, **recipe), target="host")


@pytest.mark.parametrize("between", [without_gradient, lambda self, x: self.first(x).detach()])
def test_what_no_gradient_reaches_does_not_train(between: Callable[[Any, Tensor], Tensor]) -> None:
    model = loaded(between)
    assert {name for name, info in model.parameters.items() if info.is_frozen} == {"first.weight", "first.bias", "seen"}
    assert "no gradient reaches" in model.parameters["first.weight"].reason
    assert any("'first.bias' gets no gradient in PyTorch" in note for note in model.notes)
    with tg.open_device("host") as device:
        run = tg.train(compiled(model), device, steps=5)
    assert set(run.weights) == {"second.weight", "second.bias", "level"}
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()


PARTLY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "detached branch": lambda self, x: self.first(x) + self.first(x).tanh().detach(),
    "straight through": lambda self, x: self.first(x) + (self.first(x).round() - self.first(x)).detach(),
}


@pytest.mark.parametrize("name", PARTLY)
def test_a_part_of_a_gradient_that_is_kept_back_is_refused(name: str) -> None:
    model = loaded(PARTLY[name])
    with pytest.raises(UserError, match="keeps a part of the gradient") as caught:
        compiled(model)
    assert caught.value.got is not None and "detach() in 'Two'; it changes first.weight" in caught.value.got
    others = compiled(model, train="names:second.*").program.trainable
    assert {tensor.name for tensor in others} == {"second.weight", "second.bias"}


def test_a_detached_value_that_changes_no_gradient_is_taken() -> None:
    """A softmax is the same whatever is subtracted from all it sees."""
    model = loaded(lambda self, x: (self.first(x) - self.first(x).amax(1, keepdim=True).detach()).softmax(1))
    with tg.open_device("host") as device:
        run = tg.train(compiled(model), device, steps=5)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()
    assert "first.weight" in run.weights


class Tokens(nn.Module):
    """A table that is looked up, and its own head: that trains the row of the padding, too."""

    def __init__(self, look_up: Callable[[Any, Tensor], Tensor], **options: Any) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(9, 4, **options), nn.Linear(4, 4)
        self.look_up = look_up

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.body(self.look_up(self, x))).mean(1), self.table.weight)


LOOKED_UP: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "once": lambda self, x: self.table(x),
    "twice": lambda self, x: self.table(x) + self.table(x.flip(1)),
}


def tokens(look_up: Callable[[Any, Tensor], Tensor], *, exporter: str | None = None, **options: Any) -> Any:
    torch.manual_seed(3)
    example = torch.tensor([[1, 2, 3], [3, 4, 5]])  # no padding: what is found does not hang on the example
    return tg.load(Tokens(look_up, **options), example=example, exporter=exporter)


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("name", LOOKED_UP)
def test_padding_is_looked_up_and_not_trained(name: str, row: int, exporter: str) -> None:
    """Judged by PyTorch: the row's gradient is what comes from elsewhere."""
    model = tokens(LOOKED_UP[name], exporter=exporter, padding_idx=row)
    row %= 9
    x = np.array([[row, row, 1], [2, row, 3]], np.int64)
    target = np.random.default_rng(0).standard_normal((2, 9)).astype(np.float32)
    reference = model.module.module
    torch.nn.functional.mse_loss(reference(torch.tensor(x)), torch.tensor(target)).backward()
    expected = reference.table.weight.grad.numpy()
    with tg.open_device("host") as device, device.load(compiled(model)) as session:
        session.step(x, target)
        np.testing.assert_allclose(session.gradients()["table.weight"], expected, rtol=1e-4, atol=1e-6)
    reference.zero_grad()
    with tg.open_device("host") as device:
        run = tg.train(compiled(model, optimizer=tg.Adam(0.01)), device, steps=20)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()


def test_padding_alone_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Embedding(9, 4, padding_idx=2), nn.Flatten(), nn.Linear(8, 3))
    nn.init.ones_(module[0].weight)
    model = tg.load(module, example=torch.tensor([[1, 2], [3, 4]]))
    with tg.open_device("host") as device:
        run = tg.train(compiled(model, optimizer=tg.SGD(0.1)), device, steps=9)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()
    assert (run.weights["0.weight"][2] == 1.0).all() and (run.weights["0.weight"] != 1.0).any()


class Scaled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2.0


def scaled() -> nn.Embedding:
    return nn.utils.parametrize.register_parametrization(nn.Embedding(9, 4, padding_idx=0), "weight", Scaled())


APART: dict[str, tuple[Callable[[], Any], str]] = {
    "by frequency": (lambda: tokens(LOOKED_UP["once"], scale_grad_by_freq=True), "scale_grad_by_freq in 'table'"),
    "indexed, too": (
        lambda: tokens(lambda self, x: self.table(x) + self.table.weight[x], padding_idx=0),
        "padding_idx of 'table.weight'",
    ),
    "two paddings": (
        lambda: tokens(lambda self, x: self.table(x) + nn.functional.embedding(x, self.table.weight), padding_idx=0),
        "padding_idx in 'table'",
    ),
    "computed": (
        lambda: tg.load(nn.Sequential(scaled(), nn.Flatten()), example=torch.tensor([[1, 2], [3, 4]])),
        "padding_idx in '0'",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_embeddings_whose_rows_are_treated_apart_are_refused(name: str) -> None:
    """Whether the example has such a token or not."""
    load, got = APART[name]
    model = load()
    with pytest.raises(UserError, match="keeps a part") as caught:
        compiled(model)
    table = next(name for name in model.parameters if name.endswith(("table.weight", "original")))
    assert caught.value.got == f"{got}; it changes {table}"


@pytest.mark.parametrize(
    ("module", "example", "changed"),
    [
        (Two(counted), torch.randn(2, 6), "seen"),
        (nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten()), torch.tensor([[1], [2]]), "0.weight"),
    ],
)
def test_a_forward_that_changes_its_own_tensors_is_refused(module: nn.Module, example: Tensor, changed: str) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(UserError, match="changes tensors of the module") as caught:
        tg.load(module, example=example)
    assert caught.value.got == changed
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


DECIDING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "if": lambda self, x: self.first(x) if x.sum() > 0 else -self.first(x),
    "item()": lambda self, x: self.first(x) * x.max().item(),
    "float()": lambda self, x: self.first(x) * float(self.level),
    ".data": lambda self, x: self.first(x) + x.data,
    "numpy()": lambda self, x: self.first(x) * torch.from_numpy(np.abs(x.detach().numpy())),
}


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DECIDING)
def test_a_forward_that_decides_by_values_is_not_traced(
    name: str, exporter: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other exporter follows what it can."""
    try:
        model = loaded(DECIDING[name], exporter=exporter)
    except UserError as error:
        assert "\x1b" not in str(error)
        if exporter:
            assert error.got == f"{name} in 'Two'"
        assert capfd.readouterr() == ("", "")
        return
    assert exporter is None and model.module.exporter == "dynamo"
    with tg.open_device("host") as device:
        run = tg.train(compiled(model), device, steps=5)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()


def test_shapes_and_constants_may_decide() -> None:
    def between(self: Any, x: Tensor) -> Tensor:
        if x.shape[0] > 100 or float(self.seen) > 0:
            raise ValueError
        return self.first(x)

    model = loaded(between)
    assert model.module.exporter == "torchscript"


def test_a_backward_of_its_own_is_noted() -> None:
    model = loaded(lambda self, x: Rounded.apply(self.first(x)), exporter="dynamo")
    assert any("'Rounded' has a backward of its own" in note for note in model.notes)


def test_an_export_that_fails_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """TorchScript's cannot, and would print its graph past Python's streams; the other one can."""

    class Untracked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    model = tg.load(Untracked(), example=torch.randn(4, 6))
    assert model.module is not None and model.module.exporter == "dynamo"
    assert capfd.readouterr() == ("", "")
