"""The peer's second form, written by code: a training graph, an optimizer graph, and numbers that PyTorch computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

BATCH, INPUTS, HIDDEN, CLASSES = 4, 6, 5, 3
RATE = 0.1


def _value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def training_graph() -> onnx.ModelProto:
    """Inputs: data, weights, gradient buffers, lazy_reset_grad. Nodes in no order that can be executed."""
    shapes = {"fc1_weight": [HIDDEN, INPUTS], "fc2_weight": [CLASSES, HIDDEN]}
    make = helper.make_node
    nodes = [
        make("SoftmaxCrossEntropyLossGrad", ["one", "log_prob", "labels"], ["y_grad"], domain="com.microsoft"),
        make("Gemm", ["x", "fc1_weight"], ["h"], transB=1),
        make("Relu", ["h"], ["a"]),
        make("Gemm", ["a", "fc2_weight"], ["y"], transB=1),
        make("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss", "log_prob"], reduction="mean"),
        make("Gemm", ["y_grad", "a"], ["fc2_weight_grad"], transA=1),
        make("Gemm", ["y_grad", "fc2_weight"], ["a_grad"]),
        make("ReluGrad", ["a_grad", "a"], ["h_grad"], domain="com.microsoft"),
        make("Gemm", ["h_grad", "x"], ["fc1_weight_grad"], transA=1),
    ]
    for name in shapes:
        buffer = f"{name}_grad.accumulation.buffer"
        nodes.append(
            make(
                "InPlaceAccumulatorV2",
                [buffer, f"{name}_grad", "lazy_reset_grad"],
                [f"{name}_grad.accumulation.out"],
                domain="com.microsoft",
            )
        )
    inputs = [_value("x", [BATCH, INPUTS]), _value("labels", [BATCH], TensorProto.INT64)]
    inputs += [_value(name, shape) for name, shape in shapes.items()]
    inputs += [_value(f"{name}_grad.accumulation.buffer", shape) for name, shape in shapes.items()]
    inputs += [_value("lazy_reset_grad", [1], TensorProto.BOOL)]
    outputs = [_value("loss", [])]
    outputs += [_value(f"{name}_grad.accumulation.out", [1], TensorProto.BOOL) for name in shapes]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "training", inputs, outputs, [one])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def optimizer_graph(rate: float = RATE) -> onnx.ModelProto:
    shapes = {"fc1_weight": [HIDDEN, INPUTS], "fc2_weight": [CLASSES, HIDDEN]}
    nodes = [
        helper.make_node("SGD", [name, f"{name}_grad.accumulation.buffer"], [f"{name}_updated"], lr=rate)
        for name in shapes
    ]
    inputs = [_value(n, s) for n, s in shapes.items()]
    inputs += [_value(f"{n}_grad.accumulation.buffer", s) for n, s in shapes.items()]
    outputs = [_value(f"{n}_updated", s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "optimizer", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def weights_and_batches(size: int) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    draw = np.random.default_rng(3)
    weights = {
        "fc1_weight": draw.standard_normal((HIDDEN, INPUTS)).astype(np.float32),
        "fc2_weight": draw.standard_normal((CLASSES, HIDDEN)).astype(np.float32),
    }
    batches = [
        (draw.standard_normal((BATCH, INPUTS)).astype(np.float32), draw.integers(0, CLASSES, BATCH))
        for _ in range(size)
    ]
    return weights, batches


def trained(weights: dict[str, Any], batches: list[tuple[Any, Any]], total: int, accumulate: int) -> dict[str, Any]:
    """PyTorch's losses and weights; gradients of an update are added up."""
    import torch

    tensors = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in weights.items()}
    losses = []
    for number in range(total):
        x, labels = batches[number % len(batches)]
        hidden = torch.relu(torch.tensor(x, dtype=torch.float64) @ tensors["fc1_weight"].T)
        loss = torch.nn.functional.cross_entropy(hidden @ tensors["fc2_weight"].T, torch.tensor(labels))
        loss.backward()
        losses.append(loss.item())
        if (number + 1) % accumulate == 0:
            with torch.no_grad():
                for tensor in tensors.values():
                    tensor -= RATE * tensor.grad
                    tensor.grad = None
    return {"loss": np.array(losses, np.float32), **{n: t.detach().numpy() for n, t in tensors.items()}}


def write(folder: Path, *, size: int = 3, total: int = 8, accumulate: int = 2, split: bool = False) -> Path:
    """`size` different mini-batches, `total` of them run, so that data cycles. With `split` the optimizer has a folder
    of its own."""
    own = folder / "mlp_train" if split else folder
    other = folder / "mlp_optimizer" if split else folder
    for each in (own, other):
        each.mkdir(parents=True, exist_ok=True)
    onnx.save(training_graph(), own / "network.onnx")
    onnx.save(optimizer_graph(), other / ("network.onnx" if split else "network_optimizer.onnx"))
    weights, batches = weights_and_batches(size)
    arrays: dict[str, Any] = {
        "arr_0000": batches[0][0],
        "arr_0001": batches[0][1],
        "arr_0002": weights["fc1_weight"],
        "arr_0003": weights["fc2_weight"],
        "arr_0004": np.array([1], np.uint8),
        "meta_n_batches": np.array([total]),
        "meta_n_accum": np.array([accumulate]),
        "meta_data_size": np.array([size]),
        "meta_mood": np.array([7]),
    }
    for number, (x, labels) in enumerate(batches[1:], 1):
        arrays |= {f"mb{number}_arr_0000": x, f"mb{number}_arr_0001": labels}
    np.savez(own / "inputs.npz", **arrays)
    np.savez(own / "outputs.npz", **trained(weights, batches, total, accumulate))
    return own
