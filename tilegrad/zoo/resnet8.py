"""ResNet-8, MLPerf Tiny's image classifier."""

from __future__ import annotations

from tilegrad.zoo.builder import Blueprint, ModelBuilder


def resnet8() -> Blueprint:
    builder = ModelBuilder()
    x = builder.conv("conv1", "input", 3, 16, (3, 3), padding=(1, 1))
    x = builder.node("Relu", "relu1", (builder.batch_norm("bn1", x, 16),))
    channels = 16
    for stack, (outputs, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        x = _stack(builder, f"layer{stack}", x, channels, outputs, stride)
        channels = outputs
    return builder.finish("resnet8", builder.mean_head(x, channels, 10), (3, 32, 32), (10,))


def _stack(builder: ModelBuilder, path: str, x: str, inputs: int, outputs: int, stride: int) -> str:
    """Two convolutions beside a shortcut; where shapes change it is a 1 x 1 convolution with bias and no BatchNorm."""
    y = builder.conv(f"{path}.conv1", x, inputs, outputs, (3, 3), stride=stride, padding=(1, 1))
    y = builder.node("Relu", f"{path}.relu1", (builder.batch_norm(f"{path}.bn1", y, outputs),))
    y = builder.conv(f"{path}.conv2", y, outputs, outputs, (3, 3), padding=(1, 1))
    y = builder.batch_norm(f"{path}.bn2", y, outputs)
    if stride != 1:
        x = builder.conv(f"{path}.shortcut", x, inputs, outputs, (1, 1), stride=stride, bias=True)
    return builder.node("Relu", f"{path}.relu2", (builder.node("Add", path, (y, x)),))
