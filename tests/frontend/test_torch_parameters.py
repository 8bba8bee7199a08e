"""A module's tensors are its own, one to one; in files the rule finds what PyTorch would train."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilegrad as tg  # noqa: E402
from tilegrad.errors import UserError  # noqa: E402
from tilegrad.frontend import ImportedModel  # noqa: E402


class Mel(nn.Module):
    """Input statistics, a filterbank, a DCT, then layers, the first without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(12))
        self.register_buffer("std", torch.rand(12) + 1)
        self.register_buffer("filterbank", torch.rand(12, 8))
        self.register_buffer("dct", torch.randn(8, 6))
        self.first = nn.Linear(6, 6, bias=False)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std
        return self.fc(torch.relu(self.first(torch.log((x * x) @ self.filterbank + 1e-3) @ self.dct)))


class GraphConvolution(nn.Module):
    """The same adjacency in both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.rand(5, 5))
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.adjacency @ self.fc2(torch.relu(self.adjacency @ self.fc1(x)))).mean(1)


class Swin(nn.Module):
    """Window attention as in Swin v2: a network over coordinates for the bias, a third of `qkv.bias` zeroed."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
        self.logit_scale = nn.Parameter(torch.rand(2, 1, 1) + 1)
        self.register_buffer("relative_coords_table", torch.randn(1, 7, 7, 2))
        self.register_buffer("relative_position_index", torch.randint(0, 49, (16,)))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias.clone()
        bias[4:8].zero_()
        qkv = functional.linear(x, self.qkv.weight, bias).reshape(x.shape[0], 4, 3, 2, 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
        attention = attention * torch.clamp(self.logit_scale, max=4.6).exp()
        table = self.cpb_mlp(self.relative_coords_table).view(-1, 2)
        position = 16 * torch.sigmoid(table[self.relative_position_index].view(4, 4, 2).permute(2, 0, 1))
        y = torch.softmax(attention + position.unsqueeze(0), -1) @ v
        return self.norm(y.transpose(1, 2).reshape(x.shape[0], 4, 4)).mean(1)


class RadialBasis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 4))
        self.width = nn.Parameter(torch.tensor(0.7))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.exp(((x[:, None] - self.centres) ** 2).sum(-1) * self.width))


class GeneralisedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.p = nn.Parameter(torch.ones(1) * 3)
        self.logit_scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.conv(x).clamp(min=1e-3).pow(self.p).mean((2, 3)).pow(1.0 / self.p)
        return pooled * self.logit_scale.exp()


MODULES = {
    "mel": (Mel, (12,)),
    "graph": (GraphConvolution, (5, 4)),
    "swin": (Swin, (4, 4)),
    "radial": (RadialBasis, (4,)),
    "generalised mean": (GeneralisedMean, (2, 5, 5)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """No two parameters are equal."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        kind, shape = MODULES[name]
        module = kind().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.01 * torch.rand(parameter.shape))
        return module, torch.rand(2, *shape)


def exported(module: nn.Module, x: Tensor, *, dynamo: bool, optimise: bool) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes: Any = ({0: torch.export.Dim("batch")},)
            program: Any = torch.onnx.export(
                module, (x,), dynamo=True, dynamic_shapes=shapes, optimize=optimise, verbose=False
            )
            return program.model_proto
        buffer: Any = io.BytesIO()
        torch.onnx.export(
            *(module, (x,), buffer),
            dynamo=False,
            opset_version=17,
            do_constant_folding=optimise,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
        return onnx.load_from_string(buffer.getvalue())


def parameters_of(model: ImportedModel) -> set[str]:
    return {name for name, info in model.parameters.items() if info.role == "parameter"}


def agrees(model: ImportedModel, module: nn.Module) -> None:
    """Every tensor that still has its name is what PyTorch says."""
    truth = {name for name, _ in module.named_parameters()}
    buffers = {name for name, _ in module.named_buffers()}
    for name, info in model.parameters.items():
        assert info.reason
        if name in truth:
            assert info.role == "parameter", (name, info.reason)
        if name in buffers:
            assert info.role != "parameter", (name, info.reason)


@pytest.mark.parametrize("optimise", [False, True], ids=["plain", "optimised"])
@pytest.mark.parametrize("name", MODULES)
def test_what_trains_in_a_torchscript_file(name: str, optimise: bool) -> None:
    module, x = build(name)
    model = tg.load(exported(module, x, dynamo=False, optimise=optimise))
    agrees(model, module)
    if not optimise:
        assert parameters_of(model) == {name for name, _ in module.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("optimise", [False, True], ids=["plain", "optimised"])
@pytest.mark.parametrize("name", MODULES)
def test_what_trains_in_a_dynamo_file(name: str, optimise: bool) -> None:
    module, x = build(name)
    model = tg.load(exported(module, x, dynamo=True, optimise=optimise))
    agrees(model, module)
    if not optimise:
        assert parameters_of(model) == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODULES)
def test_what_trains_in_a_module(name: str, exporter: str) -> None:
    """And it trains as the module does."""
    module, x = build(name)
    module.requires_grad_(True)
    model = tg.load(module, example=x, exporter=exporter)
    assert parameters_of(model) == {name for name, _ in module.named_parameters()}
    compiled = tg.compile(model, tg.Recipe(batch=2, loss="mse"), target="host")
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=5)
    assert set(run.weights) == parameters_of(model)
    assert run.verdict is not None and run.verdict.verified, run.verdict.failures()


# A module is not touched


class Random(nn.Module):
    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fc, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.fc.bias.requires_grad_(False)
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("not today")
        return self.drop(self.bn(self.fc(x)))


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_stays_as_it_was(fails: bool) -> None:
    module = Random(fails=fails)
    module.bn.eval()
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    modes = [part.training for part in module.modules()]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    x = torch.ones(2, 4)
    try:
        tg.load(module, example=x)
        assert not fails
    except UserError as error:
        assert fails and "not today" in str(error)
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(x, torch.ones(2, 4))
    assert [part.training for part in module.modules()] == modes
    after = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in after.items():
        assert tensor is tensors[name] and torch.equal(tensor, values[name]) and tensor.grad is None
    assert not module.fc.bias.requires_grad and module.fc.weight.requires_grad
    assert not module._forward_hooks and not module._forward_pre_hooks


# Ties, copies, frozen and unused tensors


class Equal(nn.Module):
    """Fresh: both norms are ones and zeros, and so are the BatchNorm's scale, shift and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.fc1, self.fc2, self.bn = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.fc2(self.norm2(torch.relu(self.fc1(self.norm1(x))))))


def test_a_fresh_modules_equal_parameters_are_not_one() -> None:
    module = Equal()
    model = tg.load(module, example=torch.randn(2, 4))
    assert parameters_of(model) == {name for name, _ in module.named_parameters()}
    assert {n for n, role in model.roles.items() if role == "statistic"} == {"bn.running_mean", "bn.running_var"}
    assert model.notes == ()


def test_a_fresh_files_copies_are_not_tied() -> None:
    """The file has one initializer of ones and one of zeros, and Identities that are named after the others."""
    module = Equal().eval()
    proto = exported(module, torch.randn(2, 4), dynamo=False, optimise=False)
    assert any(node.op_type == "Identity" for node in proto.graph.node)
    model = tg.load(proto)
    assert parameters_of(model) == {name for name, _ in module.named_parameters()}
    assert any("'norm2.weight' is an Identity of initializer 'norm1.weight'" in note for note in model.notes)
    with tg.open_device("host") as device:
        run = tg.train(tg.compile(model, tg.Recipe(batch=2, loss="mse"), target="host"), device, steps=3)
    assert run.verdict is not None and run.verdict.verified
    assert not np.array_equal(run.weights["norm1.weight"], run.weights["norm2.weight"])


def test_one_initializer_that_two_nodes_read_is_tied() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    model = tg.load(module, example=torch.randn(2, 4))
    assert parameters_of(model) == {"0.weight", "0.bias", "1.bias"}
    assert model.notes == ("'1.weight' and '0.weight' are one tensor in PyTorch: tied",)


def test_two_parameters_over_one_memory_are_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = nn.Parameter(module[0].weight.data)
    with pytest.raises(UserError, match=r"'0\.weight' and '1\.weight' are two, but share their memory"):
        tg.load(module, example=torch.randn(2, 4))


def test_frozen_and_unused_parameters() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    module.register_parameter("spare", nn.Parameter(torch.ones(3)))
    model = tg.load(module, example=torch.randn(2, 4))
    assert parameters_of(model) == {"spare", "0.weight", "0.bias", "1.weight", "1.bias"}
    compiled = tg.compile(model, tg.Recipe(batch=2), target="host")
    assert [tensor.name for tensor in compiled.program.trainable] == ["1.weight", "1.bias"]
    assert "frozen in the module" in model.parameters["0.weight"].reason
    assert "no gradient, as in PyTorch" in model.parameters["spare"].reason
    with pytest.raises(UserError, match=r"'0\.\*' matches nothing that can train"):
        tg.compile(model, tg.Recipe(batch=2, train="names:0.*"), target="host")


def test_the_module_goes_with_the_model_to_another_batch() -> None:
    module = Equal()
    module.fc1.requires_grad_(False)
    model = tg.load(module, example=torch.randn(2, 4)).with_batch(5)
    assert model.batch == 5 and model.module is not None and model.parameters["fc1.weight"].is_frozen
    with torch.no_grad():
        module.fc1.weight.zero_()  # what was loaded stays what it was
    assert model.module.module.fc1.weight.abs().sum() > 0


def test_several_inputs() -> None:
    module = nn.Bilinear(3, 4, 2)
    try:
        model = tg.load(module, example=(torch.randn(2, 3), torch.randn(2, 4)))
    except UserError as error:
        assert "does not have" in str(error)  # trilinear products; the names were found before
    else:
        assert parameters_of(model) == {"weight", "bias"}

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.left(a) + self.right(b)

    summed = tg.load(Sum(), example=(torch.randn(2, 3), torch.randn(2, 4)))
    assert len(summed.graph.inputs) == 2 and len(parameters_of(summed)) == 4


@pytest.mark.parametrize("exporter", ["onnx", ""])
def test_an_exporter_that_is_none(exporter: str) -> None:
    with pytest.raises(UserError, match="no exporter"):
        tg.load(nn.Linear(2, 2), example=torch.randn(1, 2), exporter=exporter)


def test_a_scalar_parameter_stays_a_scalar() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * self.scale

    model = tg.load(Scaled(), example=torch.randn(1, 3))
    assert model.parameters["scale"].type.shape == () and "scale" in parameters_of(model)


def test_an_old_style_weight_norm() -> None:
    """Its weight is a computed tensor, which PyTorch refuses to copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    module(torch.ones(1, 4))
    model = tg.load(module, example=torch.randn(1, 4))
    assert parameters_of(model) == {name for name, _ in module.named_parameters()}
    with tg.open_device("host") as device:
        run = tg.train(tg.compile(model, tg.Recipe(), target="host"), device, steps=3)
    assert run.verdict is not None and run.verdict.verified and "this module" in run.verdict.reference


def test_copying_is_not_loading_another_module() -> None:
    """A deep copy trains the same bits."""
    module = Equal()
    hashes = set()
    for each in (module, copy.deepcopy(module)):
        with tg.open_device("host") as device:
            compiled = tg.compile(tg.load(each, example=torch.randn(2, 4)), tg.Recipe(batch=2), target="host")
            hashes.add(tg.train(compiled, device, steps=2, verify=False).weights_sha256)
    assert len(hashes) == 1
