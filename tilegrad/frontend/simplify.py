"""Exporters' long ways round that only ONNX's larger vocabulary can say: rewritten before translation."""

from __future__ import annotations

import numpy as np
import onnx

from tilegrad.frontend.onnx_values import to_array
from tilegrad.frontend.weights import Arrays

SOFTPLUS_IS_IDENTITY_ABOVE = 17.0
"""From here on log(1 + exp(x)) and x are the same float32."""


def simplify(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model in fewer words, and what a user should know about it."""
    model, notes = _leave_training_to_the_recipe(model, arrays)
    return _unguard_softplus(model, arrays), notes


def _leave_training_to_the_recipe(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A BatchNormalization exported in training mode, whose new statistics nobody reads, is an ordinary one: the
    recipe's policy says which statistics it uses, and when. Without running statistics (a standardised weight) there is
    no choice: it always normalises by what it is given."""
    read = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    producers = {name: node for node in result.graph.node for name in node.output}
    notes = []
    for node in result.graph.node:
        flags = [attribute for attribute in node.attribute if attribute.name == "training_mode" and attribute.i]
        if node.op_type == "BatchNormalization" and flags and not any(name in read for name in node.output[1:]):
            if not all(_is_stored(name, producers, arrays) for name in node.input[3:5]):
                continue
            flags[0].i = 0
            del node.output[1:]
            notes.append(f"BatchNormalization '{node.name}' was exported in training mode; --batchnorm decides now")
    return result, tuple(notes)


def _is_stored(value: str, producers: dict[str, onnx.NodeProto], arrays: Arrays) -> bool:
    """Whether a value is a tensor of the file, not computed."""
    while (node := producers.get(value)) is not None and node.op_type in ("Identity", "Cast", "Reshape"):
        value = node.input[0]
    return value in arrays or (node is not None and node.op_type == "Constant")


def _unguard_softplus(model: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """`Where(x > threshold, x, Softplus(x))`, PyTorch's softplus, is Softplus for any threshold of 17 or more."""
    producers = {name: node for node in model.graph.node for name in node.output}
    redundant = {
        node.output[0]: node.input[2]
        for node in model.graph.node
        if node.op_type == "Where" and _is_guarded_softplus(node, producers, arrays)
    }
    if not redundant:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        if node.output and node.output[0] in redundant:
            source = redundant[node.output[0]]
            del node.input[:]
            node.op_type = "Identity"
            node.input.append(source)
    return result


def _is_guarded_softplus(node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], arrays: Arrays) -> bool:
    greater, softplus = producers.get(node.input[0]), producers.get(node.input[2])
    if greater is None or greater.op_type not in ("Greater", "GreaterOrEqual"):
        return False
    if softplus is None or softplus.op_type != "Softplus":
        return False
    threshold = _number(greater.input[1], producers, arrays)
    same = softplus.input[0] == greater.input[0] == node.input[1]
    return same and threshold is not None and threshold >= SOFTPLUS_IS_IDENTITY_ABOVE


def _number(value: str, producers: dict[str, onnx.NodeProto], arrays: Arrays) -> float | None:
    """A scalar from an initializer or a Constant node."""
    array = arrays.get(value)
    node = producers.get(value)
    if array is None and node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
        array = to_array(node.attribute[0].t, f"constant '{value}'")
    if array is None or array.size != 1 or array.dtype.kind != "f":
        return None
    return float(np.asarray(array, np.float64).reshape(-1)[0])
