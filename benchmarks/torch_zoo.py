"""The zoo as a PyTorch user would write it: modules with the layers' usual names, trained with torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad import zoo


class Dense(nn.Module):
    """Linear layers with ReLU between them, after BatchNorm where asked for."""

    def __init__(self, sizes: tuple[int, ...], *, relu: bool = True, norm: bool = False) -> None:
        super().__init__()
        self.depth, self.relu, self.norm = len(sizes) - 1, relu, norm
        for layer, (inputs, outputs) in enumerate(pairwise(sizes), 1):
            self.add_module(f"fc{layer}", nn.Linear(inputs, outputs))
            if norm and layer < self.depth:
                self.add_module(f"bn{layer}", nn.BatchNorm1d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(1, self.depth):
            x = self.get_submodule(f"fc{layer}")(x)
            x = self.get_submodule(f"bn{layer}")(x) if self.norm else x
            x = F.relu(x) if self.relu else x
        return torch.as_tensor(self.get_submodule(f"fc{self.depth}")(x))


class Separable(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.pointwise(F.relu(self.bn1(self.depthwise(x))))))


class SeparableNet(nn.Module):
    """DS-CNN and MobileNet: one convolution, separable blocks, average pool, classifier."""

    def __init__(self, conv1: nn.Conv2d, blocks: list[tuple[int, int, int]], classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.depth = conv1, nn.BatchNorm2d(conv1.out_channels), len(blocks)
        for block, sizes in enumerate(blocks, 1):
            self.add_module(f"block{block}", Separable(*sizes))
        self.fc = nn.Linear(blocks[-1][1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        for block in range(1, self.depth + 1):
            x = self.get_submodule(f"block{block}")(x)
        return torch.as_tensor(self.fc(x.mean((2, 3))))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + y)


class ResNet8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return torch.as_tensor(self.fc(x.mean((2, 3))))


class Adapter(nn.Module):
    """LoRA: rank 4, alpha 16."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(torch.empty(size, 4)), nn.Parameter(torch.empty(4, size))

    def forward(self, x: Tensor) -> Tensor:
        return 16 / 4 * (x @ self.lora_A @ self.lora_B)


class AdaptedLinear(nn.Linear):
    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.lora_A, self.lora_B = nn.Parameter(torch.empty(size, 4)), nn.Parameter(torch.empty(4, size))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 16 / 4 * (x @ self.lora_A @ self.lora_B)


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, lora: bool) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(size, 3 * size, bias=False)
        self.proj = AdaptedLinear(size) if lora else nn.Linear(size, size)
        for role in "qkv" if lora else "":
            self.add_module(role, Adapter(size))
        self.lora = lora

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        thirds = self.qkv(x).chunk(3, dim=-1)
        if self.lora:
            thirds = tuple(third + self.get_submodule(role)(x) for role, third in zip("qkv", thirds, strict=True))
        q, k, v = (third.reshape(batch, tokens, self.heads, size // self.heads).transpose(1, 2) for third in thirds)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return torch.as_tensor(self.proj(mixed))


class Mlp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fc2(F.gelu(self.fc1(x))))


class Block(nn.Module):
    def __init__(self, size: int, heads: int, lora: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(size), Attention(size, heads, lora)
        self.norm2, self.mlp = nn.LayerNorm(size), Mlp(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tokenizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.conv2 = nn.Conv2d(64, 128, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(conv(x)), 3, 2, 1)
        return x.flatten(2).transpose(1, 2)


class Cct(nn.Module):
    def __init__(self, lora: bool = False) -> None:
        super().__init__()
        self.tokenizer, self.positional_emb = Tokenizer(), nn.Parameter(torch.empty(1, 64, 128))
        self.blocks = nn.ModuleList(Block(128, 2, lora) for _ in range(2))
        self.norm, self.attention_pool, self.fc = nn.LayerNorm(128), nn.Linear(128, 1), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokenizer(x) + self.positional_emb
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        weights = torch.softmax(self.attention_pool(x), dim=1)
        return torch.as_tensor(self.fc((weights * x).sum(1)))


def _mobilenet() -> nn.Module:
    widths = (8, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)
    strides = [2 if block in (2, 4, 6, 12) else 1 for block in range(1, 14)]
    blocks = list(zip(widths, widths[1:], strides, strict=False))
    return SeparableNet(nn.Conv2d(3, 8, 3, 2, 1, bias=False), blocks, 2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "simplemlp": lambda: Dense((64, 8, 10), relu=False),
    "mlp": lambda: Dense((784, 128, 128, 10)),
    "autoencoder": lambda: Dense((640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640), norm=True),
    "autoencoder_tiny": lambda: Dense((128, 64, 32, 64, 64, 32, 64, 128)),
    "dscnn": lambda: SeparableNet(nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False), [(64, 64, 1)] * 4, 12),
    "resnet8": ResNet8,
    "mobilenetv1": _mobilenet,
    "cct": Cct,
    "cct_lora": lambda: Cct(lora=True),
}
# The zoo multiplies tokens by these from the right: stored as [in, out].
_STORED_IN_OUT = ("*.attn.qkv.weight", "*.attn.proj.weight", "*.mlp.fc?.weight", "attention_pool.weight")


def build(name: str, weights: dict[str, npt.NDArray[np.float32]]) -> nn.Module:
    """The model with the zoo's own weights. BatchNorm uses its running statistics, as recipes do by default."""
    model = MODELS[name]()
    state = {}
    for key, old in model.state_dict().items():
        if key.endswith("num_batches_tracked"):
            state[key] = old
            continue
        is_turned = any(fnmatchcase(key, pattern) for pattern in _STORED_IN_OUT)
        state[key] = torch.tensor(weights[key].T if is_turned else weights[key])
    model.load_state_dict(state)
    train = zoo.describe(name).train
    patterns = train.removeprefix("names:").split(",") if train != "all" else ["*"]
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(any(fnmatchcase(key, pattern) for pattern in patterns))
    return model.eval()
