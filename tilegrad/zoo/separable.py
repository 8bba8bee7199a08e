"""Depthwise-separable networks: DS-CNN and MobileNetV1."""

from __future__ import annotations

from tilegrad.zoo.builder import Blueprint, ModelBuilder

# MobileNetV1 at width 0.25: output channels and stride of each of the 13 blocks.
_MOBILENET_BLOCKS = (
    (16, 1),
    (32, 2),
    (32, 1),
    (64, 2),
    (64, 1),
    (128, 2),
    *(((128, 1),) * 5),
    (256, 2),
    (256, 1),
)


def dscnn() -> Blueprint:
    """MLPerf Tiny's keyword spotter: 49 x 10 features to 64 channels on 25 x 5."""
    builder = ModelBuilder()
    x = builder.conv("conv1", "input", 1, 64, (10, 4), stride=2, padding=(5, 1))
    x = _batch_norm_relu(builder, "", "1", x, 64)
    for block in range(1, 5):
        x = _separable_block(builder, f"block{block}", x, 64, 64, stride=1)
    return builder.finish("dscnn", builder.mean_head(x, 64, 12), (1, 49, 10), (12,))


def mobilenetv1() -> Blueprint:
    """MLPerf Tiny's visual wake words: MobileNetV1 at width 0.25 on 96 x 96."""
    builder = ModelBuilder()
    channels = 8
    x = builder.conv("conv1", "input", 3, channels, (3, 3), stride=2, padding=(1, 1))
    x = _batch_norm_relu(builder, "", "1", x, channels)
    for block, (outputs, stride) in enumerate(_MOBILENET_BLOCKS, start=1):
        x = _separable_block(builder, f"block{block}", x, channels, outputs, stride=stride)
        channels = outputs
    return builder.finish("mobilenetv1", builder.mean_head(x, channels, 2), (3, 96, 96), (2,))


def _separable_block(builder: ModelBuilder, path: str, x: str, inputs: int, outputs: int, *, stride: int) -> str:
    x = builder.conv(f"{path}.depthwise", x, inputs, inputs, (3, 3), stride=stride, padding=(1, 1), groups=inputs)
    x = _batch_norm_relu(builder, path, "1", x, inputs)
    x = builder.conv(f"{path}.pointwise", x, inputs, outputs, (1, 1))
    return _batch_norm_relu(builder, path, "2", x, outputs)


def _batch_norm_relu(builder: ModelBuilder, path: str, number: str, x: str, channels: int) -> str:
    prefix = f"{path}." if path else ""
    return builder.node("Relu", f"{prefix}relu{number}", (builder.batch_norm(f"{prefix}bn{number}", x, channels),))
