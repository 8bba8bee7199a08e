"""The model a reference trains under policy `fold`: BatchNormalization gone, its work in the weights before it.

Structure and values are made here from the ONNX model alone, by the rule of docs/verification.md. A program that folds
differently has other numbers, or parameters that the reference does not know.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_Array = npt.NDArray[Any]


def folded_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every BatchNormalization with stored operands, alone behind a layer with stored ones, is gone.

    The layer's weight keeps its name; the bias has the name of the layer's own, or else of the BatchNormalization's. A
    tensor that something else reads too stays as it is, and the layer has a new one, NAME.folded.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    _drop_identities(graph)
    stored = {proto.name: numpy_helper.to_array(proto) for proto in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, int] = {value.name: 1 for value in graph.output}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    changed: dict[str, _Array] = {}
    tied: dict[tuple[object, ...], tuple[str, ...]] = {}
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = producers.get(norm.input[0])
        if layer is None or layer.op_type not in _FOLDERS or readers[norm.input[0]] != 1:
            continue
        operands = [*filter(None, layer.input[1:3]), *norm.input[1:5]]
        if _attribute(norm, "training_mode", 0) or any(name not in stored for name in operands):
            continue
        factor, shift = _affine(norm, stored)
        weight = stored[layer.input[1]].astype(np.float64)
        bias = np.zeros_like(factor)
        if len(layer.input) > 2 and layer.input[2]:
            beta = _attribute(layer, "beta", 1.0) if layer.op_type == "Gemm" else 1.0
            bias = stored[layer.input[2]].astype(np.float64) * beta
        parts = {0: _FOLDERS[layer.op_type](layer, weight, factor), 1: bias * factor + shift}
        names = (layer.input[1], layer.input[2] if len(layer.input) > 2 and layer.input[2] else norm.input[2])
        origin = (*operands, layer.op_type, *(_attribute(layer, name, 1.0) for name in ("transB", "beta", "group")))
        if origin not in tied:
            for position, name in enumerate(names):
                own = name if readers[name] == 1 else _unused(f"{name}.folded", {*stored, *changed, *producers})
                changed[own] = parts[position].astype(np.float32)
                tied[origin] = (*tied.get(origin, ()), own)
        del layer.input[1:]
        layer.input.extend(tied[origin])
        if layer.op_type == "Gemm":
            kept = [attribute for attribute in layer.attribute if attribute.name != "beta"]
            del layer.attribute[:]
            layer.attribute.extend(kept)
        layer.output[0] = norm.output[0]
        graph.node.remove(norm)
    _store(graph, changed)
    return result


def _affine(norm: onnx.NodeProto, stored: dict[str, _Array]) -> tuple[_Array, _Array]:
    """y = factor x + shift, for each channel."""
    scale, bias, mean, variance = (stored[name].astype(np.float64) for name in norm.input[1:5])
    factor = scale / np.sqrt(variance + float(np.float32(_attribute(norm, "epsilon", 1e-5))))
    return factor, bias - mean * factor


def _by_first(layer: onnx.NodeProto, weight: _Array, factor: _Array) -> _Array:
    return np.asarray(np.einsum("o...,o->o...", weight, factor))


def _by_column(layer: onnx.NodeProto, weight: _Array, factor: _Array) -> _Array:
    return _by_first(layer, weight, factor) if _attribute(layer, "transB", 0) else weight * factor


def _by_group(layer: onnx.NodeProto, weight: _Array, factor: _Array) -> _Array:
    """[in, out / groups, ...]: an input channel's group says which outputs these are."""
    per_group = weight.shape[1]
    inputs_per_group = weight.shape[0] // int(_attribute(layer, "group", 1))
    rows = [
        np.einsum("o...,o->o...", row, factor[(i // inputs_per_group) * per_group :][:per_group])
        for i, row in enumerate(weight)
    ]
    return np.stack(rows)


_FOLDERS = {"Conv": _by_first, "ConvTranspose": _by_group, "Gemm": _by_column}


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    return float(next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default))


def _drop_identities(graph: onnx.GraphProto) -> None:
    """Readers of an Identity read its source; one that makes an output of the model stays."""
    outputs = {value.name for value in graph.output}
    source: dict[str, str] = {}
    for node in list(graph.node):
        for position, name in enumerate(node.input):
            node.input[position] = source.get(name, name)
        if node.op_type == "Identity" and node.output[0] not in outputs:
            source[node.output[0]] = node.input[0]
            graph.node.remove(node)


def _unused(hint: str, taken: set[str]) -> str:
    return hint if hint not in taken else next(n for i in range(len(taken) + 1) if (n := f"{hint}.{i}") not in taken)


def _store(graph: onnx.GraphProto, arrays: dict[str, _Array]) -> None:
    for initializer in graph.initializer:
        if initializer.name in arrays:
            name = initializer.name
            initializer.CopyFrom(numpy_helper.from_array(arrays.pop(name), name))
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
