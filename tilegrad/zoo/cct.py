"""A compact convolutional transformer, plain and with LoRA adapters on its attention projections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilegrad.zoo.builder import Blueprint, ModelBuilder

_DIM = 128
_HEADS = 2
_HEAD_DIM = _DIM // _HEADS
_TOKENS = 64
_BLOCKS = 2
_CLASSES = 10


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: `x·A·B · alpha/rank` is added to a projection's result."""

    rank: int
    alpha: float


def cct() -> Blueprint:
    return _cct("cct", None)


def cct_lora() -> Blueprint:
    return _cct("cct_lora", Lora(rank=4, alpha=16.0))


def _cct(name: str, lora: Lora | None) -> Blueprint:
    builder = ModelBuilder()
    x = _tokenizer(builder)
    embedding = builder.parameter("positional_emb", (1, _TOKENS, _DIM), _DIM)
    x = builder.node("Add", "", (x, embedding))
    for block in range(_BLOCKS):
        x = _encoder_block(builder, f"blocks.{block}", x, lora)
    pooled = _sequence_pool(builder, builder.layer_norm("norm", x, _DIM))
    return builder.finish(name, builder.classifier(pooled, _DIM, _CLASSES), (3, 32, 32), (_CLASSES,))


def _tokenizer(builder: ModelBuilder) -> str:
    """Two convolutions with pools: 3 x 32 x 32 to 64 tokens of 128."""
    x = "input"
    for layer, (inputs, outputs) in enumerate(((3, 64), (64, _DIM)), start=1):
        x = builder.conv(f"tokenizer.conv{layer}", x, inputs, outputs, (3, 3), padding=(1, 1))
        x = builder.node("Relu", f"tokenizer.relu{layer}", (x,))
        x = builder.node(
            "MaxPool", f"tokenizer.pool{layer}", (x,), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)
        )
    x = builder.reshape("tokenizer", x, "tokens_shape", (0, _DIM, -1))
    return builder.node("Transpose", "tokenizer", (x,), perm=(0, 2, 1))


def _encoder_block(builder: ModelBuilder, path: str, x: str, lora: Lora | None) -> str:
    attended = _attention(builder, f"{path}.attn", builder.layer_norm(f"{path}.norm1", x, _DIM), lora)
    x = builder.node("Add", path, (x, attended))
    hidden = builder.matmul(f"{path}.mlp.fc1", builder.layer_norm(f"{path}.norm2", x, _DIM), _DIM, _DIM, bias=True)
    hidden = builder.node("Gelu", f"{path}.mlp.act", (hidden,), approximate="none")
    return builder.node("Add", path, (x, builder.matmul(f"{path}.mlp.fc2", hidden, _DIM, _DIM, bias=True)))


def _attention(builder: ModelBuilder, path: str, x: str, lora: Lora | None) -> str:
    projected = builder.split(path, builder.matmul(f"{path}.qkv", x, _DIM, 3 * _DIM, bias=False), 3, axis=-1)
    query, key, value = (
        _adapted(builder, f"{path}.{role}", x, base, lora)
        for role, base in zip(("q", "k", "v"), projected, strict=True)
    )
    scores = builder.node(
        "MatMul", path, (_heads(builder, path, query, (0, 2, 1, 3)), _heads(builder, path, key, (0, 2, 3, 1)))
    )
    scale = builder.constant(f"{path}.scale", np.array(_HEAD_DIM**-0.5, np.float32))
    weights = builder.node("Softmax", path, (builder.node("Mul", path, (scores, scale)),), axis=-1)
    mixed = builder.node("MatMul", path, (weights, _heads(builder, path, value, (0, 2, 1, 3))))
    mixed = builder.node("Transpose", path, (mixed,), perm=(0, 2, 1, 3))
    merged = builder.reshape(path, mixed, "merged_shape", (0, -1, _DIM))
    output = builder.matmul(f"{path}.proj", merged, _DIM, _DIM, bias=True)
    return _adapted(builder, f"{path}.proj", merged, output, lora)


def _heads(builder: ModelBuilder, path: str, x: str, perm: tuple[int, ...]) -> str:
    split = builder.reshape(path, x, "heads_shape", (0, -1, _HEADS, _HEAD_DIM))
    return builder.node("Transpose", path, (split,), perm=perm)


def _adapted(builder: ModelBuilder, path: str, x: str, base: str, lora: Lora | None) -> str:
    """The projection's result plus its adapter's, if there are adapters."""
    if lora is None:
        return base
    down = builder.adapter(f"{path}.lora_A", (_DIM, lora.rank), _DIM)
    up = builder.adapter(f"{path}.lora_B", (lora.rank, _DIM), lora.rank)
    product = builder.node("MatMul", path, (builder.node("MatMul", path, (x, down)), up))
    scaling = builder.constant(f"{path}.scaling", np.array(lora.alpha / lora.rank, np.float32))
    return builder.node("Add", path, (base, builder.node("Mul", path, (product, scaling))))


def _sequence_pool(builder: ModelBuilder, x: str) -> str:
    """A learned weight for each token, softmax over the tokens, and their weighted sum."""
    path = "attention_pool"
    weights = builder.node("Softmax", path, (builder.matmul(path, x, _DIM, 1, bias=True),), axis=1)
    row = builder.node("Transpose", path, (weights,), perm=(0, 2, 1))
    return builder.node("Flatten", path, (builder.node("MatMul", path, (row, x)),), axis=1)
