"""Small modules of torch.nn's layers, as they come: fresh weights are equal, and exporters merge what is equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class Residual(nn.Module):
    """Two equal convolutions and two equal BatchNorms around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.head(torch.relu(x + y).mean((2, 3)))


class Tied(nn.Module):
    """An autoencoder whose halves are one tensor, and a language model's head that is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(x)))).mean(1)


class PartlyFrozen(nn.Module):
    """A frozen layer, a frozen norm, and one that the output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.LayerNorm(6)
        self.norm.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.relu(self.body(x))))


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return (x + self.attention(y, y, y, need_weights=False)[0]).mean(1)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :2], x).mean(1)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5))
        self.channels = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norm2(x))).mean(1)


class Numbers(nn.Module):
    """Learned scalars: a temperature, a GeM exponent, centres and a width of radial basis functions."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.exponent = nn.Parameter(torch.ones(1) * 3)
        self.centres = nn.Parameter(torch.randn(4, 6))
        self.width = nn.Parameter(torch.tensor(0.3))
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x).sigmoid()
        pooled = (x.clamp(min=1e-3) ** self.exponent).mean(1, keepdim=True) ** (1.0 / self.exponent)
        near = torch.exp(-self.width * ((x[:, None] - self.centres) ** 2).sum(-1))
        return torch.cat([near, pooled], 1) / self.temperature


class Cell(nn.Module):
    """A recurrent cell, unrolled."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.dropout(torch.relu(self.fc1(x)), 0.3, self.training))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.body(x))
        return self.first(y), self.second(y)


class Listed(nn.Module):
    """Equal blocks in a ModuleList, and parameters in a ParameterList."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.SiLU()) for _ in range(3))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(6)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * block(x)
        return x


class CalledLinear(nn.Module):
    """Bilinear, written as PyTorch documents it, with a Parameter used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(6, 5) * 0.4)
        self.right = nn.Parameter(torch.randn(6, 5) * 0.4)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.left) * (x @ self.right) + self.bias


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    batchnorm: str = "frozen"
    drops: bool = False
    exporters: tuple[str, ...] = ("torchscript", "dynamo")


def _pooled(*layers: nn.Module, channels: int = 4) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


CASES: dict[str, Case] = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,)),
    "linear without bias": Case(lambda: nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False)), (6,)),
    "linear itself": Case(lambda: nn.Linear(6, 3), (6,)),
    "linear over tokens": Case(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)), (4, 6)),
    "conv1d": Case(lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 3, 3), nn.Flatten()), (2, 8)),
    "conv2d": Case(lambda: _pooled(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1)), (2, 8, 8)),
    "depthwise": Case(
        lambda: _pooled(
            *(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU6(), nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Hardswish()),
            *(nn.Conv2d(4, 4, 3, dilation=1, padding=1, bias=False), nn.Hardsigmoid()),
        ),
        (2, 9, 9),
    ),
    "transposed1d": Case(lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3, stride=2), nn.ELU(), nn.Flatten()), (2, 5)),
    "transposed2d": Case(lambda: _pooled(nn.ConvTranspose2d(2, 4, 2, stride=2), nn.LeakyReLU(0.1)), (2, 4, 4)),
    "batchnorm1d": Case(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
    "batchnorm1d, train": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (6,), batchnorm="train"
    ),
    "batchnorm2d": Case(lambda: _pooled(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 6, 6)),
    "batchnorm2d, train": Case(
        lambda: _pooled(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 6, 6), batchnorm="train"
    ),
    "residual": Case(Residual, (4, 5, 5)),
    "residual, train": Case(Residual, (4, 5, 5), batchnorm="train"),
    "layernorm": Case(
        lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 3)), (6,)
    ),
    "groupnorm": Case(
        lambda: _pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.GroupNorm(2, 4), nn.ReLU()), (2, 6, 6)
    ),
    "instancenorm": Case(
        lambda: _pooled(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 4, 1)),
        (2, 6, 6),
    ),
    "rmsnorm": Case(
        lambda: nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 6), nn.RMSNorm(6), nn.Linear(6, 3)),
        (6,),
        exporters=("dynamo",),
    ),
    "embedding": Case(
        lambda: nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Flatten(), nn.Linear(24, 3)), (4,), tokens=9
    ),
    "prelu": Case(lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 6), nn.PReLU(6)), (6,)),
    "activations": Case(
        lambda: nn.Sequential(
            *(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 6)),
            *(nn.Tanh(), nn.Linear(6, 6), nn.Mish(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.Hardtanh()),
            *(nn.Linear(6, 3), nn.LogSoftmax(1)),
        ),
        (6,),
    ),
    "attention": Case(Attention, (4, 8)),
    "encoder": Case(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), nn.Flatten()), (4, 8)
    ),
    "encoder, norm first": Case(
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation="gelu", batch_first=True, norm_first=True),
            nn.Flatten(),
        ),
        (4, 8),
    ),
    "decoder": Case(Decoder, (4, 8)),
    "mixer": Case(Mixer, (5, 8)),
    "pixel shuffle": Case(lambda: _pooled(nn.Conv2d(2, 8, 3), nn.PixelShuffle(2), channels=2), (2, 5, 5)),
    "gated": Case(lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU(), nn.Linear(4, 3), nn.Softmax(1)), (6,)),
    "weight norm": Case(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3)), (6,)
    ),
    "recurrent cell": Case(lambda: Cell(nn.RNNCell(5, 5)), (3, 5)),
    "gated cell": Case(lambda: Cell(nn.GRUCell(5, 5)), (3, 5)),
    "tied": Case(Tied, (4,), tokens=7),
    "partly frozen": Case(PartlyFrozen, (6,)),
    "numbers": Case(Numbers, (6,)),
    "two outputs": Case(TwoOutputs, (6,)),
    "listed": Case(Listed, (6,)),
    "plain parameters": Case(CalledLinear, (6,)),
    "dropout": Case(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.2)),
        (6,),
        drops=True,
    ),
    "functional dropout": Case(FunctionalDropout, (6,), drops=True),
    "attention dropout": Case(lambda: Attention(dropout=0.3), (4, 8), drops=True),
}


def example(name: str, batch: int = 2) -> Tensor:
    case = CASES[name]
    generator = torch.Generator().manual_seed(0)
    if case.tokens:
        return torch.randint(0, case.tokens, (batch, *case.shape), generator=generator)
    return torch.randn((batch, *case.shape), generator=generator)


def build(name: str, *, trained: bool) -> nn.Module:
    """Fresh, as its constructor leaves it, or after a few steps of PyTorch's own."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = CASES[name].build()
        if trained:
            optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05)
            for seed in range(4):
                torch.manual_seed(seed)
                x = example(name, 4)
                x = x if CASES[name].tokens else x + 0.3 * torch.randn(x.shape)
                result = module(x)
                loss = (result[0] if isinstance(result, tuple) else result).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return module
