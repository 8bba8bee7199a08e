"""The model a reference trains under policy `fold`: BatchNormalization gone, its work in the weights before it.

Only the structure is rewritten here; the folded values are those the program starts from. That folding them is right is
another question, which a test answers by running both models in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import onnx
from onnx import numpy_helper

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def folded_model(model: onnx.ModelProto, values: Mapping[str, npt.NDArray[Any]]) -> onnx.ModelProto:
    """`values` are the program's initial parameters by initializer name."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    producers = {output: node for node in graph.node for output in node.output}
    uses: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = producers.get(norm.input[0])
        if layer is None or layer.op_type not in _LAYERS or uses[norm.input[0]] != 1:
            continue
        if norm.input[1] in values:  # its scale is still a parameter: this one was not folded
            continue
        if len(layer.input) < 3:
            layer.input.append(norm.input[2])
        layer.output[0] = norm.output[0]
        graph.node.remove(norm)
    for initializer in graph.initializer:
        if initializer.name in values:
            initializer.CopyFrom(numpy_helper.from_array(values[initializer.name], initializer.name))
    return result
