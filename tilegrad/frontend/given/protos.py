"""The evaluation as an ONNX model with its weights inside, for references of inference."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from tilegrad.frontend.given.files import GivenFiles
from tilegrad.frontend.given.sweep import sorted_nodes
from tilegrad.frontend.weights import Array
from tilegrad.ir.graph import Graph


def evaluation_proto(files: GivenFiles, evaluate: Graph, initial: Mapping[str, Array]) -> onnx.ModelProto:
    """The evaluation graph that came along, or the nodes of the training graph that its scores depend on."""
    source = files.evaluation if files.evaluation is not None else files.training
    result = onnx.ModelProto()
    result.CopyFrom(source)
    graph = result.graph
    if files.evaluation is None:
        wanted, kept = set(evaluate.outputs), []
        for node in reversed(_ordered(source)):
            if any(name in wanted for name in node.output):
                kept.append(node)
                wanted.update(node.input)
        del graph.node[:]
        graph.node.extend(reversed(kept))
        del graph.output[:]
        graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in evaluate.outputs)
    read = {name for node in graph.node for name in node.input}
    inputs = [value for value in graph.input if value.name in evaluate.inputs]
    held = {tensor.name for tensor in graph.initializer}
    del graph.input[:]
    graph.input.extend(inputs)
    for name, array in initial.items():
        if name in read and name not in held:
            graph.initializer.append(numpy_helper.from_array(array, name))
    return result


def _ordered(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    known = {value.name for value in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    return sorted_nodes(model, known)
