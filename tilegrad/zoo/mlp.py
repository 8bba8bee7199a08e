"""Multi-layer perceptrons: two classifiers and two autoencoders."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.zoo.builder import Blueprint, ModelBuilder


def simplemlp() -> Blueprint:
    """64 to 8 to 10 and no activation: the smallest thing that trains end to end."""
    builder = ModelBuilder()
    hidden = builder.gemm("fc1", "input", 64, 8)
    return builder.finish("simplemlp", builder.classifier(hidden, 8, 10, "fc2"), (64,), (10,))


def mlp() -> Blueprint:
    builder = ModelBuilder()
    x = builder.node("Relu", "relu1", (builder.gemm("fc1", "input", 784, 128),))
    x = builder.node("Relu", "relu2", (builder.gemm("fc2", x, 128, 128),))
    return builder.finish("mlp", builder.classifier(x, 128, 10, "fc3"), (784,), (10,))


def autoencoder() -> Blueprint:
    """MLPerf Tiny's anomaly detector: each hidden layer is Gemm, BatchNorm, ReLU."""
    return _autoencoder("autoencoder", (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640), True)


def autoencoder_tiny() -> Blueprint:
    return _autoencoder("autoencoder_tiny", (128, 64, 32, 64, 64, 32, 64, 128), False)


def _autoencoder(name: str, widths: Sequence[int], batch_norm: bool) -> Blueprint:
    builder = ModelBuilder()
    x = "input"
    last = len(widths) - 1
    for layer in range(1, last):
        x = builder.gemm(f"fc{layer}", x, widths[layer - 1], widths[layer])
        if batch_norm:
            x = builder.batch_norm(f"bn{layer}", x, widths[layer])
        x = builder.node("Relu", f"relu{layer}", (x,))
    output = builder.gemm(f"fc{last}", x, widths[-2], widths[-1])
    return builder.finish(name, output, widths[:1], widths[-1:])
