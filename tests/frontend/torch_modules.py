"""Small PyTorch modules whose exports have everything that real ones have. No two parameters are equal: exporters
merge initializers of equal content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A pre-norm transformer block with class token, positional embedding, LayerScale and sequence pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.zeros(1, 8, 16))
        self.norm1 = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.layer_scale = nn.Parameter(torch.ones(16))
        self.norm2 = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.pool = nn.Linear(16, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.position[:, : x.shape[1]]
        y = self.norm1(x)
        x = x + self.layer_scale * self.attention(y, y, y, need_weights=False)[0]
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        weight = torch.softmax(self.pool(x), dim=1)
        return self.head(torch.matmul(weight.transpose(-1, -2), x).squeeze(-2))


class Causal(nn.Module):
    """Scaled dot product attention with a mask, q, k, v from one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width)).mean(1)


class Chunked(nn.Module):
    """Split, stack, slices with steps, arithmetic with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.gate(x).chunk(3, dim=-1)
        y = torch.sigmoid(a) * torch.tanh(b) + 0.5 * c.clamp(-1, 1)
        return torch.stack([y[..., ::2], 1 - y[..., 1::2]], dim=1).flatten(1)


class Tokens(nn.Module):
    """Embeddings of tokens and of positions, a LayerNorm without affine part, mean pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.positions = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.words(x) + self.positions(torch.arange(x.shape[1]))).mean(1))


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    tokens: int = 0  # vocabulary, for integer inputs
    legacy_fails: bool = False  # PyTorch's own legacy exporter raises


CASES: dict[str, Case] = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (8,)),
    "cnn": Case(
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
        ),
        (3, 14, 14),
    ),
    "depthwise": Case(
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Hardswish()),
            *(nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8)),
            *(nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            *(nn.Dropout(0.2), nn.Linear(8, 4)),
        ),
        (3, 9, 9),
    ),
    "block": Case(Block, (5, 16)),
    "causal": Case(Causal, (5, 16)),
    "chunked": Case(Chunked, (8,)),
    "tokens": Case(Tokens, (7,), tokens=20),
    "gelu": Case(
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)
        ),
        (8,),
    ),
    "encoder": Case(
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu"), (5, 16), legacy_fails=True
    ),
    "deconvolution": Case(
        lambda: nn.Sequential(
            *(nn.Conv1d(2, 4, 3), nn.ELU(), nn.ConvTranspose1d(4, 2, 3, stride=2), nn.Softplus(), nn.LeakyReLU(0.1)),
            *(nn.Hardsigmoid(), nn.Flatten(), nn.LogSoftmax(-1)),
        ),
        (2, 9),
    ),
}


def build(name: str) -> nn.Module:
    """In evaluation mode, every parameter and statistic drawn anew."""
    generator = torch.Generator().manual_seed(1)
    module = CASES[name].build().eval()
    with torch.no_grad():
        for tensor in (*module.parameters(), *(b for n, b in module.named_buffers() if "running" in n)):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + (0.5 if tensor.dim() == 1 else -0.25))
    return module


def example(name: str, batch: int, seed: int = 0) -> Tensor:
    case = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    if case.tokens:
        return torch.randint(0, case.tokens, (batch, *case.input_shape), generator=generator)
    return torch.randn((batch, *case.input_shape), generator=generator)
