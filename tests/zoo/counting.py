"""Counts parameters and multiply-accumulates from an ONNX graph alone, knowing nothing of how the zoo builds it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import onnx
from onnx import shape_inference

# Which operands of an operator are parameters when they are initializers.
PARAMETER_OPERANDS = {
    "Conv": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "Add": (0, 1),
}


@dataclass(frozen=True)
class Counts:
    params: int
    trainable_params: int
    macs_forward: int
    macs_per_step: int


def bind_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """The model with its free batch dimension bound and every shape inferred, strictly."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    bound.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    bound.graph.output[0].type.tensor_type.shape.dim[0].dim_value = batch
    return shape_inference.infer_shapes(bound, check_type=True, strict_mode=True, data_prop=True)


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The static shape of every value."""
    known = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for info in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        known[info.name] = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    return known


def parameters(model: onnx.ModelProto) -> dict[str, int]:
    """Every parameter with its size."""
    sizes = {tensor.name: prod(tensor.dims) for tensor in model.graph.initializer}
    used = {
        node.input[position]
        for node in model.graph.node
        for position in PARAMETER_OPERANDS.get(node.op_type, ())
        if position < len(node.input)
    }
    return {name: size for name, size in sizes.items() if name in used}


def count(model: onnx.ModelProto, train: str) -> Counts:
    """Counts for batch 1: a gradient costs what the forward product costs, and only where something needs it."""
    bound = bind_batch(model, 1)
    known = shapes(bound)
    sizes = parameters(bound)
    globs = train.removeprefix("names:").split(",") if train != "all" else ["*"]
    trainable = {name for name in sizes if any(fnmatchcase(name, glob) for glob in globs)}
    needs_gradient = set(trainable)
    forward = step = 0
    for node in bound.graph.node:
        macs = product_macs(node, known)
        forward += macs
        step += macs * (1 + sum(operand in needs_gradient for operand in node.input[:2]))
        if any(operand in needs_gradient for operand in node.input):
            needs_gradient.update(node.output)
    return Counts(sum(sizes.values()), sum(sizes[name] for name in trainable), forward, step)


def product_macs(node: onnx.NodeProto, known: dict[str, tuple[int, ...]]) -> int:
    if node.op_type == "Conv":
        return prod(known[node.output[0]]) * prod(known[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        return prod(known[node.output[0]]) * known[node.input[0]][-1]
    return 0
