"""The zoo's architectures read a second time, as PyTorch functions over a dictionary of weights.

Independent of the ONNX builder: it shares the tensors' names and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(w: Weights, path: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{path}.weight"], w[f"{path}.bias"])


def batch_norm(w: Weights, path: str, x: Tensor) -> Tensor:
    mean, variance = w[f"{path}.running_mean"], w[f"{path}.running_var"]
    return F.batch_norm(x, mean, variance, w[f"{path}.weight"], w[f"{path}.bias"], training=False, eps=1e-5)


def simplemlp(w: Weights, x: Tensor) -> Tensor:
    return linear(w, "fc2", linear(w, "fc1", x))


def mlp(w: Weights, x: Tensor) -> Tensor:
    return linear(w, "fc3", F.relu(linear(w, "fc2", F.relu(linear(w, "fc1", x)))))


def autoencoder(w: Weights, x: Tensor) -> Tensor:
    for layer in range(1, 10):
        x = F.relu(batch_norm(w, f"bn{layer}", linear(w, f"fc{layer}", x)))
    return linear(w, "fc10", x)


def autoencoder_tiny(w: Weights, x: Tensor) -> Tensor:
    for layer in range(1, 7):
        x = F.relu(linear(w, f"fc{layer}", x))
    return linear(w, "fc7", x)


def separable(w: Weights, path: str, x: Tensor, stride: int = 1) -> Tensor:
    x = F.conv2d(x, w[f"{path}.depthwise.weight"], stride=stride, padding=1, groups=x.shape[1])
    x = F.conv2d(F.relu(batch_norm(w, f"{path}.bn1", x)), w[f"{path}.pointwise.weight"])
    return F.relu(batch_norm(w, f"{path}.bn2", x))


def dscnn(w: Weights, x: Tensor) -> Tensor:
    x = F.relu(batch_norm(w, "bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=(5, 1))))
    assert x.shape[1:] == (64, 25, 5)
    for block in range(1, 5):
        x = separable(w, f"block{block}", x)
    return linear(w, "fc", x.mean((2, 3)))


def resnet8(w: Weights, x: Tensor) -> Tensor:
    x = F.relu(batch_norm(w, "bn1", F.conv2d(x, w["conv1.weight"], padding=1)))
    for stack, stride in ((1, 1), (2, 2), (3, 2)):
        path = f"layer{stack}"
        y = F.conv2d(x, w[f"{path}.conv1.weight"], stride=stride, padding=1)
        y = F.conv2d(F.relu(batch_norm(w, f"{path}.bn1", y)), w[f"{path}.conv2.weight"], padding=1)
        if stride == 2:
            x = F.conv2d(x, w[f"{path}.shortcut.weight"], w[f"{path}.shortcut.bias"], stride=2)
        x = F.relu(x + batch_norm(w, f"{path}.bn2", y))
    return linear(w, "fc", x.mean((2, 3)))


def mobilenetv1(w: Weights, x: Tensor) -> Tensor:
    x = F.relu(batch_norm(w, "bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=1)))
    for block in range(1, 14):
        x = separable(w, f"block{block}", x, stride=2 if block in (2, 4, 6, 12) else 1)
    assert x.shape[1:] == (256, 3, 3)
    return linear(w, "fc", x.mean((2, 3)))


def layer_norm(w: Weights, path: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, (128,), w[f"{path}.weight"], w[f"{path}.bias"])


def projection(w: Weights, path: str, x: Tensor, base: Tensor) -> Tensor:
    """LoRA, where the weights have it: rank 4, alpha 16."""
    if f"{path}.lora_A" not in w:
        return base
    return base + 16 / 4 * (x @ w[f"{path}.lora_A"] @ w[f"{path}.lora_B"])


def cct(w: Weights, x: Tensor) -> Tensor:
    for layer in (1, 2):
        x = F.max_pool2d(F.relu(F.conv2d(x, w[f"tokenizer.conv{layer}.weight"], padding=1)), 3, 2, 1)
    x = x.flatten(2).transpose(1, 2) + w["positional_emb"]
    for block in ("blocks.0", "blocks.1"):
        normed = layer_norm(w, f"{block}.norm1", x)
        thirds = (normed @ w[f"{block}.attn.qkv.weight"]).chunk(3, dim=-1)
        query, key, value = (
            projection(w, f"{block}.attn.{role}", normed, third).reshape(-1, 64, 2, 64).transpose(1, 2)
            for role, third in zip("qkv", thirds, strict=True)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        out = mixed @ w[f"{block}.attn.proj.weight"] + w[f"{block}.attn.proj.bias"]
        x = x + projection(w, f"{block}.attn.proj", mixed, out)
        hidden = layer_norm(w, f"{block}.norm2", x) @ w[f"{block}.mlp.fc1.weight"] + w[f"{block}.mlp.fc1.bias"]
        x = x + F.gelu(hidden) @ w[f"{block}.mlp.fc2.weight"] + w[f"{block}.mlp.fc2.bias"]
    x = layer_norm(w, "norm", x)
    weights = torch.softmax(x @ w["attention_pool.weight"] + w["attention_pool.bias"], dim=1)
    return linear(w, "fc", (weights * x).sum(1))


FORWARD: dict[str, Callable[[Weights, Tensor], Tensor]] = {
    "simplemlp": simplemlp,
    "mlp": mlp,
    "autoencoder": autoencoder,
    "autoencoder_tiny": autoencoder_tiny,
    "dscnn": dscnn,
    "resnet8": resnet8,
    "mobilenetv1": mobilenetv1,
    "cct": cct,
    "cct_lora": cct,
}
