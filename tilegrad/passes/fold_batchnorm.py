"""Policy `fold`: BatchNormalization with running statistics becomes part of the weights before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, TensorType
from tilegrad.ir.verify import verify_graph
from tilegrad.ops.base import NodeView

_Array = npt.NDArray[np.float64]


def _scaled_weight(layer: NodeView, weight: _Array, factor: _Array) -> _Array:
    """The weight with each output channel multiplied by its factor."""
    if layer.node.op == "Gemm":
        return weight * factor.reshape((-1, 1) if layer.attribute("transB", 0) else (1, -1))
    if layer.node.op == "Conv":
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    # ConvTranspose: [in, out / group, ...], groups along `in`.
    group = layer.attribute("group", 1)
    grouped = weight.reshape(group, -1, *weight.shape[1:])
    return (grouped * factor.reshape(group, 1, -1, *(1,) * (weight.ndim - 2))).reshape(weight.shape)


def _folded(layer: NodeView, norm: NodeView, constants: Mapping[str, Constant]) -> tuple[_Array, _Array]:
    """The weight and bias that do the work of both nodes."""

    def array(name: str) -> _Array:
        return constants[name].array.astype(np.float64)

    scale, shift, mean, variance = (array(name) for name in norm.inputs[1:5])
    epsilon = float(np.float32(norm.attribute("epsilon", 1e-5)))
    factor = scale / np.sqrt(variance + epsilon)
    bias = np.zeros_like(mean)
    if layer.has_input(2):
        bias = array(layer.inputs[2]) * (layer.attribute("beta", 1.0) if layer.node.op == "Gemm" else 1.0)
    return _scaled_weight(layer, array(layer.inputs[1]), factor), (bias - mean) * factor + shift


@dataclass(frozen=True)
class FoldBatchNorm:
    """Folds each BatchNormalization into the Conv, ConvTranspose or Gemm that alone feeds it.

    The sums are made in float64 and rounded once. The weight keeps its name, the bias takes that of the layer's bias or
    else of the BatchNormalization's. One that follows anything else, or whose operands are not constant, stays.
    """

    def apply(self, graph: Graph) -> Graph:
        producers, consumers = graph.producers(), graph.consumers()
        constants, types = dict(graph.constants), dict(graph.types)
        replaced: dict[str, Node] = {}
        gone: set[str] = set()
        for norm in graph.nodes:
            if norm.op != "BatchNormalization" or norm.attributes.get("training_mode", 0):
                continue
            layer = producers.get(norm.inputs[0])
            if layer is None or layer.op not in ("Conv", "ConvTranspose", "Gemm"):
                continue
            between = layer.outputs[0]
            is_private = len(consumers[between]) == 1 and between not in graph.outputs
            operands = (layer.inputs[1], *filter(None, layer.inputs[2:3]), *norm.inputs[1:5])
            if not is_private or any(name not in constants for name in operands):
                continue
            weight, bias = _folded(NodeView(layer, graph.types), NodeView(norm, graph.types), graph.constants)
            bias_name = next(filter(None, layer.inputs[2:3]), norm.inputs[2])
            names = []
            for name, array in ((layer.inputs[1], weight), (bias_name, bias)):
                used_elsewhere = any(reader not in (layer, norm) for reader in consumers[name])
                new = _unique(f"{name}.folded", types) if used_elsewhere else name
                constants[new] = Constant(array.astype(np.float32))
                types[new] = constants[new].type
                names.append(new)
            attributes = {**layer.attributes, "beta": 1.0} if layer.op == "Gemm" else layer.attributes
            replaced[layer.name] = replace(
                layer, inputs=(layer.inputs[0], *names), outputs=norm.outputs[:1], attributes=attributes
            )
            gone.add(norm.name)
            types.pop(between)
        nodes = tuple(replaced.get(node.name, node) for node in graph.nodes if node.name not in gone)
        read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
        dropped = set(constants) - read
        return verify_graph(
            replace(
                graph,
                nodes=nodes,
                constants={name: value for name, value in constants.items() if name not in dropped},
                types={name: value for name, value in types.items() if name not in dropped},
            )
        )


def _unique(hint: str, taken: dict[str, TensorType]) -> str:
    return hint if hint not in taken else next(n for i in range(len(taken) + 1) if (n := f"{hint}.{i}") not in taken)
